"""Commands that are told what happened: real scripts, and those of docs/hooks.md."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.host.children import HOOK_VARIABLES
from supervisor.host.hooks import QUEUED, SHOWN_BYTES, HookEvent, HookRunner
from tests.places import ROOT
from tests.reading import alive, content
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PAGE = (ROOT / "docs" / "hooks.md").read_text()
PATIENCE_S = 60.0
TOLD = {"event": "failed", "program": "digits", "host": "h", "attempt": 3}


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def of_page(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found[-1])


def happening(*command: object, **facts: int | str) -> HookEvent:
    return HookEvent(tuple(map(str, command)), "failed", "digits", {**TOLD, **facts})


@pytest.fixture
def hooks() -> Iterator[HookRunner]:
    hooks = HookRunner(PATIENCE_S)
    yield hooks
    hooks.close(0.0)


def test_a_command_gets_the_facts_and_a_bare_environment_in_order(hooks: HookRunner, tmp_path: Path):
    command = script(tmp_path, "hook.sh", f"#!/bin/sh\ncat >> {tmp_path}/told\nenv > {tmp_path}/env\n")

    hooks.run_hook(happening(command, number=1))
    hooks.run_hook(happening(command, number=2))
    hooks.close(PATIENCE_S)

    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told == [{**TOLD, "number": 1}, {**TOLD, "number": 2}]
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {"PATH", "LANG", "STEPKEEPER_EVENT", "STEPKEEPER_PROGRAM"} <= names
    assert not names & {"HOME", "PYTHONPATH", "USER"}
    assert hooks.failure_summary is None


def test_a_hook_s_variables_are_its_own_where_the_daemon_has_such(
    hooks: HookRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a daemon has that a hook of another one started."""
    for name in HOOK_VARIABLES:
        monkeypatch.setenv(name, "the daemon's")
    command = script(tmp_path, "hook.sh", f"#!/bin/sh\necho $STEPKEEPER_EVENT $STEPKEEPER_PROGRAM > {tmp_path}/told\n")

    hooks.run_hook(happening(command))
    hooks.close(PATIENCE_S)

    assert (tmp_path / "told").read_text() == "failed digits\n"


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each group that is killed: whether its leader still has its number, or another may have it."""
    killed, kill_group = list[str](), os.killpg

    def note_and_kill(group: int, number: int) -> None:
        try:
            os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            killed.append("nobody, or a stranger")
        else:
            killed.append("a child")
            kill_group(group, number)

    monkeypatch.setattr(os, "killpg", note_and_kill)
    return killed


@pytest.mark.hostile
def test_a_command_that_takes_too_long_is_killed_before_its_number_is_free(killed: list[str]):
    hooks = HookRunner(timeout_s=0.1)

    hooks.run_hook(happening("/bin/sleep", 1000))
    wait_until(lambda: hooks.failed, "it is given up")

    assert killed == ["a child"]
    hooks.close(0.0)


@pytest.mark.hostile
def test_a_command_that_has_just_ended_is_not_killed_at_the_daemon_s_end(
    hooks: HookRunner, killed: list[str], monkeypatch: pytest.MonkeyPatch
):
    reap, closed = subprocess.Popen.wait, threading.Event()

    def end_daemon_once_reaped(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        status = reap(process, timeout)
        ending = threading.Thread(target=hooks.close, args=(0.0,))
        ending.start()
        ending.join()
        closed.set()
        return status

    monkeypatch.setattr(subprocess.Popen, "wait", end_daemon_once_reaped)
    hooks.run_hook(happening("/bin/true"))
    assert closed.wait(PATIENCE_S)

    assert killed == []


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path):
    hooks = HookRunner(timeout_s=1.0)
    command = script(tmp_path, "slow.sh", f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/child.new\n"
                     f"mv {tmp_path}/child.new {tmp_path}/child\nwait\n")  # fmt: skip

    hooks.run_hook(happening(command))
    wait_until(lambda: hooks.failed, "it is given up")

    if (tmp_path / "child").exists():  # a machine that is too busy to start a shell within the second kills that
        child = int((tmp_path / "child").read_text())
        wait_until(lambda: not alive(child), "its child is gone")
    assert "1 hook command failed" in str(hooks.failure_summary)
    hooks.close(0.0)


def test_of_what_a_command_that_failed_printed_the_last_is_logged(hooks: HookRunner, tmp_path: Path):
    """Also of more than a pipe holds, which nothing of it fills."""
    text = "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x >&2\necho ' no such host' >&2\nexit 3\n"
    command = script(tmp_path, "loud.sh", text)

    with capture_logs() as logged:
        hooks.run_hook(happening(command))
        hooks.close(PATIENCE_S)

    (error,) = [str(record["error"]) for record in logged if record["event"] == "hook.failed"]
    assert error.startswith("exit status 3: xxx")
    assert error.endswith("x no such host")
    assert len(error) < SHOWN_BYTES + 20


@pytest.mark.hostile
def test_a_program_with_many_events_keeps_those_of_no_other_away(hooks: HookRunner, tmp_path: Path):
    holding, started = tmp_path / "holding", tmp_path / "started"
    holding.touch()
    command = script(
        tmp_path, "hook.sh",
        f'#!/bin/sh\ntouch {started}\nwhile [ -e {holding} ]; do sleep 0.01; done\n'
        f'echo "$STEPKEEPER_PROGRAM" >> {tmp_path}/told\n',
    )  # fmt: skip
    event = happening(command)

    for _ in range(10 * QUEUED):
        hooks.run_hook(replace(event, program="alice"))
    hooks.run_hook(replace(event, program="bob"))
    hooks.run_hook(replace(event, program="carol"))
    wait_until(started.exists, "the first one runs")
    holding.unlink()
    wait_until(lambda: len(content(tmp_path / "told").splitlines()) >= 4, "the others had their turns")

    told = content(tmp_path / "told").decode().splitlines()
    assert told[1:4] in (["alice", "bob", "carol"], ["bob", "carol", "alice"])
    assert hooks.dropped >= 9 * QUEUED - 1


def test_hook_events_beyond_the_queue_are_dropped_and_counted(hooks: HookRunner, tmp_path: Path):
    os.mkfifo(tmp_path / "gate")
    command = script(tmp_path, "hook.sh", f"#!/bin/sh\nread line < {tmp_path}/gate\n")

    began = time.monotonic()
    for _ in range(QUEUED + 11):  # at most one of them runs
        hooks.run_hook(happening(command))

    assert time.monotonic() - began < PATIENCE_S / 2
    assert hooks.dropped in (10, 11)
    assert "events dropped" in str(hooks.failure_summary)


@pytest.mark.parametrize("command", ["/no/such/command", "/etc/passwd"])
def test_a_command_that_cannot_run_is_a_failure(hooks: HookRunner, command: str):
    hooks.run_hook(happening(command))
    wait_until(lambda: hooks.failed, "it is told")

    assert hooks.failed == 1


def test_without_a_place_for_its_words_a_command_is_run_all_the_same(
    hooks: HookRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # as on a full disk: no file can be made there
    command = script(tmp_path, "hook.sh", f"#!/bin/sh\necho bad >&2\ncat >> {tmp_path}/told\n")

    hooks.run_hook(happening(command))
    wait_until(lambda: content(tmp_path / "told"), "it is told")

    assert hooks.failure_summary is None


def test_hook_event_without_a_thread_runs_with_the_next_one(
    hooks: HookRunner, tmp_path: Path, no_threads: pytest.MonkeyPatch
):
    command = script(tmp_path, "hook.sh", f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    hooks.run_hook(happening(command, number=1))

    no_threads.undo()
    hooks.run_hook(happening(command, number=2))
    wait_until(lambda: content(tmp_path / "told").count(b"\n") == 2, "both are told")

    assert [json.loads(line)["number"] for line in content(tmp_path / "told").splitlines()] == [1, 2]
    assert hooks.failure_summary is None


def test_a_command_that_fails_does_not_keep_the_next_from_running(hooks: HookRunner, tmp_path: Path):
    hooks.run_hook(happening("/bin/false"))
    hooks.run_hook(happening(script(tmp_path, "hook.sh", f"#!/bin/sh\ntouch {tmp_path}/ran\n")))
    hooks.close(PATIENCE_S)

    assert hooks.failed == 1
    assert (tmp_path / "ran").exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_s_web_hook_posts_the_event(hooks: HookRunner, tmp_path: Path):
    got: list[tuple[str | None, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got.append((self.headers["Content-Type"], self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        command = script(tmp_path, "webhook.sh", of_page("sh"))
        hooks.run_hook(happening(command, f"http://127.0.0.1:{server.server_port}/trained"))
        hooks.close(PATIENCE_S)
    finally:
        server.shutdown()
        server.server_close()

    assert hooks.failure_summary is None
    assert [(kind, json.loads(body)) for kind, body in got] == [("application/json", TOLD)]
