"""Commands that meet: none hangs, none leaves two workers, none forgets what was wanted."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.reading import alive, command_of
from tests.system.harness import Daemon, Refused, job


class Call:
    """A command in a thread of its own; `result` waits for its end."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            self._outcome = act()
        except Refused as refused:
            self._outcome = refused

    def result(self, patience_s: float = 20) -> Any:
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "the command never returned"
        return self._outcome


def workers(daemon: Daemon) -> int:
    assert daemon.process is not None
    own = psutil.Process(daemon.process.pid)
    # the server of forks has the daemon's command, the logger begins as a child, helpers that just ended have none
    return sum(
        command not in ("", command_of(own)) and "supervisor.host.logs.logger" not in command
        for command in map(command_of, own.children())
    )


SLOW = {"STEPS": 100_000, "EVERY": 100_000, "FLUSH_S": 2}


def flushing(daemon: Daemon) -> None:
    daemon.until(lambda: daemon.status("count")["state"] == "FLUSHING", "it flushes")


@pytest.mark.slow
def test_stop_returns_though_somebody_starts_the_program_during_its_flush(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, **SLOW)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        stop = Call(lambda: daemon.call("stop", name="count"))
        flushing(daemon)

        daemon.call("start", name="count")

        told = stop.result()
        assert (told["name"], told["is_loss"]) == ("count", False)
        assert told["text"] == f"stopped at step {told['step']}, saved in {told['checkpoint']}"
        again = daemon.status("count")
        assert again["state"] == "RUNNING"
        assert again["pid"] != first
        assert workers(daemon) == 1


def test_start_during_the_flush_of_an_update_neither_hangs_it_nor_makes_a_second_worker(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, **SLOW)) as daemon:
        daemon.until_step("count", 5)
        daemon.write(job("count", tmp_path, **{**SLOW, "STEPS": 99_999}))
        update = Call(lambda: daemon.call("update"))
        flushing(daemon)

        start = Call(lambda: daemon.call("start", name="count"))

        assert [action["action"] for action in update.result()["actions"]] == ["stopped", "updated"]
        start.result()
        daemon.until_step("count", 6)
        assert workers(daemon) == 1


@pytest.mark.slow
def test_shutdown_during_an_update_forgets_nothing(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, **SLOW)) as daemon:
        daemon.until_step("count", 5)
        daemon.write(job("count", tmp_path, **{**SLOW, "STEPS": 99_999}))
        Call(lambda: daemon.call("update"))
        flushing(daemon)
        daemon.stop()

        daemon.start()

        daemon.until_step("count", 6)


def test_program_that_its_operator_stopped_is_updated_and_stays_stopped(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        daemon.until_step("count", 5)
        daemon.call("stop", name="count")
        daemon.write(job("count", tmp_path, STEPS=99_999))

        daemon.call("update")

        assert daemon.status("count")["state"] == "STOPPED"


@pytest.mark.slow
def test_update_flushes_side_by_side(tmp_path: Path):
    names = [f"job{number}" for number in range(4)]
    with Daemon(tmp_path, "".join(job(name, tmp_path, **SLOW) for name in names)) as daemon:
        for name in names:
            daemon.until_step(name, 5)
        daemon.write("".join(job(name, tmp_path, **{**SLOW, "STEPS": 99_999}) for name in names))

        daemon.call("update")

        side_by_side = [*(4 * ["flush.asked"]), *(4 * ["checkpoint.committed"])]
        assert daemon.events(*set(side_by_side)) == [*side_by_side, *side_by_side], "training on, then to stop"


def test_reload_with_an_unusable_file_is_refused_and_everything_goes_on(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        pid = daemon.until_step("count", 5)["pid"]
        daemon.write("[program:count]\ncomand=x\n")

        with pytest.raises(Refused) as refused:
            daemon.call("reload")

        assert refused.value.code == "CANT_REREAD"
        assert daemon.status("count")["pid"] == pid


def test_second_daemon_does_not_take_the_socket_of_the_first(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        other = tmp_path / "other"
        other.mkdir()
        second = Daemon(other, "")
        second.conf.write_text(second.conf.read_text().replace(str(second.socket), str(daemon.socket)))

        with pytest.raises(AssertionError, match="exited with 71") as refused:
            second.start()

        assert "another program listens there" in str(refused.value)
        assert daemon.status("count")["name"] == "count"


def test_log_follower_that_disconnects_is_dropped(tmp_path: Path):
    with Daemon(tmp_path, "[program:quiet]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.until(lambda: Path(daemon.status("quiet")["stdout_logfile"]).exists(), "there is a log")
        daemon.until_state("quiet", "RUNNING")
        before = daemon.descriptors()
        for _ in range(20):
            daemon.follow_and_leave("quiet")

        daemon.until(lambda: daemon.descriptors() <= before, "the connections are closed")


def test_worker_that_the_ledger_never_heard_of_is_ended_before_the_next_one_starts(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.die()
        with sqlite3.connect(tmp_path / "state" / "ledger.sqlite3") as ledger:
            ledger.execute("DELETE FROM attempts")  # as if the daemon had died between the spawn and the record

        daemon.start()

        second = daemon.until_step("count", 6)
        assert not alive(first)
        assert second["job"]["attempt"] == 2
        assert workers(daemon) == 1


def test_grandchild_that_left_the_session_goes_with_its_worker(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000, GRANDCHILD=1)) as daemon:
        worker = psutil.Process(daemon.until_step("count", 5)["pid"])
        (grandchild,) = worker.children()

        worker.kill()

        daemon.until(lambda: not alive(grandchild.pid), "the grandchild is gone")
        daemon.until(lambda: daemon.until_step("count", 6)["pid"] != worker.pid, "the next worker trains")
        assert workers(daemon) == 1
