"""The stream of events: whole lines of JSON, filters, cursors, watchers that are slow or away."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jsonschema import Draft202012Validator

from supervisor.control.openapi import description
from supervisor.runner.listeners.event_log import KEPT
from supervisor.runner.program.publishing import OWN_AT_ONCE
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, job
from tests.system.test_listeners import tell

CTL = (sys.executable, "-m", "supervisor.ctl.main")
PROGRAMS = (
    "[program:p]\ncommand=/bin/sleep 100000\nstartsecs=0\n"
    "[program:q]\ncommand=/bin/sleep 100000\nstartsecs=0\nnumprocs=2\nprocess_name=%(process_num)d\n"
)


def connected(daemon: Daemon) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(60)
    connection.sock.connect(str(daemon.socket))
    return connection


def read(daemon: Daemon, **query: str) -> list[dict[str, Any]]:
    """What is kept of it."""
    connection = connected(daemon)
    connection.request("GET", f"/api/v1/events?{urlencode({'since': 'start', 'follow': '0', **query})}")
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    assert answer.status == 200, content
    return [json.loads(line) for line in content.splitlines()]


def named(events: list[dict[str, Any]]) -> list[str]:
    return [f"{event['event'].removeprefix('PROCESS_STATE_')} {event['program'] or ''}".strip() for event in events]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, PROGRAMS) as daemon:
        for name in ("p", "q:0", "q:1"):
            daemon.until_state(name, "RUNNING")
        yield daemon


def test_events_are_kept_filtered_and_continued_from_a_cursor(daemon: Daemon):
    daemon.call("stop", name="p")

    mine = read(daemon, program="p", kind="PROCESS_STATE")
    assert named(mine) == ["STARTING p", "RUNNING p", "STOPPING p", "STOPPED p"]
    assert named(read(daemon, program="p", since=mine[1]["cursor"])) == ["STOPPING p", "STOPPED p"]
    assert sorted(named(read(daemon, program="q:*", kind="process_state_running,CHECKPOINT"))) == [
        "RUNNING q:0",
        "RUNNING q:1",
    ]
    assert named(read(daemon, kind="SUPERVISOR_STATE_CHANGE")) == ["SUPERVISOR_STATE_CHANGE_RUNNING"]
    serials = [each["serial"] for each in read(daemon)]
    assert serials == sorted(set(serials))
    schema = description()["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]["application/x-ndjson"]
    for each in read(daemon):
        assert not list(Draft202012Validator(schema["schema"]).iter_errors(each))


@pytest.mark.parametrize("query", [{"since": "x"}, {"since": "a-b"}, {"kind": "NOPE"}, {"since": "-1"}])
def test_unknown_event_requests_are_refused(daemon: Daemon, query: dict[str, str]):
    connection = connected(daemon)
    connection.request("GET", f"/api/v1/events?{urlencode(query)}")
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    connection.close()

    assert (answer.status, error["code"]) == (400, "BAD_ARGUMENTS")


def test_a_cursor_of_another_daemon_gives_all_that_is_kept_and_says_so(daemon: Daemon):
    events = read(daemon, since="deadbeef-3")

    assert (events[0]["event"], events[0]["count"]) == ("EVENTS_MISSED", None)
    assert named(events[1:]) == named(read(daemon))


@pytest.mark.slow
def test_a_watcher_that_reads_nothing_holds_nobody_up_and_is_told_what_it_missed(daemon: Daemon):
    connection = connected(daemon)
    assert connection.sock is not None
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.request("GET", "/api/v1/events?kind=REMOTE_COMMUNICATION")
    answer = connection.getresponse()

    for part in range(0, KEPT + 2000, 500):  # more than ring and socket hold
        multicall = [
            {"methodName": "supervisor.sendRemoteCommEvent", "params": ["t", f"{part + number} " + "x" * 500]}
            for number in range(500)
        ]
        _multicall(daemon, multicall)
    tell(daemon, "last")

    seen, missed = 0, 0
    for line in answer:
        event = json.loads(line)
        if event["event"] == "EVENTS_MISSED":
            missed += event["count"]
        else:
            seen += 1
            if event["data"] == "last":
                break
    connection.close()
    assert missed > 0
    assert seen + missed == KEPT + 2000 + 1
    assert daemon.status("p")["state"] == "RUNNING"


def _multicall(daemon: Daemon, calls: list[dict[str, Any]]) -> None:
    with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
        assert all(result is True for result in proxy.system.multicall(calls))


def test_supervisorctl_shows_them_and_goes_on_with_the_next_daemon(daemon: Daemon):
    command = [*CTL, "-c", str(daemon.conf), "--json", "events", "--since", "start", "p", "--kind", "PROCESS_STATE"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None

        def until(event: str) -> dict[str, Any]:
            for line in client.stdout or ():
                if (found := json.loads(line))["event"] == event:
                    return dict(found)
            raise AssertionError(f"the stream ended before {event}")

        first = until("PROCESS_STATE_RUNNING")
        daemon.die()
        daemon.start()
        assert until("EVENTS_MISSED")["count"] is None
        again = until("PROCESS_STATE_RUNNING")
        client.send_signal(signal.SIGINT)
        _, told = client.communicate(timeout=30)

    assert client.returncode == 0
    assert first["schema"] == 1
    assert "trying again" in told
    assert again["pid"] == first["pid"]  # it was taken over
    assert again["cursor"].partition("-")[0] != first["cursor"].partition("-")[0]


def test_supervisorctl_ends_where_it_is_not_to_follow(daemon: Daemon):
    def ctl(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*CTL, "-c", str(daemon.conf), "events", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    status, text = ctl("--no-follow", "p")
    assert status == 0
    assert [line.split()[2:5] for line in text.splitlines()][-2:] == [
        ["PROCESS_STATE_STARTING", "p", "from"],
        ["PROCESS_STATE_RUNNING", "p", "from"],
    ]
    assert ctl("--kind", "NOPE")[0] == 1
    assert ctl("--since")[1].startswith("Error: --since requires a value\n")
    assert ctl("--bogus")[1].startswith("Error: bad argument --bogus\n")


def test_checkpoints_and_notices_are_told(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=1_000_000, EVERY=1_000_000)) as daemon:
        daemon.until_step("digits", 1)
        saved = daemon.call("checkpoint", name="digits")
        daemon.call("drill", name="digits", in_s=3600)

        events = read(daemon, kind="CHECKPOINT,NOTICE", program="digits")
        assert {"CHECKPOINT_COMMITTED digits", "NOTICE_RECEIVED digits"} <= set(named(events))
        assert saved["step"] in [event.get("step") for event in events]


MARKS = """
import os
while True:
    os.write(1, b"<!--XSUPERVISOR:BEGIN--><!--XSUPERVISOR:END-->" * 1000)
"""


@pytest.mark.hostile
def test_a_program_that_causes_events_without_end_pushes_out_those_of_no_other(tmp_path: Path):
    """All programs share what is remembered for those who watch: it held nothing else within a second."""
    (tmp_path / "marks.py").write_text(MARKS)
    floods = f"[program:flood]\ncommand={sys.executable} {tmp_path}/marks.py\nstdout_capture_maxbytes=1000\n"
    with Daemon(tmp_path, PROGRAMS + floods) as daemon:
        daemon.until_state("p", "RUNNING")
        daemon.until(lambda: len(read(daemon, program="flood")) >= OWN_AT_ONCE + 5, "its words are published")

        assert named(read(daemon, program="p", kind="PROCESS_STATE")) == ["STARTING p", "RUNNING p"]
        assert len(read(daemon, program="flood")) < 3 * OWN_AT_ONCE
