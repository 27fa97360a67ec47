"""A job's standby, with a real daemon: it becomes the next attempt, and never anything else."""

import json
import os
import signal
import stat
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.host.processes import marks
from supervisor.protocol.checkpoints import selection
from tests.reading import alive
from tests.system.harness import TRAINER, Daemon, job
from tests.system.test_adoption import causes, history, orphans, reload
from tests.system.test_faults import ends_well, hurry, section
from tests.waiting import stays

__all__ = ["orphans"]
STANDBY = "standby=warm"
ENDLESS = 1_000_000


def standby_of(daemon: Daemon, name: str = "digits") -> dict[str, Any]:
    return dict(daemon.status(name)["job"]["standby"])


def until_ready(daemon: Daemon, name: str = "digits", but: int | None = None) -> int:
    """Pid of the standby once it waits."""

    def look() -> int | None:
        found = standby_of(daemon, name)
        return int(found["pid"]) if found["stage"] == "ready" and found["pid"] != but else None

    return int(daemon.until(look, f"{name} has a standby", 60.0))


def of_job(daemon: Daemon) -> list[psutil.Process]:
    """All live processes of the daemon's programs."""
    found = marks.processes_of_daemon(daemon.folder / "state")
    return [each for some in found.values() for each in some if alive(each.pid)]


def parent(process: psutil.Process) -> int | None:
    """None once it is gone."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_death_makes_the_standby_the_next_attempt_and_a_new_one_is_prepared(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)) as daemon:
        first = daemon.until_step("digits", 30)
        standby = until_ready(daemon)
        assert standby != first["pid"]
        assert "standby ready (warm" in daemon.status("digits")["description"]
        kill(first["pid"])
        second = daemon.until(
            lambda: (found := daemon.status("digits"))["job"]["attempt"] == 2 and found["job"]["step"] and found,
            "it trains",
        )
        third = until_ready(daemon, but=standby)
        pipes = sorted(path.name for path in (tmp_path / "state" / "run" / "digits").iterdir())
        both = {each.pid for each in of_job(daemon)}

    assert second["pid"] == standby
    assert both == {standby, third}
    assert pipes[0] == "a2" and len(pipes) == 2
    assert not alive(standby) and not alive(third)


@pytest.mark.slow
def test_a_promoted_standby_goes_on_from_the_checkpoint_and_ends_like_any_worker(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=1500, EVERY=50, HURRY=1)) as daemon:
        pid = daemon.until_step("digits", 60)["pid"]
        promoted = until_ready(daemon)
        kill(pid)
        (tmp_path / "digits" / "hurry").touch()
        daemon.until_state("digits", "SUCCEEDED", patience_s=120.0)
        attempts = history(daemon, "digits")
        ended = daemon.until(lambda: not of_job(daemon), "no standby is left of a job that is done")

    assert ended and [attempt["cause"] for attempt in attempts] == ["crash", "done"]
    assert attempts[1]["restored"].endswith(".a1")
    newest = next(iter(selection.committed_checkpoints(tmp_path / "digits")))
    assert (newest.step, newest.attempt) == (1500, 2)
    assert promoted != pid


@pytest.mark.slow
def test_a_script_gets_a_standby_unasked_and_ends_with_the_same_bits(tmp_path: Path):
    steps = 1500
    program = section("none", tmp_path, tmp_path / "c", STEPS=steps, STEP_S=0.015).replace("standby=off\n", "")
    with Daemon(tmp_path, program) as daemon:
        worker = daemon.until_step("none", 10)["pid"]
        standby = until_ready(daemon, "none")
        kill(worker)
        daemon.until(lambda: daemon.status("none")["pid"] == standby, "it is the worker")
        hurry(daemon, "none")
        ends_well(daemon, "none", steps)
        found = history(daemon, "none")

    assert [each["cause"] for each in found] == ["crash", "done"]
    assert found[1]["restored"].endswith(".a1")


@pytest.mark.slow
def test_a_program_that_speaks_to_the_daemon_by_itself_gets_none_unasked_and_status_says_so(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, "standby=auto", STEPS=ENDLESS)) as daemon:
        daemon.until_step("digits", 30)
        daemon.until(
            lambda: standby_of(daemon)["stage"] == "none" and standby_of(daemon)["reason"], "it says why", 60.0
        )
        description = daemon.status("digits")["description"]
        daemon.until(lambda: len(of_job(daemon)) == 1, "nobody else is left")
        tried = daemon.events("standby.spawned")

    assert "no standby: the script does not import worker" in description
    assert tried == ["standby.spawned"]


@pytest.mark.slow
def test_a_stop_ends_the_standby_before_the_worker_is_asked(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS, FLUSH_S=1)) as daemon:
        daemon.until_step("digits", 30)
        until_ready(daemon)
        daemon.call("stop", name="digits")
        daemon.until_state("digits", "STOPPED")
        daemon.until(lambda: not of_job(daemon), "both are gone")
        order = daemon.events("standby.dropped", "standby.exited", "flush.asked", "worker.exited")

    assert order[0] == "standby.dropped"
    assert order.index("standby.exited") < order.index("worker.exited")


@pytest.mark.slow
def test_a_standby_that_dies_is_no_failure_of_the_job(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]
        standby = until_ready(daemon)
        kill(standby)
        daemon.until(lambda: standby_of(daemon)["stage"] == "none", "it is gone")
        reason = standby_of(daemon)["reason"]
        another = until_ready(daemon, but=standby)
        found = daemon.status("digits")

    assert "SIGKILL" in reason
    assert another != standby
    assert (found["pid"], found["job"]["attempt"]) == (worker, 1)


def test_a_standby_that_cannot_load_is_tried_ever_more_seldom_and_says_why(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS, FAIL="standby")) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]
        daemon.until(lambda: "corpus" in str(standby_of(daemon)["reason"]), "it says why")
        description = daemon.status("digits")["description"]
        kill(worker)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "a cold start")
        daemon.until_step("digits", 1)

    assert "no standby: the last one ended: no module named corpus" in description


@pytest.mark.slow
def test_a_standby_killed_in_the_moment_of_its_promotion_is_never_booked_as_the_jobs_failure(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]
        standby = until_ready(daemon)
        assert daemon.process is not None
        os.kill(daemon.process.pid, signal.SIGSTOP)  # it learns of both deaths at once
        kill(standby)
        kill(worker)
        daemon.until(lambda: not (alive(standby) or alive(worker)), "both are dead")
        os.kill(daemon.process.pid, signal.SIGCONT)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] >= 2, "the next attempt")
        daemon.until_step("digits", 1)
        found = history(daemon, "digits")

    assert [each["cause"] for each in found] == ["crash", None]


@pytest.mark.slow
def test_a_death_in_the_first_moment_of_a_standby_makes_a_new_process_the_next_attempt(tmp_path: Path):
    late = job("digits", tmp_path, STANDBY, STEPS=ENDLESS).replace(
        f"command={sys.executable} {TRAINER}", f"command=/bin/sh -c 'sleep 2; exec {sys.executable} {TRAINER}'"
    )
    with Daemon(tmp_path, late) as daemon:
        first = daemon.until_step("digits", 30)
        begun = daemon.until(lambda: standby_of(daemon)["pid"], "a standby has begun", 60.0)
        kill(first["pid"])
        daemon.until(lambda: len(history(daemon, "digits")) == 2, "the next attempt has begun")
        second = daemon.until_state("digits", "RUNNING", "FAILED")

        assert second["state"] == "RUNNING" and second["pid"] != begun
        assert causes(daemon, "digits")[0] == "crash" and len(history(daemon, "digits")) == 2


@pytest.mark.slow
def test_a_standby_ends_with_its_daemon_and_the_next_daemon_has_one_of_its_own(tmp_path: Path):
    daemon = Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)).start()
    worker = daemon.until_step("digits", 30)["pid"]
    standby = until_ready(daemon)
    daemon.die()
    daemon.until(lambda: not alive(standby), "it ends by itself")
    assert alive(worker)

    with daemon:
        another = until_ready(daemon)
        found = daemon.status("digits")
        live = {each.pid for each in of_job(daemon)}

    assert (found["pid"], found["job"]["attempt"]) == (worker, 1)
    assert live == {worker, another}


@pytest.mark.slow
def test_the_next_daemon_goes_on_with_a_worker_that_was_a_standby(tmp_path: Path):
    keys = f"{STANDBY}\nstopwaitsecs=1\nflush_timeout=1"  # for the first one's grandchild, if nobody ended that yet
    daemon = Daemon(tmp_path, job("digits", tmp_path, keys, STEPS=ENDLESS, GRANDCHILD=1)).start()
    first = daemon.until_step("digits", 30)["pid"]
    promoted = until_ready(daemon)
    kill(first)
    daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the second attempt")
    daemon.until_step("digits", 40)
    began = daemon.status("digits")["started_wall_at"]
    daemon.die()

    with daemon:
        daemon.until_state("digits", "RUNNING")
        found = daemon.status("digits")
        kill(promoted)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 3, "the third attempt")
        strays = [each for each in of_job(daemon) if parent(each) == promoted]
        booked = causes(daemon, "digits")

    assert (found["pid"], found["job"]["attempt"]) == (promoted, 2)
    assert abs(found["started_wall_at"] - began) < 2.0, "it is as old as its attempt, not as its process"
    assert booked[:2] == ["crash", "crash"] and not strays
    assert not of_job(daemon)


@pytest.mark.slow
def test_reload_leaves_no_standby_behind(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]
        standby = until_ready(daemon)
        reload(daemon)
        another = until_ready(daemon, but=standby)
        live = {each.pid for each in of_job(daemon)}

    assert live == {worker, another} and not alive(standby)


@pytest.mark.slow
def test_another_configuration_replaces_the_standby(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS)) as daemon:
        daemon.until_step("digits", 30)
        standby = until_ready(daemon)
        daemon.write(job("digits", tmp_path, STANDBY, STEPS=ENDLESS, EVERY=7))
        daemon.call("reread")
        daemon.call("update")
        another = until_ready(daemon, but=standby)
        said = psutil.Process(another).environ()["EVERY"]

    assert said == "7" and not alive(standby)


def test_a_folder_that_leads_elsewhere_by_now_makes_a_cold_start(tmp_path: Path):
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
    (tmp_path / "current").symlink_to("one")
    with Daemon(tmp_path, job("digits", tmp_path, f"{STANDBY}\ndirectory={tmp_path}/current", STEPS=ENDLESS)) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]
        standby = until_ready(daemon)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(tmp_path / "current")
        kill(worker)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the second attempt")
        second = daemon.until_step("digits", 1)["pid"]
        folder = psutil.Process(second).cwd()

    assert second != standby and folder.endswith("two")


@pytest.mark.slow
def test_a_notice_ends_the_standby_and_its_end_brings_another(tmp_path: Path):
    notices = tmp_path / "notices"
    notices.mkdir(mode=stat.S_IRWXU)
    settings = f"notices=file\nnotice_dir={notices}"
    with Daemon(tmp_path, job("digits", tmp_path, STANDBY, STEPS=ENDLESS), settings) as daemon:
        daemon.until_step("digits", 30)
        standby = until_ready(daemon)
        (notices / ".new").write_text(json.dumps({"version": 1, "kind": "preemption", "in_s": 600, "reason": "test"}))
        (notices / ".new").rename(notices / "n.json")
        daemon.until(lambda: not alive(standby), "it is gone")
        stays(lambda: standby_of(daemon)["stage"] == "none", "there is no standby", 0.5)
        (notices / "n.json").unlink()
        another = until_ready(daemon)

    assert another != standby


def _is_in(daemon: Daemon, states: tuple[str, ...]) -> dict[str, Any] | None:
    found = daemon.status("none")
    # until a death is explained, the program is RUNNING with the pid of a process that has ended
    return found if found["pid"] and found["state"] in states and alive(found["pid"]) else None


@pytest.mark.slow
def test_kills_of_everybody_at_random_moments_leave_one_worker_and_an_exact_end(tmp_path: Path):
    """Each round kills the worker, the standby or both, also while the next loads. Workers look for a second one."""
    steps = 6000
    program = section("none", tmp_path, tmp_path / "c", STEPS=steps, STEP_S=0.005).replace("5 steps", "50 steps")
    with Daemon(tmp_path, program.replace("standby=off", STANDBY)) as daemon:
        daemon.until_step("none", 10)
        for number in range(6):
            look = partial(_is_in, daemon, ("STARTING", "RUNNING") if number % 3 == 2 else ("RUNNING",))
            worker = daemon.until(look, "a worker", 60.0)["pid"]
            if number % 3 == 0:
                spare = until_ready(daemon, "none")
                kill(daemon.until(look, "a worker", 60.0)["pid"])
                daemon.until(lambda spare=spare: daemon.status("none")["pid"] == spare, "it is the worker")
                continue
            standby = standby_of(daemon, "none")["pid"]
            for victim in (standby, worker)[: number % 3]:
                if victim is not None and alive(victim):
                    kill(victim)
            time.sleep(0.3 + 0.37 * (number % 5))
        hurry(daemon, "none")
        ends_well(daemon, "none", steps)

    attempts = [checkpoint.attempt for checkpoint in selection.committed_checkpoints(tmp_path / "c")]
    assert attempts == sorted(attempts, reverse=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes nice and a high oom score back")
def test_standby_yields_while_loading_and_runs_normally_after(tmp_path: Path):
    keys = f"{STANDBY}\noom_score_adjust=100"
    with Daemon(tmp_path, job("digits", tmp_path, keys, STEPS=ENDLESS, LOAD_S=1.5)) as daemon:
        worker = daemon.until_step("digits", 30)["pid"]

        def loads() -> psutil.Process | None:
            found = standby_of(daemon)
            return psutil.Process(found["pid"]) if found["stage"] == "loading" else None

        standby = daemon.until(loads, "one loads")
        while_loading = standby.nice(), standby.ionice().ioclass, score(standby.pid)
        idle = os.sched_getscheduler(standby.pid)
        until_ready(daemon)
        waits = os.sched_getscheduler(standby.pid)
        once_ready = standby.nice(), standby.ionice().ioclass, score(standby.pid)
        kill(worker)
        daemon.until(lambda: daemon.status("digits")["pid"] == standby.pid, "it is the worker")
        as_worker = standby.nice(), score(standby.pid)

    assert (idle, waits) == (os.SCHED_IDLE, os.SCHED_OTHER)
    assert while_loading == (19, psutil.IOPRIO_CLASS_IDLE, 900)
    assert once_ready == (0, psutil.IOPRIO_CLASS_NONE, 900)
    assert as_worker == (0, 100)


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
