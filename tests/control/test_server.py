"""The control socket against requests that no client of ours sends."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from supervisor.control.commands.bulk import BULK_COMMANDS
from supervisor.control.commands.table import COMMANDS
from supervisor.control.openapi import OUTCOME
from tests.fuzzing import cases
from tests.reading import records
from tests.system.harness import Daemon, Refused

UNREADABLE = Path("/sys/class/net/lo/speed")  # the loopback has none


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("server")
    other = "[program:other]\ncommand=/bin/sleep 100000\nstartsecs=0\nautorestart=false\n"
    with Daemon(folder, f"[program:sleeper]\ncommand=/bin/sleep 100000\n{other}") as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


def send(daemon: Daemon, request: bytes, *, no_more: bool = False) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.socket))
        connection.sendall(request)
        if no_more:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while block := connection.recv(65536):
            answer += block
    return answer


HARMLESS = sorted(COMMANDS.keys() - {"shutdown", "reload"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


NAMES = st.sampled_from(["other", "other:*", "nope", "*", ""])
ARGUMENTS = {
    "name": NAMES,
    "names": st.lists(NAMES, max_size=2),
    "signal": st.sampled_from(["HUP", "sigterm", "9", "0", "64", "65", "-1", "NOPE"]),
    "chars": st.text(max_size=20),
    "base64": st.sampled_from(["", "aGVsbG8=", "=", "é"]),
    "limit": st.integers(-1, 3),
    "verify": st.booleans(),
    "wait": st.booleans(),
}
REFUSALS = {
    "BAD_ARGUMENTS",
    "BAD_NAME",
    "BAD_SIGNAL",
    "NOT_A_JOB",
    "ALREADY_STARTED",
    "ABNORMAL_TERMINATION",  # it was signalled, or changed, while it was waited for
    "NOT_RUNNING",
    "ALREADY_ADDED",
    "STILL_RUNNING",
}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.fuzz
@cases(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(HARMLESS),
    st.fixed_dictionaries({}, optional={key: known | JSON for key, known in ARGUMENTS.items()}),
)
def test_any_arguments_are_answered_by_name(daemon: Daemon, command: str, arguments: dict[str, object]):
    pid = daemon.status("sleeper")["pid"]

    try:
        daemon.call(command, **arguments)
    except Refused as refused:
        assert refused.code in REFUSALS

    assert daemon.status("sleeper")["pid"] == pid


@pytest.mark.integration
@pytest.mark.fuzz
@cases(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.binary(max_size=80).map(lambda junk: b"POST /api/v1/status HTTP/1.1\r\n" + junk))
def test_any_bytes_leave_the_daemon_serving(daemon: Daemon, junk: bytes):
    send(daemon, junk, no_more=True)

    assert daemon.status("sleeper")["state"] == "RUNNING"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /api/v1/stop", b"405"),
        (b"POST /api/v1/nope", b"404"),
        (b"GET /elsewhere", b"404"),
        (b"GET /api/v1/tail?name=sleeper&bytes=-1", b"400"),
        (b"GET /api/v1/tail?name=nope", b"404"),
        (b"GET /api/v1/tail?name=sleeper&attempt=x", b"400"),
        (b"GET /api/v1/tail?name=sleeper&attempt=1&follow=1", b"400"),
        (b"GET /api/v1/tail?name=supervisord&attempt=1", b"400"),
        (b"GET /api/v1/tail?name=sleeper&attempt=99999999999", b"422"),
        (b"GET /api/v1/tail?name=sleeper&channel=../../etc/passwd", b"400"),
    ],
)
def test_wrong_requests_get_their_status(daemon: Daemon, request_line: bytes, status: bytes):
    answer = send(daemon, request_line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.split(b" ", 2)[1] == status
    assert b'"error"' in answer


@pytest.mark.integration
def test_wrong_method_is_told_which_one_is_right(daemon: Daemon):
    answer = send(daemon, b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert b'"message": "Method Not Allowed; use POST"' in answer


@pytest.mark.integration
def test_a_body_that_is_too_large_is_refused(daemon: Daemon):
    head = b"POST /api/v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n"

    assert b" 413 " in send(daemon, head + b"x" * 2_000_000).split(b"\r\n", 1)[0]


# --- one command for many programs --------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.skipif(not UNREADABLE.exists(), reason="needs a file that opens and can't be read")
def test_a_log_that_cant_be_read_is_an_error(tmp_path: Path):
    log = tmp_path / "p.log"
    log.symlink_to(UNREADABLE)
    with Daemon(tmp_path, f"[program:p]\ncommand=/bin/true\nautostart=false\nstdout_logfile={log}\n") as daemon:
        answer = send(daemon, b"GET /api/v1/tail?name=p HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 422") and f"cannot read {log}".encode() in answer


def ask_for_each(daemon: Daemon, body: object) -> tuple[int, list[dict[str, Any]]]:
    """The status and the lines of an answer."""
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.connect(str(daemon.socket))
        connection.request("POST", "/api/v1/each", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, [json.loads(line) for line in answer.read().splitlines()]
    finally:
        connection.close()


@pytest.mark.integration
def test_each_outcome_is_told_and_is_as_described(daemon: Daemon):
    status, outcomes = ask_for_each(daemon, {"command": "clear", "names": ["sleeper", "nope", "sleeper"]})

    assert status == 200
    assert sorted(outcomes, key=lambda outcome: outcome["name"]) == [
        {"name": "nope", "result": None, "error": {"code": "BAD_NAME", "message": "nope"}},
        {"name": "sleeper", "result": {"name": "sleeper"}, "error": None},
    ]
    for outcome in outcomes:
        Draft202012Validator(OUTCOME).validate(outcome)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"command": "shutdown", "names": ["sleeper"]}, 404),
        ({"command": "stop"}, 400),
        ({"command": "stop", "names": "sleeper"}, 400),
        ({"command": "stop", "names": ["sleeper", 1]}, 400),
        ({"command": "stop", "names": ["other"], "arguments": {"name": "sleeper"}}, 400),
        ({"command": "stop", "names": ["other"], "arguments": []}, 400),
        ({"names": ["sleeper"]}, 400),
        ([], 400),
    ],
)
def test_malformed_bulk_request_is_refused_whole(daemon: Daemon, body: object, status: int):
    pid = daemon.status("sleeper")["pid"]

    answer = ask_for_each(daemon, body)

    assert (answer[0], len(answer[1])) == (status, 1)
    assert daemon.status("sleeper")["pid"] == pid


@pytest.mark.integration
@pytest.mark.slow
def test_a_client_that_goes_away_leaves_nothing_half_done(tmp_path: Path):
    programs = "".join(
        f"[program:{name}]\ncommand=/bin/sleep 100000\nautostart=false\nstartsecs=2\n{keys}\n"
        for name, keys in (("first", ""), ("second", "depends_on=first"))
    )
    body = json.dumps({"command": "start", "names": ["first", "second"]}).encode()
    head = f"POST /api/v1/each HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with Daemon(tmp_path, programs) as daemon:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(daemon.socket))
            connection.sendall(head.encode() + body)
            connection.recv(15)  # it has begun

        daemon.until_state("second", "RUNNING")  # which was begun when the first one ran
        asked = records(tmp_path / "daemon.log")

    assert {record["program"] for record in asked if record["event"] == "change.asked"} >= {"first"}


@pytest.mark.integration
@pytest.mark.fuzz
@cases(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "command": st.sampled_from(BULK_COMMANDS) | JSON,
            "names": st.lists(st.text(max_size=10).filter(lambda name: name != "sleeper"), max_size=4) | JSON,
            "arguments": st.dictionaries(st.sampled_from(["wait", "signal", "in_s", "kind"]), JSON) | JSON,
        },
    )
)
def test_any_order_for_many_is_answered(daemon: Daemon, body: dict[str, object]):
    status, lines = ask_for_each(daemon, body)

    assert status in (200, 400, 404)
    if status == 200:
        assert {line["name"] for line in lines} == set(body["names"])  # type: ignore[call-overload]
        assert all(line["error"]["code"] in ("BAD_NAME", "BAD_ARGUMENTS") for line in lines)
    assert daemon.status("sleeper")["state"] == "RUNNING"
