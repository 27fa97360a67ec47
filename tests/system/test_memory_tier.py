"""A worker dies in every way; the next one goes on from the state that it had in memory, bit for bit."""

import contextlib
import os
import re
import shutil
import signal
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.layout import parse_name
from tests.reading import alive
from tests.system.harness import Daemon
from tests.system.memory_jobs import FIT, OWN_LOOP, START_S, HotPair, MemoryJob, die_at_random, figures, undisturbed
from tests.waiting import stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(300)]

STEPS = 1200
MOST_AGAIN_S, MEDIAN_AGAIN_S = 2.0, 1.0
LIMIT_BYTES = 64 << 20


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of STEPS steps that nobody disturbs."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


def require_little_again(job: MemoryJob, deaths: int) -> None:
    """That each death cost at most MOST_AGAIN_S of training, and half of them at most MEDIAN_AGAIN_S."""
    costs = job.repeated
    print(figures(costs))
    assert len(costs) == deaths
    assert max(cost.training_s for cost in costs) <= MOST_AGAIN_S, figures(costs)
    assert statistics.median(cost.training_s for cost in costs) <= MEDIAN_AGAIN_S, figures(costs)


def test_deaths_of_every_kind_cost_at_most_two_seconds_of_training_and_no_bit(tmp_path: Path, expected: str) -> None:
    """At random moments, by the kernel for a lack of memory where a control group can be made, and in the middle of
    copying: before a line in the tensors and in the hash. tests/host/memory_tier/test_death_while_copying.py dies
    before each instruction, without training."""
    job = MemoryJob(tmp_path, STEPS, DIES_COPYING=1)
    with memory_group() as eat, job.daemon:
        others = [] if eat is None else [lambda pid: eat(job, pid)]
        deaths = 5 + len(others)
        die_at_random(job, deaths, seed=1, longest_s=2.5, others=others)
        ended = job.daemon.call("history", name="job")["attempts"]
        die_copying(job, 3, 75)
        job.hurry()
        digest = job.until_done()

    assert digest == expected
    assert not others or ended[deaths - 1]["signal"] == signal.SIGKILL
    require_little_again(job, deaths + 2)


def die_copying(job: MemoryJob, *lines: int) -> None:
    """Has a worker die before each of these lines of the code that copies."""
    for line in lines:
        pid = job.until_copied()
        job.order(f"copy {line}")
        job.until_trains(but=pid)


@pytest.mark.nightly  # as the one before, in the small files and in the trailer too
def test_deaths_in_the_middle_of_copying_leave_the_copy_before(tmp_path: Path, expected: str) -> None:
    job = MemoryJob(tmp_path, STEPS, DIES_COPYING=1)
    with job.daemon:
        die_copying(job, 3, 40, 75, 110)
        job.hurry()
        digest = job.until_done()

    assert digest == expected
    assert [cost.training_s <= MOST_AGAIN_S for cost in job.repeated] == [True] * 4, figures(job.repeated)


@pytest.mark.nightly  # as the first one, at length: 200 moments of three jobs
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "script", "deaths", "steps", "step_s", "megabytes", "standby"),
    [
        ("small", OWN_LOOP, 70, 10_500, 0.02, 1, "off"),
        ("large", OWN_LOOP, 60, 4_500, 0.04, 64, "off"),
        ("fit", FIT, 70, 10_500, 0.02, 1, "warm"),
    ],
)
def test_no_moment_of_many_costs_more(
    tmp_path: Path, name: str, script: Path, deaths: int, steps: int, step_s: float, megabytes: int, standby: str
) -> None:
    keys = f"standby={standby}\n"
    job = MemoryJob(tmp_path / "killed", steps, script, keys, STEP_S=step_s, MEGABYTES=megabytes)
    with memory_group() as eat, job.daemon:
        others = [] if eat is None else [lambda pid: eat(job, pid)]
        die_at_random(job, deaths, seed=len(name), longest_s=3.0, others=others)
        job.hurry()
        digest = job.until_done(600.0)

    assert digest == undisturbed(tmp_path / "undisturbed", steps, script, MEGABYTES=megabytes)
    require_little_again(job, deaths)


@contextlib.contextmanager
def memory_group() -> Iterator[Callable[[MemoryJob, int], None] | None]:
    """What has the kernel kill a worker for a lack of memory; None where no control group of memory can be made."""
    folder = Path("/sys/fs/cgroup/memory") / f"stepkeeper-test-{uuid.uuid4().hex[:8]}"
    limit = "memory.limit_in_bytes"
    if not folder.parent.exists():
        folder, limit = folder.parents[1] / folder.name, "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT_BYTES))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        yield None
        return

    def eat(job: MemoryJob, pid: int) -> None:
        (folder / "cgroup.procs").write_text(str(pid))
        job.order("eat")

    try:
        yield eat
    finally:
        wait_until(lambda: _is_removed(folder), "the group is empty")


def _is_removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def test_the_next_daemon_takes_the_memory_over(tmp_path: Path, expected: str) -> None:
    job = MemoryJob(tmp_path, STEPS)
    with job.daemon as daemon:
        pid = job.until_copied()
        daemon.die()
        daemon.start()
        job.until_copied()
        os.kill(pid, signal.SIGKILL)
        job.until_trains(but=pid)
        require_little_again(job, deaths=1)

        last = job.until_copied()
        described = job.status()["description"]
        daemon.die()
        os.kill(last, signal.SIGKILL)
        wait_until(lambda: not alive(last), "it is dead")
        daemon.start()
        job.until_trains(but=last)
        job.hurry()
        digest = job.until_done()

    assert digest == expected, "both were killed: it went on from what is on the disk"
    assert len(job.logged("checkpoint.salvaged")) == 1
    assert len(job.repeated) == 2
    assert "newest: step " in described and " in memory, " in described
    # as often as what copies cost here allows, from the first of an attempt on: on a busy machine less than each second
    assert re.search(r"copied every [\d.]+ s \(\d", described), described


def writer_of(job: MemoryJob) -> int | None:
    """The pid of the process that writes what was in memory, once it has begun to write."""
    if not any(job.checkpoints.glob("*.partial")):
        return None  # before all of /proc is read: on a busy machine that may take longer than to write
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if b"host.memory_tier.salvage" in words and os.fsencode(job.checkpoints) in words:
                return int(path.parent.name)
    return None


LARGE = {"MEGABYTES": 200, "STEP_S": 0.2}


def test_a_writer_that_is_killed_alone_or_with_its_daemon_leaves_whole_checkpoints_alone(tmp_path: Path) -> None:
    steps = 80
    job = MemoryJob(tmp_path / "killed", steps, **LARGE)
    with job.daemon as daemon:
        pid = job.until_copied()
        copied = job.status()["job"]["memory_step"]
        daemon.until(lambda: job.status()["job"]["memory_step"] > copied, "there is another copy")
        os.kill(pid, signal.SIGKILL)
        os.kill(wait_until(lambda: writer_of(job), "it writes", interval_s=0.005), signal.SIGKILL)
        second = job.until_trains(but=pid)
        lost, salvaged = job.logged("memory.not_salvaged"), job.logged("checkpoint.salvaged")
        assert (len(lost), len(salvaged)) == (1, 1), "another writer follows"
        require_little_again(job, deaths=1)

        job.until_copied()
        daemon.call("checkpoint", name="job")
        saved = int(job.status()["job"]["checkpoint"]["step"])
        job.until_copied()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: writer_of(job), "it writes", interval_s=0.005)
        daemon.stop(signal.SIGKILL)
        wait_until(lambda: writer_of(job) is None, "the writer ends with the daemon, or is done")
        daemon.start()
        job.until_trains(but=second)
        job.hurry()
        digest = job.until_done()

    assert digest == undisturbed(tmp_path / "undisturbed", steps, **LARGE)
    assert job.repeated[1].steps <= pid_steps(job, second)[-1] - saved


def test_a_reload_lets_the_state_of_a_dead_worker_be_written_first(tmp_path: Path) -> None:
    job = MemoryJob(tmp_path, 80, **LARGE)
    with job.daemon as daemon:
        pid = job.until_copied()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: writer_of(job), "it writes", interval_s=0.005)
        daemon.call("reload")
        job.until_trains(but=pid)

    assert [cost.training_s <= MOST_AGAIN_S for cost in job.repeated] == [True], figures(job.repeated)


@pytest.mark.parametrize("is_child", [True, False])  # of the daemon: then it is dead, and not gone
def test_a_worker_that_dies_before_the_daemon_after_a_reload_has_adopted_it_leaves_its_state(
    tmp_path: Path, is_child: bool
) -> None:
    job = MemoryJob(tmp_path, STEPS)
    with job.daemon as daemon:
        pid = job.until_copied()
        if not is_child:
            daemon.die()
            daemon.start()
            job.until_copied()
        daemon.call("checkpoint", name="job")
        job.until_copied()
        assert daemon.process is not None
        image = stack_of(daemon.process.pid)
        daemon.call("reload")
        wait_until(lambda: stack_of(daemon.process.pid) != image, "the next daemon begins", interval_s=0.005)
        os.kill(pid, signal.SIGKILL)
        job.until_trains(but=pid)

    assert [record["attempt"] for record in job.logged("checkpoint.salvaged")] == [1]
    assert [cost.training_s <= MOST_AGAIN_S for cost in job.repeated] == [True], figures(job.repeated)


@pytest.mark.parametrize("how", ["it can't be adopted", "it dies before it has said anything"])
def test_a_worker_of_which_the_next_daemon_hears_nothing_leaves_its_state(tmp_path: Path, how: str) -> None:
    job = MemoryJob(tmp_path, STEPS, keys="standby=off\nflush_timeout=2\n")
    with job.daemon as daemon:
        pid = job.until_copied()
        daemon.die()
        os.kill(pid, signal.SIGSTOP)
        if how == "it can't be adopted":
            job.order("segv")  # and it can't save when it is told to end, either
            shutil.rmtree(tmp_path / "state" / "run" / "job")
        daemon.start()
        if how != "it can't be adopted":
            daemon.until(lambda: job.status()["pid"] == pid, "it is adopted")
            os.kill(pid, signal.SIGKILL)
        job.until_trains(but=pid)
        ends = [
            attempt["text"] for attempt in daemon.call("history", name="job")["attempts"] if attempt["attempt"] == 1
        ]

    assert [record["attempt"] for record in job.logged("checkpoint.salvaged")] == [1]
    assert [cost.training_s <= MOST_AGAIN_S for cost in job.repeated] == [True], figures(job.repeated)
    assert how != "it can't be adopted" or ends == ["could not be taken over from a daemon that died; ended"]


def stack_of(pid: int) -> str:
    """Where the stack of a process lies, which another program that is executed in it has elsewhere."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next((line for line in lines if line.endswith("[stack]")), "")


def pid_steps(job: MemoryJob, pid: int) -> list[int]:
    return [step.number for step in job.steps if step.pid == pid]


def test_a_worker_that_dies_while_its_daemon_ends_leaves_its_state(tmp_path: Path) -> None:
    job = MemoryJob(tmp_path, STEPS)
    with job.daemon as daemon:
        pid = job.until_copied()
        os.kill(pid, signal.SIGSTOP)  # it can't save
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        daemon.until(lambda: job.status()["state"] == "FLUSHING", "the daemon waits for the save")
        os.kill(pid, signal.SIGKILL)
        daemon.process.wait(START_S)

    newest = next(iter(selection.committed_checkpoints(job.checkpoints)))
    last = job.steps[-1]
    copied_at = next(step.done_at for step in job.steps if step.number == newest.step)
    assert last.done_at - copied_at <= MOST_AGAIN_S


def test_a_suspended_host_costs_no_more(tmp_path: Path, expected: str) -> None:
    """All processes are stopped for a while and go on; then again, and the worker is dead before the daemon wakes."""
    job = MemoryJob(tmp_path, STEPS)
    with job.daemon as daemon:
        pid = job.until_copied()
        assert daemon.process is not None
        host = psutil.Process(daemon.process.pid)
        everything = [host, *host.children(recursive=True)]
        for process in everything:
            process.suspend()
        stays(lambda: alive(pid), "all are suspended", 4.0)
        for process in everything:
            process.resume()
        assert job.until_copied() == pid
        for process in everything:
            process.suspend()
        last = job.last
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), "the worker is dead")
        stays(lambda: job.last == last, "all others are suspended", 3.0)
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        job.until_trains(but=pid)
        job.hurry()
        digest = job.until_done()

    assert digest == expected
    require_little_again(job, deaths=1)


LONG = 2000
"""Steps of SMALL: for longer than a standby, which gives way to all others, needs to start on a busy machine."""
SMALL = {"MEGABYTES": 0.03}


@pytest.fixture(scope="module")
def expected_of_long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of LONG steps of SMALL that nobody disturbs."""
    return undisturbed(tmp_path_factory.mktemp("long"), LONG, **SMALL)


@pytest.mark.timeout(600)  # a standby may take minutes to start on a busy machine
@pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_standby_that_is_promoted_begins_from_what_was_in_memory(
    tmp_path: Path, expected_of_long: str, deaths: int
) -> None:
    job = MemoryJob(tmp_path / "job", LONG, keys="standby=warm\n", STEP_S=0.1 * deaths, **SMALL)
    with job.daemon as daemon:
        for _ in range(deaths):
            pid = job.until_copied()
            standby = daemon.until(lambda: ready_standby(job), "a standby waits", START_S)
            job.until_copied()
            os.kill(pid, signal.SIGKILL)
            assert job.until_trains(but=pid) == standby
        job.hurry()
        digest = job.until_done()

    assert digest == expected_of_long
    # from the memory itself, or from the disk, where a busy machine may have written so small a state before a standby
    # asks for it: the full disk of the next test leaves only the first
    assert len(job.logged("checkpoint.salvaged")) == deaths
    require_little_again(job, deaths)


def killed_on_full_disk(job: MemoryJob, disk: Path) -> tuple[int, int]:
    """Kills a worker that has a newer copy in memory than on its disk, which is full by then: its pid, and the step of
    its checkpoint. What fills the disk is `filler`."""
    pid = job.until_copied()
    job.daemon.call("checkpoint", name="job")
    saved = int(job.status()["job"]["checkpoint"]["step"])
    job.until_copied()
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    os.kill(pid, signal.SIGKILL)
    return pid, saved


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_on_a_full_disk_attempts_begin_from_memory_all_the_same(
    tmp_path: Path, small_disk: Path, expected_of_long: str
) -> None:
    """Two die before they have a copy of their own, one of them while it restores. The third one has one when the next
    daemon takes it over, and that copy is written once there is room."""
    job = MemoryJob(tmp_path / "job", LONG, checkpoints=small_disk / "ckpt", STEP_S=0.1, **SMALL)
    with job.daemon as daemon:
        pid, saved = killed_on_full_disk(job, small_disk)
        second = job.until_trains(but=pid)
        (job.folder / "die_restoring").write_text("60")
        os.kill(second, signal.SIGKILL)
        fourth = job.until_trains(but=second)
        daemon.die()
        daemon.start()
        job.until_copied()
        restored = [
            (record["attempt"], record["step"], record["from_memory"]) for record in job.logged("worker.restored")
        ]
        (small_disk / "filler").unlink()
        os.kill(fourth, signal.SIGKILL)
        job.until_trains(but=fourth)
        job.hurry()
        digest = job.until_done()

    assert digest == expected_of_long
    assert {str(record["why"]) for record in job.logged("memory.not_salvaged")} == {"No space left on device"}
    assert not (job.folder / "die_restoring").exists()
    begun = pid_steps(job, second)[0]
    assert begun > saved + 1
    assert pid_steps(job, fourth)[0] == begun
    assert set(restored) == {(1, 0, False), (2, begun - 1, True), (4, begun - 1, True)}
    require_little_again(job, deaths=3)


def test_what_a_full_disk_did_not_take_outlives_a_reload(tmp_path: Path, small_disk: Path) -> None:
    keys = "standby=off\nautorestart=false\n"
    job = MemoryJob(tmp_path / "job", LONG, keys=keys, checkpoints=small_disk / "ckpt", STEP_S=0.1, **SMALL)
    with job.daemon as daemon:
        pid, saved = killed_on_full_disk(job, small_disk)
        daemon.until(lambda: job.logged("memory.not_salvaged"), "the disk does not take it")

        daemon.call("reload")
        daemon.until(lambda: job.logged("memory.taken_over"), "the next daemon has it")
        second = job.until_trains(but=pid)
        (small_disk / "filler").unlink()

    assert pid_steps(job, second)[0] > saved + 1
    assert not job.logged("memory.lost")


@pytest.mark.nightly  # as the one before, with a standby that waits for nothing but the checkpoint
def test_a_hot_standby_begins_from_what_was_in_memory(tmp_path: Path) -> None:
    pair = HotPair(tmp_path, "checkpoint_interval=100000 steps\n")
    with pair.daemon as daemon:
        for attempt in (1, 2):
            before = pair.kill_when(lambda job: job["memory_step"] and job["step"] > job["memory_step"], attempt)
            killed_at = time.monotonic()
            restored = daemon.until(partial(_restored_by, daemon, attempt + 1), "the next one has restored")
            print(f"restored {time.monotonic() - killed_at:.2f} s later")

            assert daemon.status("killed")["pid"] == before["standby"]["pid"]
            assert before["memory_step"] <= restored
            assert (before["step"] - restored) * before["step_s"] <= MOST_AGAIN_S
        hashes = pair.hashes()

    assert len(hashes) == 1


def _restored_by(daemon: Daemon, attempt: int) -> int | None:
    """The step that this attempt has restored."""
    job = daemon.status("killed")["job"]
    name = parse_name(job["restored"]) if job["attempt"] == attempt and job["restored"] else None
    return None if name is None else name.step


def ready_standby(job: MemoryJob) -> int | None:
    standby: dict[str, Any] = job.status()["job"]["standby"]
    return int(standby["pid"]) if standby["stage"] == "ready" else None


def test_a_job_that_keeps_dying_of_its_state_goes_back_behind_it(tmp_path: Path) -> None:
    job, order = MemoryJob(tmp_path, 100_000), tmp_path / "die"
    with job.daemon as daemon:
        job.until_copied()
        daemon.call("checkpoint", name="job")
        job.until_copied()
        for _ in range(4):  # the first time, it leaves a state; then it dies in the first step from that
            job.order("kill")
            wait_until(lambda: not order.exists(), "it has died")
        avoided = daemon.until(lambda: job.logged("checkpoint.avoided"), "its state is avoided")[0]

    salvaged = job.logged("checkpoint.salvaged")
    assert len(salvaged) == 1
    assert avoided["suspects"] == [salvaged[0]["checkpoint"]]
    assert str(avoided["chosen"]).endswith("a1"), "what it had saved itself"
    assert avoided["chosen"] != f"{tmp_path}/ckpt/{salvaged[0]['checkpoint']}"
