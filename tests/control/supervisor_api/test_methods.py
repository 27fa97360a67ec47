"""Supervisor's XML-RPC: what stock clients do not try, what the daemon does while it leaves, and hostile bodies."""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.control.base.audit import Caller
from supervisor.control.http import web
from supervisor.control.supervisor_api import methods, routes
from supervisor.control.supervisor_api.methods import METHODS, MULTICALL
from supervisor.control.supervisor_api.xmlrpc import (
    MAX_DEPTH,
    MalformedXml,
    fault_response,
    parse_call,
    response,
)
from tests.control.http.test_access import NOBODY, needs_root
from tests.control.http.test_access import folder as folder
from tests.fuzzing import cases
from tests.reading import alive, content
from tests.system.both import UnixTransport
from tests.system.harness import Daemon
from tests.system.test_daemon import switches
from tests.waiting import turn_loop

STUBBORN = """[program:stubborn]
command=/bin/sh -c "trap '' TERM; printf 'bell \\007 byte \\377 end\\n'; while :; do sleep 0.1; done"
stopwaitsecs=3
startsecs=0
killasgroup=true
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("rpc")
    with Daemon(
        folder, "[program:sleeper]\ncommand=/bin/sleep 100000\n[program:off]\ncommand=/bin/true\nautostart=false\n"
    ) as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


def proxy(daemon: Daemon) -> xmlrpc.client.ServerProxy:
    return xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket))


def post(daemon: Daemon, body: bytes, path: str = "/RPC2", method: str = "POST") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(20)
    try:
        connection.sock.connect(str(daemon.socket))
        connection.request(method, path, body, {"Content-Type": "text/xml"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def call_of(name: str, *values: str) -> bytes:
    params = "".join(f"<param><value>{value}</value></param>" for value in values)
    return f"<methodCall><methodName>{name}</methodName><params>{params}</params></methodCall>".encode()


# --- XML ----------------------------------------------------------------------------------------------------------

PLAIN = (
    st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("C",)), max_size=20)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcXYZ", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.thorough
@given(st.lists(VALUES, max_size=3))
def test_calls_of_the_standard_client_are_parsed(values: list[object]):
    body = xmlrpc.client.dumps(tuple(values), "supervisor.x")

    assert parse_call(body.encode()) == ("supervisor.x", values)


@given(VALUES)
def test_answers_are_parsed_by_the_standard_client(value: object):
    ((read,), _) = xmlrpc.client.loads(response(value))  # type: ignore[arg-type]

    assert read == value


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_can_be_answered(text: str):
    ((read,), _) = xmlrpc.client.loads(response(text))

    assert isinstance(read, str)
    with pytest.raises(xmlrpc.client.Fault):
        xmlrpc.client.loads(fault_response(30, text))


def test_sizes_beyond_32_bits_reach_the_client():
    assert xmlrpc.client.loads(response([2**40, -(2**31)]))[0] == ([2**40, -(2**31)],)


def test_bytes_are_no_list_of_numbers() -> None:
    with pytest.raises(TypeError, match="has no type for b'ab'"):
        response(b"ab")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<methodCall/>",
        b"<methodResponse><methodName>a</methodName></methodResponse>",
        b"<methodCall><methodName></methodName></methodCall>",
        call_of("a", "<int>x</int>"),
        call_of("a", "<int>" + "9" * 30 + "</int>"),
        call_of("a", "<int>٣</int>"),
        call_of("a", "<boolean>2</boolean>"),
        call_of("a", "<base64>AAA</base64>"),
        call_of("a", "<base64>h\xe9</base64>"),
        call_of("a", "<array><data><string>x</string></data></array>"),
        call_of("a", "<struct><member><name>x</name></member></struct>"),
        call_of("a", "<int>1</int><int>2</int>"),
        call_of("a", "<array><data><value>" * (MAX_DEPTH + 1) + "</value></data></array>" * (MAX_DEPTH + 1)),
        call_of("a", "<array><data><value>" * 20_000 + "</value></data></array>" * 20_000),
        b"<!DOCTYPE methodCall><methodCall><methodName>a</methodName></methodCall>",
        b'<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><methodCall><methodName>&b;</methodName></methodCall>',
        b'<!DOCTYPE m [<!ENTITY f SYSTEM "file:///etc/passwd">]><methodCall><methodName>&f;</methodName></methodCall>',
        b'<?xml version="1.0" encoding="nonsense"?><methodCall><methodName>a</methodName></methodCall>',
        b"\xff\xfe<\x00m\x00>\x00",
    ],
)
def test_body_that_is_no_call_is_refused(body: bytes):
    with pytest.raises(MalformedXml):
        parse_call(body)


@pytest.mark.fuzz
@cases(2000)
@given(st.binary(max_size=200) | st.text("<>/&;!?[]\"'=methodCallnamvueprisctg 019", max_size=200).map(str.encode))
def test_any_body_is_a_call_or_refused(body: bytes):
    try:
        parse_call(body)
    except MalformedXml as error:
        assert str(error)


# --- the daemon ---------------------------------------------------------------------------------------------------

HARMLESS = sorted({*METHODS, MULTICALL} - {"supervisor.shutdown", "supervisor.restart"})
ARGUMENTS = st.sampled_from(["off", "nope", "off:*", "", "CONT", 0, -1, 2**31 - 1, True, 1.5, []]) | VALUES


@pytest.mark.integration
@pytest.mark.fuzz
@cases(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.binary(max_size=80).map(lambda junk: call_of("supervisor.getPID") + junk))
def test_any_body_leaves_the_daemon_serving(daemon: Daemon, body: bytes):
    status, _ = post(daemon, body)

    assert status in (200, 400)
    assert proxy(daemon).supervisor.getPID() == daemon.process.pid  # type: ignore[union-attr]


@pytest.mark.integration
@pytest.mark.fuzz
@cases(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(HARMLESS), st.lists(ARGUMENTS, max_size=4))
def test_any_arguments_get_a_result_or_a_fault_of_supervisors(daemon: Daemon, name: str, arguments: list[object]):
    if "All" in name and not name.startswith("supervisor.get"):
        arguments = [*arguments, "one too many", 2]
    status, body = post(daemon, xmlrpc.client.dumps(tuple(arguments), name).encode())

    assert status == 200
    try:
        xmlrpc.client.loads(body)
    except xmlrpc.client.Fault as fault:
        assert "internal error" not in fault.faultString
    assert daemon.status("sleeper")["state"] == "RUNNING"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/RPC2", 400),
        ("PUT", "/RPC2", 400),
        ("POST", "/RPC2", 400),
        ("POST", "/logtail/sleeper", 400),
        ("GET", "/logtail/nope", 404),
        ("GET", "/logtail/sleeper/nope", 404),
        ("GET", "/logtail/..%2f..%2fetc%2fpasswd", 404),
    ],
)
def test_wrong_requests_get_supervisors_status(daemon: Daemon, method: str, path: str, status: int):
    assert post(daemon, b"", path, method)[0] == status


@pytest.mark.integration
def test_a_body_without_a_length_is_refused(daemon: Daemon):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.socket))
        connection.sendall(b"POST /RPC2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert b" 411 " in connection.recv(4096)


@pytest.mark.integration
def test_a_body_that_is_too_large_is_refused(daemon: Daemon):
    assert post(daemon, call_of("a", "x" * 2_000_000))[0] == 413


@pytest.mark.integration
def test_web_pages_are_refused(daemon: Daemon):
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request("POST", "/RPC2", call_of("supervisor.getPID"), {"Origin": "https://example.org"})

    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.integration
def test_while_leaving_it_can_be_watched_but_not_changed(tmp_path: Path):
    with Daemon(tmp_path, STUBBORN.replace("stopwaitsecs=3", "stopwaitsecs=60")) as daemon:
        pid = daemon.until_state("stubborn", "RUNNING")["pid"]
        log = Path(daemon.status("stubborn")["stdout_logfile"])
        daemon.until(lambda: b"end" in content(log), "it ignores SIGTERM")
        server = proxy(daemon).supervisor
        assert server.shutdown() is True
        daemon.until(lambda: server.getState()["statecode"] == -1, "it leaves")

        with pytest.raises(xmlrpc.client.Fault, match="SHUTDOWN_STATE") as refused:
            server.startProcess("stubborn")

        assert refused.value.faultCode == 6
        assert server.getProcessInfo("stubborn")["statename"] == "STOPPING"
        assert [
            fault["faultCode"] for fault in proxy(daemon).system.multicall([{"methodName": "supervisor.shutdown"}])
        ] == [6]
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("method", ["stopProcess", "stopAllProcesses"])
def test_program_between_stop_and_restart_can_be_stopped(tmp_path: Path, method: str):
    unwell = "healthcheck_command=/bin/false\nhealthcheck_interval=0.1\nhealthcheck_retries=1\n"
    with Daemon(tmp_path, STUBBORN.replace("stopwaitsecs=3", "stopwaitsecs=60") + unwell) as daemon:
        pid = daemon.until_state("stubborn", "STOPPING")["pid"]
        server = proxy(daemon).supervisor
        named = ("stubborn",) if method == "stopProcess" else ()

        getattr(server, method)(*named, False)

        os.killpg(pid, signal.SIGKILL)
        daemon.until_state("stubborn", "STOPPED")
        with pytest.raises(xmlrpc.client.Fault, match="NOT_RUNNING"):
            server.stopProcess("stubborn")


@pytest.mark.integration
@pytest.mark.slow
def test_characters_xml_can_not_hold_are_replaced_in_answers_only(tmp_path: Path):
    with Daemon(tmp_path, STUBBORN) as daemon:
        log = Path(daemon.status("stubborn")["stdout_logfile"])
        daemon.until(lambda: b"end" in content(log), "it has printed")

        text = proxy(daemon).supervisor.readProcessStdoutLog("stubborn", 0, 0)

        assert text == "bell \N{REPLACEMENT CHARACTER} byte \N{REPLACEMENT CHARACTER} end\n"
        assert log.read_bytes() == b"bell \x07 byte \xff end\n"


def waits_at_most(daemon: Daemon, body: bytes) -> tuple[float, bytes]:
    """The longest that anybody waits for an answer while this one is made, as a share of that time; and the answer."""
    began, longest = time.monotonic(), 0.0
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(post, daemon, body)
        while not asked.done():
            at = time.monotonic()
            daemon.call("pid")
            longest = max(longest, time.monotonic() - at)
    return longest / (time.monotonic() - began), asked.result()[1]


@pytest.mark.integration
@pytest.mark.slow
def test_a_log_of_which_every_character_is_written_otherwise_holds_nobody_up(tmp_path: Path):
    log = tmp_path / "escapes.log"
    log.write_bytes(b"<" * (8 << 20))
    with Daemon(tmp_path, f"[program:off]\ncommand=/bin/true\nautostart=false\nstdout_logfile={log}\n") as daemon:
        read = xmlrpc.client.dumps(("off", 0, 0), "supervisor.readProcessStdoutLog").encode()

        share, answer = waits_at_most(daemon, read)

        assert answer.count(b"&lt;") == 8 << 20
        assert share < 0.5


@pytest.mark.integration
def test_a_multicall_of_many_calls_holds_nobody_up(daemon: Daemon):
    calls = [{"methodName": "supervisor.getAllProcessInfo", "params": []}] * 3000
    programs = len(proxy(daemon).supervisor.getAllProcessInfo())  # calls with any arguments may have removed one

    share, answer = waits_at_most(daemon, xmlrpc.client.dumps((calls,), "system.multicall").encode())

    assert programs >= 1
    assert answer.count(b"<name>statename</name>") == 3000 * programs
    assert share < 0.5


@pytest.mark.integration
def test_multicall_answers_are_bounded_and_the_rest_is_refused(tmp_path: Path):
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * (6 << 20))
    with Daemon(tmp_path, f"[program:off]\ncommand=/bin/true\nautostart=false\nstdout_logfile={log}\n") as daemon:
        read = {"methodName": "supervisor.readProcessStdoutLog", "params": ["off", 0, 0]}

        results = proxy(daemon).system.multicall([read] * 100)

        assert [len(result) for result in results[:3]] == [6 << 20] * 3
        assert {fault["faultCode"] for fault in results[3:]} == {30}


SILENT_USERS = """
import pathlib, pwd, time
ask = pwd.getpwuid
def getpwuid(uid):
    while pathlib.Path({silent!r}).exists():
        time.sleep(0.01)
    return ask(uid)
pwd.getpwuid = getpwuid
"""


@pytest.mark.integration
def test_a_user_database_that_does_not_answer_holds_nobody_up(tmp_path: Path):
    silent = tmp_path / "silent"
    (tmp_path / "sitecustomize.py").write_text(SILENT_USERS.format(silent=str(silent)))
    python_path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    program = f"[program:sleeper]\ncommand=/bin/sleep 100000\nuser={os.geteuid()}\n"
    with Daemon(tmp_path, program, environment={"PYTHONPATH": python_path}) as daemon, ThreadPoolExecutor() as pool:
        daemon.until_state("sleeper", "RUNNING")
        silent.touch()
        try:
            asked = pool.submit(proxy(daemon).supervisor.getAllConfigInfo)
            answered = [pool.submit(daemon.call, "pid") for _ in range(20)]
            done, _ = wait(answered, timeout=20)
        finally:
            silent.unlink()

        assert done == set(answered)
        assert [info["uid"] for info in asked.result()] == [os.geteuid()]


@pytest.mark.integration
def test_a_stream_ends_its_work_when_the_client_goes(daemon: Daemon):
    assert daemon.process is not None
    pid = daemon.process.pid
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.socket))
        connection.sendall(b"GET /mainlogtail HTTP/1.1\r\nHost:\r\nAccept-Encoding: chunked\r\n\r\n\r\n")
        answer = connection.recv(65536)
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"Content-Type: text/plain;charset=utf-8" in answer
    daemon.until(lambda: sleeps(pid), "nobody looks at the log any more")


def sleeps(pid: int) -> bool:
    """Whether the daemon is idle for a second; a followed file is looked at five times in that time."""
    before = switches(pid)
    signal.sigtimedwait([], 1)
    return switches(pid) - before <= 2


@pytest.mark.integration
def test_a_truncated_log_is_said_in_the_stream(tmp_path: Path):
    script = "yes | head -n 3000; while :; do echo tick; sleep 0.05; done"  # it takes long to be as long again
    with Daemon(tmp_path, f'[program:ticker]\ncommand=/bin/sh -c "{script}"\n') as daemon:
        log = Path(daemon.status("ticker")["stdout_logfile"])
        daemon.until(lambda: len(content(log)) > 5000, "it has printed")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(daemon.socket))
            connection.sendall(b"GET /logtail/ticker:ticker/stdout HTTP/1.1\r\nHost:\r\n\r\n")
            answer = connection.recv(65536)
            proxy(daemon).supervisor.clearProcessLogs("ticker")
            pieces = 0
            while b"==> File truncated <==\n" not in answer and pieces < 100:
                answer += connection.recv(65536)
                pieces += 1

        assert b"==> File truncated <==\n" in answer


CALL_AS = """
import http.client, os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect({path!r})
connection.request("POST", "/RPC2", sys.argv[1])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.mark.integration
@needs_root
def test_another_user_may_look_but_not_change(folder: Path):
    with Daemon(folder, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        daemon.socket.chmod(0o777)

        def ask(method: str, *arguments: object) -> str:
            script = CALL_AS.format(uid=NOBODY, path=str(daemon.socket))
            body = xmlrpc.client.dumps(arguments, method)
            return subprocess.run(
                [sys.executable, "-c", script, body], capture_output=True, text=True, check=True
            ).stdout

        looked = ask("supervisor.getAllProcessInfo")
        refused = ask("supervisor.stopProcess", "sleeper")
        smuggled = ask("system.multicall", [{"methodName": "supervisor.stopProcess", "params": ["sleeper"]}])

        assert looked.startswith("200") and "sleeper" in looked
        assert refused.startswith("403") and "may read but not change" in refused
        assert smuggled.startswith("200") and "FAILED" in smuggled
        assert alive(pid)
        assert os.geteuid() == 0


@pytest.mark.hostile
async def test_calls_of_a_multicall_wait_for_their_turns() -> None:
    turns: list[int] = []

    async def take_turn() -> None:
        turns.append(1)

    calls: Any = [{"methodName": "system.listMethods", "params": []} for _ in range(5)]
    context, caller = cast(Any, None), Caller()

    results = await methods.call(context, caller, methods.MULTICALL, [calls], take_turn)

    assert len(results) == len(turns) == 5  # type: ignore[arg-type]


@pytest.mark.hostile
@pytest.mark.parametrize(("refusal", "made"), [("may only read", False), (None, True)], ids=["reader", "owner"])
async def test_a_client_that_disconnects_leaves_work_behind_only_if_it_may_change_things(
    refusal: str | None, made: bool
) -> None:
    """Whoever may connect could leave 70,000 calls in each request, and send the next."""
    turns: list[int] = []

    async def take_turn(request: web.Request) -> None:
        turns.append(1)
        if len(turns) == 3:
            client.cancel()
        await asyncio.sleep(0)

    answers, no_daemon = web.Routes(), cast(Any, None)
    routes.add_routes(answers, no_daemon, lambda request: Caller(refusal=refusal), take_turn)
    body = xmlrpc.client.dumps(([{"methodName": "system.listMethods", "params": []}] * 100,), MULTICALL).encode()
    request = web.Request("POST", "/RPC2", {}, {"content-length": "1"}, no_daemon, None, body=body)

    client = asyncio.create_task(answers.dispatch(request))
    await asyncio.wait([client])
    await turn_loop(1000)

    assert client.cancelled()
    assert (len(turns) == 100) == made
