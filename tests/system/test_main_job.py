"""The main path with a real daemon and real workers that die."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from supervisor.signals import SAME_SIGNAL_S
from tests.reading import alive
from tests.system.harness import Daemon, Refused, job


def history(daemon: Daemon, name: str) -> list[dict[str, object]]:
    return list(daemon.call("history", name=name)["attempts"])


def test_job_trains_to_its_end_and_is_not_run_again(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=60)) as daemon:
        done = daemon.until_state("count", "SUCCEEDED")

        assert done["job"]["step"] == 60
        assert done["job"]["metrics"] == {"accuracy": 1.0}
        assert [attempt["cause"] for attempt in history(daemon, "count")] == ["done"]
        daemon.stop()
        daemon.start()
        assert daemon.until_state("count", "SUCCEEDED")["job"]["step"] == 60
        assert [attempt["cause"] for attempt in history(daemon, "count")] == ["done"]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_lose_nothing(tmp_path: Path):
    keys = "startretries=100"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=1500, STEP_S=0.002, EVERY=7, FLUSH_S=0.002)) as daemon:
        chance = random.Random(7)
        pids: set[int] = set()
        daemon.until_step("count", 1)
        descriptors = daemon.descriptors()
        for number in range(20):
            found = daemon.until(
                lambda: (each := daemon.status("count"))["pid"] not in {None, *pids} and each, "there is a new worker"
            )
            if number % 2:  # every other one trains before it dies, so that no long back-off comes up
                daemon.until_state("count", "RUNNING", patience_s=60)
            time.sleep(chance.uniform(0, 0.3))
            pids.add(found["pid"])
            os.kill(found["pid"], signal.SIGKILL)
        done = daemon.until_state("count", "SUCCEEDED", patience_s=60)

        assert done["job"]["step"] == 1500
        attempts = history(daemon, "count")
        assert len(attempts) == 20  # the limit of the listing
        whole = selection.select_checkpoint(tmp_path / "count")
        assert whole.manifest is not None and whole.manifest.step == 1500
        assert not [path for path in (tmp_path / "count").iterdir() if layout.is_partial(path.name)]
        assert not [pid for pid in pids if alive(pid)]
        assert daemon.descriptors() <= descriptors
        assert not (tmp_path / "state" / "run" / "count" / "a1").exists()


def damage_bit(folder: Path) -> None:
    content = bytearray((folder / "count").read_bytes())
    content[0] ^= 1
    (folder / "count").write_bytes(bytes(content))


def damage_manifest(folder: Path) -> None:
    (folder / layout.MANIFEST).write_text("garbage")


@pytest.mark.parametrize("damage", [damage_bit, damage_manifest])
def test_damaged_newest_checkpoint_is_set_aside_and_the_next_older_one_used(tmp_path: Path, damage):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000, EVERY=10)) as daemon:
        daemon.until_step("count", 35)
        daemon.call("stop", name="count")
        newest, older = selection.committed_checkpoints(tmp_path / "count")[:2]
        damage(tmp_path / "count" / str(newest))

        daemon.call("start", name="count")

        assert daemon.status("count")["job"]["restored"] == str(older)
        listed = daemon.call("checkpoints", name="count")["checkpoints"]
        refused = [each for each in listed if each["quarantined"]]
        assert [each["name"] for each in refused] == [str(newest)]
        assert refused[0]["reason"]
        assert [attempt[0] for attempt in history(daemon, "count")[-1]["refused"]] == [str(newest)]  # type: ignore[index]


def test_job_whose_every_checkpoint_is_damaged_fails_with_the_list(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000, EVERY=10)) as daemon:
        daemon.until_step("count", 35)
        daemon.call("stop", name="count")
        names = [str(checkpoint) for checkpoint in selection.committed_checkpoints(tmp_path / "count")]
        for name in names:
            damage_bit(tmp_path / "count" / name)

        with pytest.raises(Refused) as refused:
            daemon.call("start", name="count")
        with pytest.raises(Refused) as again:
            daemon.call("start", name="count")

        assert refused.value.code == again.value.code == "SPAWN_ERROR"
        assert all(name in refused.value.message and name in again.value.message for name in names)
        assert daemon.status("count")["state"] == "FAILED"


def test_shutdown_flushes_all_jobs_side_by_side(tmp_path: Path):
    names = ["a", "b", "c"]
    sections = "".join(job(name, tmp_path, STEPS=100_000, EVERY=100_000, FLUSH_S=1.5) for name in names)
    with Daemon(tmp_path, sections) as daemon:
        for name in names:
            daemon.until_step(name, 5)

        status = daemon.stop()

        assert status == 0
        assert daemon.events("flush.asked", "checkpoint.committed") == 3 * ["flush.asked"] + 3 * [
            "checkpoint.committed"
        ]
        for name in names:
            assert len(selection.committed_checkpoints(tmp_path / name)) == 1


def test_started_programs_run_again_and_stopped_ones_stay_stopped(tmp_path: Path):
    with Daemon(tmp_path, job("on", tmp_path, STEPS=100_000) + job("off", tmp_path, STEPS=100_000)) as daemon:
        daemon.until_step("on", 5)
        daemon.until_step("off", 5)
        daemon.call("stop", name="off")
        daemon.stop()
        flushed = selection.committed_checkpoints(tmp_path / "on")[0]

        daemon.start()

        assert daemon.until_state("on", "RUNNING")["job"]["restored"] == str(flushed)
        assert daemon.status("off")["state"] == "STOPPED"
        assert [attempt["lost_steps"] for attempt in history(daemon, "on")] == [0, None]


def test_second_daemon_is_refused_and_the_first_goes_on(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        pid = daemon.until_step("count", 1)["pid"]
        second = Daemon(tmp_path, job("count", tmp_path, STEPS=100_000))

        with pytest.raises(AssertionError, match="exited with 75") as refused:
            second.start()

        assert f"another supervisord (pid {daemon.process.pid})" in str(refused.value)  # type: ignore[union-attr]
        assert daemon.status("count")["pid"] == pid


def test_checkpoint_on_request_is_on_the_disk_when_the_command_returns(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000, EVERY=100_000)) as daemon:
        before = daemon.until_step("count", 5)

        answer = daemon.call("checkpoint", name="count")

        assert (tmp_path / "count" / answer["checkpoint"] / layout.MANIFEST).exists()
        after = daemon.status("count")
        assert after["pid"] == before["pid"]
        assert after["state"] == "RUNNING"


def test_kill_takes_grandchildren_that_left_the_session(tmp_path: Path):
    keys = "stopwaitsecs=1\nflush_timeout=1"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=100_000, FAIL="deaf", GRANDCHILD=1)) as daemon:
        pid = daemon.until_step("count", 5)["pid"]
        (grandchild,) = psutil.Process(pid).children()
        os.kill(pid, signal.SIGSTOP)  # can neither flush nor hear SIGTERM

        daemon.call("stop", name="count")

        daemon.until(lambda: not alive(grandchild.pid), "the grandchild is gone")
        assert not alive(pid)


def test_second_sigterm_does_not_wait_for_the_flush(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "flush_timeout=60", STEPS=100_000, FAIL="deaf")) as daemon:
        daemon.until_step("count", 5)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        daemon.until(lambda: daemon.status("count")["state"] == "FLUSHING", "it flushes")
        time.sleep(SAME_SIGNAL_S)

        assert daemon.stop() == 0


def test_two_signals_at_once_are_one_and_jobs_flush(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000, EVERY=100_000)) as daemon:
        daemon.until_step("count", 5)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        time.sleep(0.002)  # as timeout(1)

        assert daemon.stop() == 0

    assert selection.committed_checkpoints(tmp_path / "count")


def test_hung_job_is_aborted_and_relaunched_from_its_checkpoint(tmp_path: Path):
    with Daemon(
        tmp_path, job("count", tmp_path, "hang_timeout=1\nflush_timeout=1", STEPS=100_000, FAIL="hang")
    ) as daemon:
        daemon.until(lambda: len(history(daemon, "count")) >= 2, "it was relaunched")

        assert history(daemon, "count")[0]["cause"] == "hang"
