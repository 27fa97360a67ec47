"""Who asked for what change, and what came of it, in the log of a real daemon."""

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.base import audit
from supervisor.control.base.audit import (
    MAX_NAMES,
    MAX_TEXT,
    Caller,
    Change,
)
from tests import reading
from tests.control.http.test_access import NOBODY, ask_as, needs_root
from tests.control.http.test_access import folder as folder
from tests.control.test_endpoints import ask, basic, free_port
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, Refused

PROGRAMS = """[program:sleeper]
command=/bin/sleep 100000
[program:cat]
command=/bin/cat
[program:w]
command=/bin/sleep 100000
process_name=%(process_num)d
numprocs=2
autostart=false
startsecs=0
[program:broken]
command=/bin/false
autostart=false
startretries=0
"""


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with Daemon(folder, PROGRAMS) as daemon:
        daemon.until_state("cat", "RUNNING")
        yield daemon


def records(daemon: Daemon, count: int) -> list[dict[str, Any]]:
    """So many lines, without what every line of the log has; the log is written by a thread."""

    def look() -> list[dict[str, Any]] | None:
        changes = [line for line in reading.records(daemon.folder / "daemon.log") if line["event"] == "change.asked"]
        return changes if len(changes) >= count else None

    changes: list[dict[str, Any]] = daemon.until(look, f"{count} changes are written")
    return [{key: line[key] for key in line if key not in ("timestamp", "level", "event")} for line in changes]


@pytest.mark.integration
def test_a_change_is_written_with_who_and_what_came_of_it(daemon: Daemon):
    daemon.call("stop", name="sleeper")
    with pytest.raises(Refused):
        daemon.call("start", name="broken")
    daemon.call("status")

    stopped, broken = records(daemon, 2)
    me = {"uid": os.geteuid(), "peer_pid": os.getpid()}
    assert stopped == {"command": "stop", "program": "sleeper", "result": "OK", **me}
    assert broken.pop("reason").startswith("1 failure (")
    assert broken == {"command": "start", "program": "broken", "result": "SPAWN_ERROR", **me}


@pytest.mark.integration
@needs_root
def test_refused_commands_are_audited_too(daemon: Daemon):
    daemon.socket.chmod(0o777)

    ask_as(NOBODY, daemon, "stop")
    ask_as(NOBODY, daemon, "each", command="signal", names=["sleeper", "cat"], arguments={"signal": "KILL"})

    refused, of_many = records(daemon, 2)
    assert (of_many["command"], of_many["programs"]) == ("signal", ["sleeper", "cat"])
    assert (of_many["result"], of_many["arguments"]) == ("FORBIDDEN", {"signal": "KILL"})
    assert (refused["command"], refused["program"], refused["result"]) == ("stop", "sleeper", "FORBIDDEN")
    assert refused["uid"] == NOBODY
    assert refused["peer_pid"] not in (os.getpid(), None)


def ask_for_each(daemon: Daemon, **asked: object) -> None:
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(daemon.socket))
    connection.request("POST", "/api/v1/each", json.dumps(asked))
    connection.getresponse().read()


@pytest.mark.integration
@needs_root
def test_unpermitted_request_is_refused_and_audited_whatever_it_holds(daemon: Daemon):
    daemon.socket.chmod(0o777)

    answers = [
        ask_as(NOBODY, daemon, "stop", body="{"),
        ask_as(NOBODY, daemon, "each", body="[]"),
        ask_as(NOBODY, daemon, "each", command="send_stdin", names=["cat"], arguments={"chars": "hunter2"}),
        ask_as(NOBODY, daemon, "each", command="stop", names=[]),
    ]

    written = records(daemon, 4)
    assert [answer["error"]["code"] for answer in answers] == ["FORBIDDEN"] * 4
    assert [(record["command"], record["result"], record["uid"]) for record in written] == [
        ("stop", "FORBIDDEN", NOBODY),
        ("each", "FORBIDDEN", NOBODY),
        ("each", "FORBIDDEN", NOBODY),
        ("stop", "FORBIDDEN", NOBODY),
    ]
    assert (written[2]["programs"], written[2]["arguments"]) == (["cat"], {"command": "send_stdin"})


@pytest.mark.integration
def test_unknown_commands_and_programs_are_audited(daemon: Daemon):
    with pytest.raises(Refused):
        daemon.call("stop")
    ask_for_each(daemon, command="nope", names=["cat"])
    ask_for_each(daemon, command="stop", names=[])

    assert [(record["command"], record.get("programs"), record["result"]) for record in records(daemon, 3)] == [
        ("stop", None, "BAD_ARGUMENTS"),
        ("each", ["cat"], "UNKNOWN_COMMAND"),
        ("stop", [], "OK"),
    ]


@pytest.mark.integration
def test_changes_are_written_whatever_the_log_is_to_hold(tmp_path: Path):
    with Daemon(tmp_path, PROGRAMS, settings="loglevel=critical") as daemon:
        daemon.call("reread")

        assert [(record["command"], record["result"]) for record in records(daemon, 1)] == [("reread", "OK")]
    others = [json.loads(line)["event"] for line in (tmp_path / "daemon.log").read_text().splitlines()]
    assert set(others) == {"change.asked"}


@pytest.mark.integration
def test_signals_to_the_daemon_are_written(daemon: Daemon):
    assert daemon.process is not None
    for number in (signal.SIGHUP, signal.SIGUSR2):
        daemon.process.send_signal(number)

    def look() -> list[str] | None:
        lines = reading.records(daemon.folder / "daemon.log")
        signals = [line["signal"] for line in lines if line["event"] == "daemon.signalled"]
        return signals if len(signals) == 2 else None

    assert sorted(daemon.until(look, "both signals are written")) == ["SIGHUP", "SIGUSR2"]


@pytest.mark.integration
def test_a_web_page_that_tried_is_written(daemon: Daemon):
    ask_as(os.geteuid(), daemon, "stop", {"Origin": "https://example.org"})

    lines = daemon.until(
        lambda: [line for line in reading.records(daemon.folder / "daemon.log") if line["event"] == "client.refused"],
        "it is written",
    )
    assert (lines[0]["path"], len(lines)) == ("/api/v1/stop", 1)


@pytest.mark.integration
def test_many_programs_have_a_line_each(daemon: Daemon):
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), "start", "w:*", "nope"]
    subprocess.run(command, capture_output=True, timeout=60, check=False)

    results = {record["program"]: record["result"] for record in records(daemon, 3) if record["command"] == "start"}
    assert results == {"w:0": "OK", "w:1": "OK", "nope": "BAD_NAME"}


@pytest.mark.integration
def test_supervisors_methods_are_written(daemon: Daemon):
    with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
        proxy.supervisor.startProcessGroup("w")
        proxy.supervisor.startProcessGroup("w")  # nothing to do
        proxy.supervisor.stopProcess("w:0", True)
        with pytest.raises(xmlrpc.client.Fault):
            proxy.supervisor.stopProcess("nope")
        proxy.supervisor.sendRemoteCommEvent("kind", "hunter2")
        proxy.supervisor.getState()

    changes = [
        (record["command"].removeprefix("supervisor."), record.get("program"), record["result"])
        for record in records(daemon, 6)
    ]
    assert sorted(changes[:2]) == [("startProcessGroup", "w:0", "OK"), ("startProcessGroup", "w:1", "OK")]
    assert changes[2:] == [
        ("startProcessGroup", "w", "OK"),
        ("stopProcess", "w:0", "OK"),
        ("stopProcess", "nope", "BAD_NAME"),
        ("sendRemoteCommEvent", None, "OK"),
    ]


@pytest.mark.integration
def test_standard_input_is_not_audited(daemon: Daemon):
    with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
        proxy.supervisor.sendRemoteCommEvent("kind", "hunter2")
        proxy.supervisor.sendProcessStdin("cat", "hunter2\n")
    daemon.call("send_stdin", name="cat", chars="hunter2\n")
    daemon.call("send_stdin", name="cat", base64="aHVudGVyMgo=")

    assert [record["arguments"] for record in records(daemon, 4)] == [
        {"text": "kind", "secret": "7 long"},
        {"data": "8 long"},
        {"chars": "8 long"},
        {"base64": "12 long"},
    ]
    assert "hunter2" not in (daemon.folder / "daemon.log").read_text()
    assert "aHVudGVyMgo" not in (daemon.folder / "daemon.log").read_text()


@pytest.mark.integration
def test_on_tcp_the_login_and_the_address_are_written(tmp_path: Path):
    port = free_port()
    inet = f"[inet_http_server]\nport=127.0.0.1:{port}\nusername=ann\npassword=secret\n"
    with Daemon(tmp_path, PROGRAMS + inet) as daemon:
        ask(port, "/api/v1/reread", Authorization=basic("ann", "secret"))

        assert records(daemon, 1) == [{"command": "reread", "result": "OK", "address": "127.0.0.1", "user": "ann"}]


@pytest.mark.integration
def test_client_that_resets_the_connection_is_audited(tmp_path: Path):
    port = free_port()
    with Daemon(tmp_path, f"{PROGRAMS}[inet_http_server]\nport=127.0.0.1:{port}\n") as daemon:
        with socket.create_connection(("127.0.0.1", port)) as hasty:
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            hasty.sendall(b"POST /api/v1/reread HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert records(daemon, 1)[0]["address"] == "127.0.0.1"


def test_a_line_is_bounded_whatever_was_sent(capsys: pytest.CaptureFixture[str]):
    hostile = {f"key{number}" * 50: "x" * 10_000 for number in range(500)}
    change = Change(Caller(uid=1), "update", {"names": ["n" * 10_000] * 1000, **hostile})

    change.record("FAILED", "r" * 100_000)

    assert len(capsys.readouterr().out) < 3 * MAX_NAMES * (MAX_TEXT + 10)


@pytest.mark.integration
def test_changes_have_a_log_of_their_own_which_rotation_of_the_other_does_not_touch(folder: Path):
    settings = "logfile_maxbytes=2KB\nlogfile_backups=1\n"
    with Daemon(folder, PROGRAMS, settings) as daemon:
        daemon.until_state("cat", "RUNNING")
        for _ in range(81):
            with contextlib.suppress(Refused):
                daemon.call("stop", name="w:0")  # it does not run

        def changes() -> list[dict[str, Any]]:
            return list(reading.records(folder / "state" / "changes.log"))

        daemon.until(lambda: len(changes()) >= 81, "all changes are in their log")

    assert {(change["event"], change["command"]) for change in changes()} == {("change.asked", "stop")}
    kept = [line for name in ("daemon.log", "daemon.log.1") for line in reading.records(folder / name)]
    assert sum(line["event"] == "change.asked" for line in kept) < 81


@pytest.mark.integration
def test_the_log_of_changes_is_rotated_reopened_and_can_be_left_out(folder: Path):
    own = f"changes_logfile={folder}/who.log\nchanges_logfile_maxbytes=1KB\nchanges_logfile_backups=2\n"
    with Daemon(folder, PROGRAMS, own) as daemon:
        for _ in range(20):
            with contextlib.suppress(Refused):
                daemon.call("stop", name="w:0")  # it does not run
        daemon.until((folder / "who.log.2").exists, "it was rotated twice")
        (folder / "who.log").rename(folder / "aside")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGUSR2)
        with contextlib.suppress(Refused):
            daemon.call("stop", name="w:0")
        daemon.until((folder / "who.log").exists, "it is opened again")
    assert not (folder / "state" / "changes.log").exists()
    with Daemon(folder, PROGRAMS, "changes_logfile=NONE\n") as daemon:
        daemon.call("stop", name="cat")
    assert not (folder / "state" / "changes.log").exists()


def test_refusals_to_one_user_are_limited_and_counted(monkeypatch: pytest.MonkeyPatch):
    written: list[tuple[str, dict[str, Any]]] = []
    now = [time.monotonic()]

    class Lines:
        def warning(self, event: str, **facts: Any) -> None:
            written.append((event, facts))

        info = warning

    monkeypatch.setattr(audit, "log", Lines())
    monkeypatch.setattr(audit, "_refusals", {})
    monkeypatch.setattr(audit.time, "monotonic", lambda: now[0])
    for _ in range(audit.REFUSALS_AT_ONCE + 30):
        Change(Caller(uid=33), "stop").record("FORBIDDEN", "no")
    Change(Caller(uid=34), "stop").record("FORBIDDEN", "no")
    Change(Caller(uid=33), "stop").record("OK")
    now[0] += 100.0
    Change(Caller(uid=33), "stop").record("FORBIDDEN", "no")

    assert len(written) == audit.REFUSALS_AT_ONCE + 4
    assert written[-2] == ("change.refusals_left_out", {"uid": 33, "count": 30})
    assert written[-3][1]["result"] == "OK"
