"""The daemon dies or is reloaded: its workers go on, and the next daemon goes on with them."""

import contextlib
import ctypes
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.ctl.client import Client, Refusal, Unreachable
from supervisor.host.processes import marks
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from supervisor.signals import SAME_SIGNAL_S
from tests.control.test_endpoints import free_port
from tests.reading import alive, records
from tests.system.both import UnixTransport
from tests.system.harness import PATIENCE_S, Daemon, Refused, job, tell_to_fail

ENDLESS = 100_000
KILLS = int(os.environ.get("DAEMON_KILLS", "8"))
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def orphans() -> Iterator[Callable[[int], int]]:
    """Workers of a dead daemon become this process' children, which reaps them when the test says so.

    So it doesn't depend on whether the first process of a container reaps anybody. Gives what reaps one.
    """
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield lambda pid: os.waitpid(pid, 0)[1]
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, 0)


def history(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    return list(daemon.call("history", name=name)["attempts"])


def causes(daemon: Daemon, name: str) -> list[str | None]:
    return [attempt["cause"] for attempt in history(daemon, name)]


def committed(daemon: Daemon, name: str) -> list[int]:
    return [checkpoint.step for checkpoint in selection.committed_checkpoints(daemon.folder / name)]


def ask_in_background(daemon: Daemon, command: str, **arguments: object) -> None:
    """The daemon is going to die with the command unanswered."""

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError, Refused):
            daemon.call(command, **arguments)

    threading.Thread(target=ask, daemon=True).start()


def left_silent(daemon: Daemon) -> int:
    """A worker that can't tell the next daemon, which is there now, where it stands."""
    pid = int(daemon.until_step("count", 25)["pid"])
    os.kill(pid, signal.SIGSTOP)
    daemon.die()
    daemon.start()
    return pid


def until_answering(daemon: Daemon) -> None:
    def answers() -> bool:
        try:
            return bool(daemon.call("status"))
        except OSError:
            return False

    daemon.until(answers, "it answers")


# --- the daemon dies --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_worker_trains_on_without_a_daemon_and_the_next_one_goes_on_with_it(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=50)) as daemon:
        before = daemon.until_step("count", 5)
        daemon.die()
        daemon.until(lambda: committed(daemon, "count")[:1] > [50], "it has committed meanwhile")

        daemon.start()

        after = daemon.until_state("count", "RUNNING")
        assert after["pid"] == before["pid"]
        assert after["job"]["step"] > 50
        assert abs(after["started_wall_at"] - before["started_wall_at"]) < 1.0
        daemon.until_step("count", after["job"]["step"] + 1)
        (attempt,) = history(daemon, "count")
        assert attempt["cause"] is None
        assert attempt["checkpoints"] >= 2


@pytest.mark.slow
def test_what_a_worker_saved_while_no_daemon_ran_is_in_its_history_though_it_is_dead(tmp_path: Path):
    """What it said of its saves was in its pipes, which end with it."""
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=50)) as daemon:
        worker = daemon.until_step("count", 5)["pid"]
        daemon.die()
        daemon.until(lambda: committed(daemon, "count")[:1] > [50], "it has committed meanwhile")
        os.kill(worker, signal.SIGKILL)
        daemon.until(lambda: not alive(worker), "it is dead")
        on_disk = len(committed(daemon, "count"))

        daemon.start()

        daemon.until(lambda: causes(daemon, "count")[0], "its end is recorded")
        assert history(daemon, "count")[0]["checkpoints"] >= on_disk >= 2


def test_adopted_worker_is_stopped_with_a_flush_and_its_exit_status_is_known(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)) as daemon:
        daemon.until_step("count", 5)
        daemon.die()
        daemon.start()

        daemon.call("stop", name="count")

        (attempt,) = history(daemon, "count")
        assert (attempt["cause"], attempt["exit_code"]) == ("stopped", 143)
        assert committed(daemon, "count") == [attempt["to_step"]]


@pytest.mark.slow
def test_adopted_worker_that_is_done_has_succeeded(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=300)) as daemon:
        worker = daemon.until_step("count", 5)["pid"]
        os.kill(worker, signal.SIGSTOP)  # or it might be done before the next daemon is there
        daemon.die()
        daemon.start()
        daemon.until_state("count", "ADOPTING")
        os.kill(worker, signal.SIGCONT)

        done = daemon.until_state("count", "SUCCEEDED")

        assert (done["exit_code"], done["job"]["step"], done["job"]["metrics"]) == (0, 300, {"accuracy": 1.0})
        assert causes(daemon, "count") == ["done"]


def test_adopted_worker_that_dies_is_followed_at_once_from_its_checkpoint(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=10)) as daemon:
        first = daemon.until_step("count", 25)["pid"]
        daemon.die()
        daemon.start()
        daemon.until_state("count", "RUNNING")

        os.kill(first, signal.SIGKILL)

        second = daemon.until(
            lambda: (found := daemon.status("count"))["pid"] not in (None, first) and found, "there is a new worker"
        )
        daemon.until_state("count", "RUNNING")
        assert second["job"]["attempt"] == 2
        assert [(attempt["cause"], attempt["signal"]) for attempt in history(daemon, "count")] == [
            ("crash", 9),
            (None, None),
        ]


@pytest.mark.slow
def test_worker_that_was_still_loading_gets_its_go_from_the_next_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, LOAD_S=4)) as daemon:
        first = daemon.until(lambda: daemon.status("count")["pid"], "it was started")
        os.kill(first, signal.SIGSTOP)  # however long the next daemon takes
        daemon.die()  # `go` went into a pipe that nobody has opened yet, and is gone with the daemon

        daemon.start()

        assert daemon.until_state("count", "ADOPTING", "STARTING")["wire_state"] == "STARTING"
        os.kill(first, signal.SIGCONT)
        assert daemon.until_step("count", 3)["pid"] == first
        assert daemon.status("count")["state"] == "RUNNING"
        assert causes(daemon, "count") == [None]


@pytest.mark.slow
def test_flush_that_was_asked_for_is_waited_for_by_the_next_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS, FLUSH_S=2)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        ask_in_background(daemon, "checkpoint", name="count")
        daemon.until(lambda: list((tmp_path / "count").glob("*.partial")), "it is saving")
        daemon.die()

        daemon.start()

        assert daemon.until_state("count", "FLUSHING", "RUNNING")["pid"] == first
        daemon.until(lambda: daemon.status("count")["job"]["checkpoint"], "the flush is committed")
        daemon.until_state("count", "RUNNING")
        assert history(daemon, "count")[0]["checkpoints"] == 1
        assert daemon.call("checkpoint", name="count")["step"] > committed(daemon, "count")[-1]


@pytest.mark.slow
def test_stop_is_completed_by_the_next_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS, FLUSH_S=3)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        ask_in_background(daemon, "stop", name="count")
        daemon.until(lambda: list((tmp_path / "count").glob("*.partial")), "it is saving")
        daemon.die()

        daemon.start()

        daemon.until(lambda: not alive(first), "it has left")
        daemon.until(lambda: causes(daemon, "count") != [None], "its end is booked")
        assert daemon.status("count")["state"] == "STOPPED"
        assert causes(daemon, "count") == ["stopped"]
        assert len(history(daemon, "count")) == 1
        assert len(committed(daemon, "count")) == 1


@pytest.mark.slow
def test_save_in_progress_is_committed_and_told_to_the_next_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=20, FLUSH_S=1.5)) as daemon:
        first = daemon.until_step("count", 19)["pid"]
        daemon.until(lambda: list((tmp_path / "count").glob("*.partial")), "it is saving")
        daemon.die()

        daemon.start()

        daemon.until(lambda: history(daemon, "count")[0]["checkpoints"], "the commit is in the history")
        found = daemon.status("count")
        assert (found["pid"], found["job"]["attempt"]) == (first, 1)
        assert found["job"]["checkpoint"]["step"] >= 20


@pytest.mark.slow
def test_stop_of_a_worker_that_cannot_answer_ends_it_after_the_flush_timeout(tmp_path: Path):
    keys = "flush_timeout=1\nstopwaitsecs=1"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=ENDLESS, EVERY=10)) as daemon:
        first = left_silent(daemon)

        daemon.call("stop", name="count")

        assert not alive(first)
        assert daemon.status("count")["state"] == "STOPPED"
        assert causes(daemon, "count") == ["stopped"]


def test_stop_that_waits_for_a_workers_answer_is_seen_and_a_start_takes_it_back(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "flush_timeout=60", STEPS=ENDLESS, EVERY=10)) as daemon:
        first = left_silent(daemon)

        before = daemon.until_state("count", "ADOPTING")["wire_state"]
        daemon.call("stop", name="count", wait=False)
        told = daemon.status("count")["wire_state"]
        daemon.call("start", name="count", wait=False)
        after = daemon.status("count")["wire_state"]
        os.kill(first, signal.SIGCONT)
        status = daemon.until_state("count", "RUNNING")

        assert (before, told, after) == ("STARTING", "STOPPING", "STARTING")
        assert status["pid"] == first


def test_start_that_takes_back_a_stop_returns_when_the_worker_trains(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "flush_timeout=60", STEPS=ENDLESS, EVERY=10)) as daemon:
        first = left_silent(daemon)
        daemon.call("stop", name="count", wait=False)
        threading.Timer(0.5, os.kill, (first, signal.SIGCONT)).start()

        daemon.call("start", name="count")

        assert (daemon.status("count")["state"], daemon.status("count")["pid"]) == ("RUNNING", first)


def test_plain_program_is_adopted_too(tmp_path: Path):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        first = daemon.until_state("sleeper", "RUNNING")["pid"]
        daemon.die()

        daemon.start()

        assert daemon.until_state("sleeper", "RUNNING")["pid"] == first
        os.kill(first, signal.SIGKILL)
        second = daemon.until(
            lambda: (found := daemon.status("sleeper"))["pid"] not in (None, first) and found, "it was started again"
        )
        assert second["pid"] != first


@pytest.mark.slow
def test_any_number_of_daemons_may_die_at_any_moment(tmp_path: Path):
    """`DAEMON_KILLS=200` for a longer walk."""
    steps, every = 90 * KILLS, 25
    chance = random.Random(11)
    with Daemon(tmp_path, job("count", tmp_path, "startsecs=0", STEPS=steps, EVERY=every, FLUSH_S=0.02)) as daemon:
        first = daemon.until_step("count", 1)["pid"]
        assert history(daemon, "count")  # what the ledger has not heard of would be ended
        for _ in range(KILLS):
            time.sleep(chance.uniform(0, 1.0))
            daemon.stop(signal.SIGKILL)
            assert alive(first) or committed(daemon, "count")[0] == steps
            daemon.launch()
        until_answering(daemon)

        daemon.until(lambda: causes(daemon, "count") != [None], "its end is booked", patience_s=20 + 0.2 * steps)

        (attempt,) = history(daemon, "count")
        assert (attempt["cause"], attempt["from_step"], attempt["to_step"]) == ("done", 0, steps)
        assert committed(daemon, "count")[0] == steps
        assert not [path for path in (tmp_path / "count").iterdir() if layout.is_partial(path.name)]


# --- the worker ends while no daemon is there -------------------------------------------------------------------------


@pytest.mark.slow
def test_worker_that_was_done_while_no_daemon_was_there_has_succeeded(tmp_path: Path, orphans: Callable[[int], int]):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100, STEP_S=0.03)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.die()
        assert orphans(first) == 0

        daemon.start()

        daemon.until_state("count", "SUCCEEDED")
        (attempt,) = history(daemon, "count")
        assert (attempt["cause"], attempt["to_step"]) == ("done", 100)
        daemon.die()
        daemon.start()
        assert daemon.until_state("count", "SUCCEEDED")["pid"] is None


@pytest.mark.slow
def test_done_job_is_still_done_after_a_restart_of_the_daemon(tmp_path: Path):
    log = tmp_path / "hooks"
    hook = f"hook_done=/bin/sh -c 'echo done >> {log}'"
    with Daemon(tmp_path, job("count", tmp_path, STEPS=10), hook) as daemon:
        before = daemon.until_state("count", "SUCCEEDED")
        for number in (signal.SIGTERM, signal.SIGKILL):
            daemon.die() if number == signal.SIGKILL else daemon.stop(number)
            daemon.start()
            after = daemon.until_state("count", "SUCCEEDED")
            assert (after["wire_state"], after["wanted"], after["exit_code"]) == ("EXITED", False, 0)
            said = before["description"].replace("/10", "")
            daemon.until(lambda said=said: daemon.status("count")["description"] == said, f"its description is {said}")
            assert after["job"]["step"] == 10
        assert log.read_text() == "done\n"

        daemon.call("start", name="count", wait=False)
        daemon.until(lambda: len(history(daemon, "count")) == 2, "an operator's start trains again")


@pytest.mark.slow
def test_history_after_an_exception_has_the_last_step(tmp_path: Path):
    keys = "autorestart=false"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=ENDLESS, EVERY=ENDLESS, FAIL="told")) as daemon:
        daemon.until_step("count", 5)
        tell_to_fail(tmp_path / "count", "raised-between-reports")

        daemon.until_state("count", "EXITED")

        (attempt,) = history(daemon, "count")
        reported = max(
            record["step"] for record in records(tmp_path / "daemon.log") if record["event"] == "worker.failed"
        )
        assert attempt["to_step"] == reported
        assert daemon.status("count")["job"]["step"] == reported


def test_worker_that_was_killed_while_no_daemon_was_there_is_followed_at_once(
    tmp_path: Path, orphans: Callable[[int], int]
):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=10)) as daemon:
        first = daemon.until_step("count", 25)["pid"]
        daemon.die()
        os.kill(first, signal.SIGKILL)
        orphans(first)
        newest = committed(daemon, "count")[0]

        daemon.start()

        daemon.until_step("count", newest + 1)
        lost, following = history(daemon, "count")
        assert (lost["cause"], lost["to_step"]) == ("lost", newest)
        assert following["from_step"] == newest


def test_exit_status_of_a_worker_that_nobody_has_reaped_is_read(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=10)) as daemon:
        first = daemon.until_step("count", 25)["pid"]
        daemon.die()
        os.kill(first, signal.SIGKILL)
        daemon.until(lambda: not alive(first), "it is dead")

        daemon.start()

        daemon.until(lambda: len(history(daemon, "count")) == 2, "there is a second attempt")
        assert (history(daemon, "count")[0]["cause"], history(daemon, "count")[0]["signal"]) == ("crash", 9)


def test_error_of_a_worker_that_failed_while_no_daemon_was_there_is_told(tmp_path: Path, orphans: Callable[[int], int]):
    with Daemon(tmp_path, job("count", tmp_path, "autorestart=false", FAIL="import", LOAD_S=1.5)) as daemon:
        first = daemon.until(lambda: daemon.status("count")["pid"], "it was started")
        daemon.die()
        assert os.waitstatus_to_exitcode(orphans(first)) == 1

        daemon.start()

        daemon.until(lambda: causes(daemon, "count")[0], "its end is booked")
        assert history(daemon, "count")[0]["cause"] == "crash"
        assert "No module named 'trian'" in history(daemon, "count")[0]["text"]


# --- reload, and other configurations ---------------------------------------------------------------------------------


def reload(daemon: Daemon) -> None:
    daemon.call("reload")
    daemon.until(lambda: (daemon.folder / "daemon.log").read_text().count('"event": "daemon.ready"') >= 2, "it is back")
    until_answering(daemon)


def test_reload_keeps_what_runs(tmp_path: Path):
    sections = job("count", tmp_path, STEPS=ENDLESS) + "[program:sleeper]\ncommand=/bin/sleep 100000\n"
    with Daemon(tmp_path, sections) as daemon:
        trains = daemon.until_step("count", 5)
        sleeps = daemon.until_state("sleeper", "RUNNING")
        served_by = daemon.call("pid")["pid"]

        reload(daemon)

        assert daemon.call("pid")["pid"] == served_by
        assert daemon.until_state("count", "RUNNING")["pid"] == trains["pid"]
        assert daemon.until_state("sleeper", "RUNNING")["pid"] == sleeps["pid"]
        daemon.call("stop", name="count")
        assert [(attempt["cause"], attempt["exit_code"]) for attempt in history(daemon, "count")] == [("stopped", 143)]


def test_clients_are_answered_throughout_a_reload(tmp_path: Path):
    """A monitor that asked meanwhile would take the daemon for dead."""
    inet = f"[inet_http_server]\nport=127.0.0.1:{free_port()}\n"
    with Daemon(tmp_path, f"[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n{inet}") as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        urls = (f"unix://{daemon.socket}", f"http://{inet.split('port=')[1].strip()}")
        until = threading.Event()
        answers: list[object] = []

        def ask(client: Client) -> None:
            while not until.is_set():
                try:
                    (sleeper,) = client.call("status")["programs"]
                    answers.append(sleeper["pid"])
                except (Unreachable, Refusal) as error:
                    answers.append(str(error))

        with ThreadPoolExecutor() as executor:
            for url in urls:
                executor.submit(ask, Client(url))
            try:
                reload(daemon)
            finally:
                until.set()

    assert set(answers) == {pid}


def test_reload_uses_the_file_that_was_checked_whatever_becomes_of_it_meanwhile(tmp_path: Path):
    sleeper = "[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n"
    with Daemon(tmp_path, sleeper) as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        daemon.write(f"{sleeper}[program:new]\ncommand=/bin/sleep 100000\nstartsecs=0\n")

        daemon.call("reload")
        daemon.write("[program:sleeper\n")  # somebody goes on editing before the next daemon reads it

        daemon.until(lambda: len(daemon.events("daemon.ready")) == 2, "it is back")
        assert daemon.until_state("new", "RUNNING")
        assert daemon.until_state("sleeper", "RUNNING")["pid"] == pid
        with pytest.raises(Refused, match="sleeper"):
            daemon.call("reread")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGPWR])
def test_signal_at_any_moment_of_a_reload_is_heeded(tmp_path: Path, number: signal.Signals):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        assert daemon.process is not None
        daemon.call("reload")

        def has_left() -> bool:
            daemon.process.send_signal(
                number
            )  # again and again: in the old daemon, while it executes itself, in the new
            return not alive(first)

        daemon.until(has_left, "its worker has left")

        assert daemon.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    "after_s",
    [0.0, 0.008, 0.032, *(pytest.param(after_s, marks=pytest.mark.nightly) for after_s in (0.002, 0.004, 0.016))],
)
def test_single_signal_at_any_moment_of_a_reload_is_heeded(tmp_path: Path, after_s: float):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n") as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        assert daemon.process is not None
        daemon.call("clear", name="sleeper")  # there are threads besides
        daemon.call("reload")
        time.sleep(after_s)

        daemon.process.send_signal(signal.SIGTERM)

        assert daemon.process.wait(PATIENCE_S) == 0
        assert not alive(pid)


def test_reload_flushes_and_starts_anew_what_is_configured_otherwise(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.write(job("count", tmp_path, "stopwaitsecs=9", STEPS=ENDLESS, EVERY=ENDLESS))

        reload(daemon)

        second = daemon.until(
            lambda: (
                (found := daemon.status("count"))["pid"] not in (None, first) and found["state"] == "RUNNING" and found
            ),
            "it trains with the new configuration",
        )
        assert second["job"]["attempt"] == 2
        left, _ = history(daemon, "count")
        assert left["cause"] == "stopped"
        assert left["lost_steps"] == 0


def test_worker_of_a_program_that_is_not_configured_any_more_flushes_and_leaves(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.die()
        daemon.write("[program:other]\ncommand=/bin/sleep 100000\n")

        daemon.start()

        daemon.until(lambda: not alive(first), "it has left")
        assert len(committed(daemon, "count")) == 1
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite3")) as ledger:
            booked = daemon.until(
                lambda: ledger.execute("SELECT cause FROM attempts WHERE cause IS NOT NULL").fetchone(), "it is booked"
            )
        assert booked == ("stopped",)


def test_worker_of_a_program_that_is_not_wanted_any_more_flushes_and_stops(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.die()
        (tmp_path / "state" / "wanted.json").write_text('{"programs": {"count": false}, "removed": []}')

        daemon.start()

        daemon.until(lambda: not alive(first), "it has left")
        daemon.until(lambda: causes(daemon, "count") == ["stopped"], "its end is booked")
        assert daemon.status("count")["state"] == "STOPPED"
        assert len(committed(daemon, "count")) == 1


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
STUBBORN = DEAF.replace("signal.SIG_IGN", "lambda *_: print('told', flush=True)")


@pytest.mark.slow
@pytest.mark.parametrize("in_a_hurry", [False, True])
def test_leftovers_of_an_earlier_daemon_end_with_this_one(in_a_hurry: bool, tmp_path: Path) -> None:
    """Something of an attempt before the one that is gone on with, in a session of its own, which ignores SIGTERM."""
    keys = f"stopwaitsecs={1000 if in_a_hurry else 1}\nflush_timeout=1"
    daemon = Daemon(tmp_path, job("t", tmp_path, keys, STEPS=ENDLESS)).start()
    daemon.until_step("t", 30)
    daemon.die()
    marked = {**os.environ, marks.VARIABLE: marks.mark_of_attempt(tmp_path / "state", "t", 0)}
    stray = subprocess.Popen([sys.executable, "-c", DEAF], stdout=-1, env=marked, start_new_session=True)
    assert stray.stdout is not None and stray.stdout.readline()

    daemon.start()
    daemon.until_state("t", "RUNNING")
    if in_a_hurry:
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        log = tmp_path / "daemon.log"
        daemon.until(lambda: "daemon.leaving" in log.read_text(), "it leaves")
        time.sleep(SAME_SIGNAL_S)
    began_at = time.monotonic()
    assert daemon.stop() == 0

    assert stray.poll() == -signal.SIGKILL
    assert time.monotonic() - began_at < 60


def test_stop_all_stops_what_waits_for_the_last_of_an_earlier_daemon_too(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o711)
    marked = {**os.environ, marks.VARIABLE: marks.mark_of_attempt(tmp_path / "state", "p", 1)}
    stray = subprocess.Popen([sys.executable, "-c", DEAF], stdout=-1, env=marked, start_new_session=True)
    assert stray.stdout is not None and stray.stdout.readline()
    others = "[program:q]\ncommand=/bin/sleep 100000\nstartsecs=0\n[program:r]\ncommand=/bin/true\nautostart=false\n"
    section = f"[program:p]\ncommand=/bin/sleep 100000\nstartsecs=0\nstopwaitsecs=1000\n{others}"
    told: list[dict[str, Any]] = []
    try:
        with Daemon(tmp_path, section) as daemon:
            daemon.until_state("q", "RUNNING")
            before = {name: daemon.status(name)["wire_state"] for name in "pqr"}
            with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
                stopping = threading.Thread(target=lambda: told.extend(proxy.supervisor.stopAllProcesses()))
                stopping.start()
                daemon.until(lambda: daemon.status("p")["wire_state"] == "STOPPED", "it is not to start any more")
                stray.kill()
                stopping.join(PATIENCE_S)
            states = {name: daemon.status(name)["wire_state"] for name in "pqr"}
            attempts = daemon.call("history", name="p")["attempts"]
    finally:
        stray.kill()
        stray.wait()

    assert before == {"p": "STARTING", "q": "RUNNING", "r": "STOPPED"}
    assert sorted((each["name"], each["description"]) for each in told) == [("p", "OK"), ("q", "OK")]
    assert (states, attempts) == (dict.fromkeys("pqr", "STOPPED"), [])


def test_an_update_while_a_program_is_taken_up_counts_its_attempts_on(tmp_path: Path) -> None:
    """Until something of an earlier attempt has ended nothing starts, and then the old configuration does first."""
    (tmp_path / "state").mkdir(mode=0o711)
    marked = {**os.environ, marks.VARIABLE: marks.mark_of_attempt(tmp_path / "state", "p", 1)}
    stray = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=-1, env=marked, start_new_session=True)
    assert stray.stdout is not None and stray.stdout.readline()
    section = "[program:p]\ncommand=/bin/sleep 100000\nstartsecs=0\nstopwaitsecs=1000\n"
    try:
        with Daemon(tmp_path, section) as daemon:
            assert stray.stdout.readline() == b"told\n"
            daemon.write(f"{section}priority=1\n")
            updating = threading.Thread(target=daemon.call, args=["update"])
            updating.start()
            daemon.until(lambda: daemon.call("avail")["programs"][0]["priority"] == 1, "it is read")
            stray.kill()
            updating.join(PATIENCE_S)
            daemon.until_state("p", "RUNNING")
            attempts = [attempt["attempt"] for attempt in daemon.call("history", name="p")["attempts"]]
    finally:
        stray.kill()
        stray.wait()

    assert attempts == [2, 3]


@pytest.mark.parametrize("others", ["", "[program:other]\ncommand=/bin/sleep 100000\n"])
def test_leftovers_of_a_removed_program_end_with_the_daemon(others: str, tmp_path: Path):
    """A worker that can't flush, with a daemon that is told to leave as soon as it is there, and then to hurry."""
    daemon = Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS)).start()
    first = daemon.until_step("count", 5)["pid"]
    daemon.die()
    os.kill(first, signal.SIGSTOP)
    daemon.write(others)

    daemon.start()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    daemon.until(lambda: daemon.events("daemon.leaving"), "it leaves")
    time.sleep(SAME_SIGNAL_S)
    assert daemon.stop() == 0
    try:
        daemon.until(lambda: not alive(first), "it is killed", 5.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
