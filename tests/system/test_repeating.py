"""Failures that the same start would repeat, through a whole daemon: divergence and lack of memory."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.protocol import layout
from tests.system.harness import TRAINER, Daemon, job

LIMIT_BYTES = 64 << 20  # of the cgroup: the trainer needs 20 MB, and asks for a gigabyte


def history(daemon: Daemon) -> list[dict]:
    return list(daemon.call("history", name="t")["attempts"])


def test_a_job_that_diverges_waits_for_a_person(tmp_path: Path):
    with Daemon(tmp_path, job("t", tmp_path, FAIL="nan", NAN_AT=30, STEPS=60, EVERY=10)) as daemon:
        failed = daemon.until_state("t", "FAILED")

        assert "loss of step 30 is nan" in failed["reason"] and "on_nan" in failed["reason"]
        assert [attempt["cause"] for attempt in history(daemon)] == ["divergence"]


def test_rollback_goes_back_further_each_time_and_gives_up_after_three(tmp_path: Path):
    program = job("t", tmp_path, "on_nan=rollback", FAIL="nan", NAN_AT=41, STEPS=60, EVERY=10)
    with Daemon(tmp_path, program) as daemon:
        failed = daemon.until_state("t", "FAILED", patience_s=60)

        attempts = history(daemon)
        assert "4 failures (divergence)" in failed["reason"]
        assert [attempt["from_step"] for attempt in attempts] == [0, 30, 20, 10]
        assert [attempt["cause"] for attempt in attempts] == ["divergence"] * 4
        given_up = sorted(path.name for path in (tmp_path / "t" / layout.QUARANTINE).iterdir())
        assert given_up[0].startswith("step-0000000020") and "step-0000000040.a1" in given_up


def test_skip_goes_on_without_the_batches(tmp_path: Path):
    program = job("t", tmp_path, "on_nan=skip", FAIL="nan", NAN_AT=35, STEPS=60, EVERY=10)
    with Daemon(tmp_path, program) as daemon:
        daemon.until_state("t", "SUCCEEDED")

        assert [(attempt["cause"], attempt["from_step"]) for attempt in history(daemon)] == [
            ("divergence", 0),
            ("done", 30),
        ]
        assert daemon.events("batches.left_out") == ["batches.left_out"]


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup of its own with little memory; skips where none can be made."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {controllers: path.lstrip("/") for _, controllers, path in lines}
    first, second = Path("/sys/fs/cgroup/memory", own.get("memory", "")), Path("/sys/fs/cgroup", own.get("", ""))
    parent, limit = (first, "memory.limit_in_bytes") if "memory" in own else (second, "memory.max")
    folder = parent / f"stepkeeper-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made in {parent}: {error.strerror}")
    try:
        try:
            (folder / limit).write_text(str(LIMIT_BYTES))
            (folder / "memory.swap.max" if limit == "memory.max" else folder / limit).write_text(
                "0" if limit == "memory.max" else str(LIMIT_BYTES)
            )
        except OSError as error:
            pytest.skip(f"{folder} takes no limit: {error.strerror}")
        yield folder
    finally:
        folder.rmdir()


def limited(cgroup: Path, folder: Path, keys: str) -> str:
    command = f"/bin/sh -c 'echo $$ > {cgroup}/cgroup.procs && exec {sys.executable} {TRAINER}'"
    root = Path(__file__).parents[2]
    return (
        f"[program:t]\ncommand={command}\ncheckpoint_dir={folder}/t\nstandby=off\n"
        f'environment=FAIL="memory",STEPS="40",EVERY="10",PYTHONPATH="{root}"\n{keys}\n'
    )


def test_a_kill_for_lack_of_memory_is_booked_as_that(tmp_path: Path, memory_cgroup: Path):
    with Daemon(tmp_path, limited(memory_cgroup, tmp_path, "startretries=1")) as daemon:
        failed = daemon.until_state("t", "FAILED", patience_s=60)

        assert [attempt["cause"] for attempt in history(daemon)] == ["out-of-memory"] * 2
        assert memory_cgroup.name in failed["reason"] and "on_oom" in failed["reason"]
        daemon.call("shutdown")
        daemon.until(lambda: not (memory_cgroup / "cgroup.procs").read_text(), "the cgroup is empty")


def test_microbatch_divides_until_it_fits_also_over_a_new_daemon(tmp_path: Path, memory_cgroup: Path):
    program = limited(memory_cgroup, tmp_path, "on_oom=microbatch")
    with Daemon(tmp_path, program) as daemon:
        daemon.until_state("t", "SUCCEEDED", patience_s=60)
        assert [attempt["cause"] for attempt in history(daemon)] == ["out-of-memory", "out-of-memory", "done"]
        daemon.stop()
    with Daemon(tmp_path, program) as daemon:
        daemon.call("start", name="t", from_scratch=True)
        daemon.until(lambda: len(history(daemon)) == 4, "a further attempt")
        daemon.until_state("t", "SUCCEEDED", patience_s=60)

        assert [attempt["cause"] for attempt in history(daemon)][3:] == ["done"]
        daemon.until(lambda: not (memory_cgroup / "cgroup.procs").read_text(), "the cgroup is empty")
