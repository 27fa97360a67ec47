"""A worker that does not outlive its daemon: it waits for the next one, and leaves if none comes."""

import subprocess
import threading
from collections.abc import Iterator

import pytest

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol.wire.launch import DaemonIdentity
from tests.waiting import stays, wait_until
from worker.process import orphan_watch
from worker.process.orphan_watch import OrphanWatch
from worker.process.requests import PendingRequests

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    exits: list[int] = []
    monkeypatch.setattr(orphan_watch, "ORPHANED_S", 0.5)
    monkeypatch.setattr(orphan_watch, "SAVE_S", 0.0)
    monkeypatch.setattr(orphan_watch.os, "_exit", lambda code: (exits.append(code), threading.Event().wait()))
    return exits


@pytest.fixture
def daemons() -> Iterator[list["subprocess.Popen[bytes]"]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def identity(process: "subprocess.Popen[bytes]") -> DaemonIdentity:
    return DaemonIdentity(process.pid, read_start_time(process.pid) or 0)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def test_it_saves_and_leaves_when_no_other_daemon_comes(
    daemons: list["subprocess.Popen[bytes]"], soon: list[int]
) -> None:
    requests = PendingRequests()
    OrphanWatch(identity(daemons[0]), requests).start()
    stays(lambda: not requests.stop_requested, "it trains on", 0.7)
    end(daemons[0])
    wait_until(lambda: soon == [143], "it leaves")
    assert requests.stop_requested


def test_the_next_daemon_takes_it_over_and_is_watched_too(
    daemons: list["subprocess.Popen[bytes]"], soon: list[int]
) -> None:
    requests = PendingRequests()
    watch = OrphanWatch(identity(daemons[0]), requests)
    watch.start()
    end(daemons[0])
    watch.on_adopted(identity(daemons[1]))
    stays(lambda: not (requests.stop_requested or soon), "it trains on", 0.7)
    end(daemons[1])
    wait_until(lambda: soon == [143], "it leaves")


def test_a_pid_that_was_used_again_is_no_daemon(daemons: list["subprocess.Popen[bytes]"], soon: list[int]) -> None:
    OrphanWatch(DaemonIdentity(daemons[0].pid, 1), PendingRequests()).start()
    wait_until(lambda: soon == [143], "it leaves")
