"""A program that is ended for good leaves nothing behind in the daemon, and loses nothing that can still be written."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from supervisor.config import load_config
from supervisor.core.program.effects import SalvageMemory
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.protocol.wire.messages import MemoryCopies
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.host.memory_tier.test_salvage import Job
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration


def descriptors_of(file: int) -> int:
    """How many descriptors of an open file this process has."""
    inode, seen = os.fstat(file).st_ino, 0
    for path in Path("/proc/self/fd").iterdir():
        try:
            seen += path.stat().st_ino == inode
        except FileNotFoundError:  # the one of the listing
            continue
    return seen


@pytest.mark.parametrize("is_back", [True, False])
async def test_what_a_dead_worker_left_and_no_disk_took_is_tried_once_more_and_let_go(
    tmp_path: Path, services: Services, is_back: bool
) -> None:
    """As when the checkpoint_dir of a job whose disk is full is changed: nobody else would ever let go of it."""
    path, job = tmp_path / "test.conf", Job(tmp_path / "ckpt")
    job.held.close()
    job.copy(10)
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={job.folder}\n")
    runner = Runner(load_config(path, os.environ).programs["digits"], services)
    runner.takeover.advance(TakeoverStage.STARTABLE)
    assert runner.memory is not None
    await wait_until_async(lambda: descriptors_of(job.file.descriptor) == 2, "only the job has it")
    runner.memory.on_message(MemoryCopies(3, os.getpid(), job.file.descriptor, job.file.size_bytes))
    job.folder.rmdir()
    runner.memory.salvage(SalvageMemory(3))
    await runner.memory.settle()
    if is_back:
        job.folder.mkdir()

    await asyncio.wait_for(retire(runner, "update"), 60.0)

    await wait_until_async(lambda: descriptors_of(job.file.descriptor) == 2, "it is let go", 10.0)
    assert not is_back or job.committed == ["step-0000000010.a3"]
    job.file.close()


class DeadDisk(CheckpointStore):
    """Nothing that is written there ever ends."""

    async def salvage(self, *given: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("leaves_memory", [False, True])
async def test_a_dead_disk_keeps_nobody_from_leaving(tmp_path: Path, services: Services, leaves_memory: bool) -> None:
    path, job = tmp_path / "test.conf", Job(tmp_path / "ckpt")
    job.held.close()
    job.copy(10)
    section = f"command=/bin/true\ncheckpoint_dir={job.folder}\nflush_timeout=0.2\n"
    path.write_text(f"[supervisord]\n[program:digits]\n{section}")
    config = load_config(path, os.environ).programs["digits"]
    runner = Runner(config, replace(services, checkpoints=DeadDisk()))
    runner.takeover.advance(TakeoverStage.STARTABLE)
    assert runner.memory is not None
    runner.memory.on_message(MemoryCopies(3, os.getpid(), job.file.descriptor, job.file.size_bytes))
    runner.memory.salvage(SalvageMemory(3))

    with capture_logs() as logged:
        await asyncio.wait_for(retire(runner, "update", leaves_memory=leaves_memory), 60.0)

    said = ["memory.not_written"] if leaves_memory else ["memory.not_written", "memory.lost"]
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == said
    assert (runner.memory.hand_over() is not None) is leaves_memory
    job.file.close()
