"""events, over breaks of the connection."""

import json
import socket
import threading
from pathlib import Path

import pytest

from supervisor.ctl.main import main

FULL = {"error": {"code": "FAILED", "message": "supervisord has as many connections as it takes"}}


def answer(status: str, content: dict[str, object]) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    return (
        f"HTTP/1.1 {status}\r\nEvents-Cursor: a-1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def event(number: int) -> dict[str, object]:
    return {"cursor": f"a-{number + 1}", "serial": number, "wall_at": 0.0, "event": "TICK", "count": number}


def play(path: Path, *answers: bytes) -> threading.Thread:
    """A daemon's end that gives these answers, one a connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            for content in answers:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as request:
                    head = list(iter(request.readline, b"\r\n"))
                    length = [int(line.split()[1]) for line in head if line.lower().startswith(b"content-length:")]
                    request.read(sum(length))
                    connection.sendall(content)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_daemon_that_has_no_room_for_a_moment_ends_no_watching(tmp_path, capsys):
    path, ok, full = tmp_path / "e.sock", "200 OK", answer("503 Service Unavailable", FULL)
    login = answer("401 Unauthorized", {"error": {"code": "UNAUTHORIZED", "message": ""}})
    pid = answer(ok, {"result": {"pid": 1}})
    played = play(path, answer(ok, event(1)), full, pid, full, pid, answer(ok, event(2)), pid, login)

    status = main(["-s", f"unix://{path}", "events", "--json"])
    played.join(10)

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["serial"] for line in lines[:2]] == [1, 2]
    assert status == 1  # the login at the end, which is no moment's matter


def test_a_name_that_nothing_has_is_said_and_watched_all_the_same(tmp_path, capsys):
    path, ok = tmp_path / "e.sock", "200 OK"
    programs = [{"name": "web:web_1", "group": "web", "process": "web_1"}]
    played = play(path, answer(ok, {"result": {"programs": programs}}), answer(ok, event(1)))

    status = main(
        ["-s", f"unix://{path}", "events", "--no-follow", "PROCESS_STATE", "web", "web:web_1", "nope", "web:*"]
    )
    played.join(10)

    out, err = capsys.readouterr()
    assert (len(out.splitlines()), status) == (1, 0)
    assert err.splitlines() == [
        "    there is no program or group PROCESS_STATE now; to select a type of event, write --kind PROCESS_STATE",
        "    there is no program or group nope now",
    ]
