"""A checkpoint that its disk has damaged: what is sent of it, and what is tried again, and when."""

import asyncio
from pathlib import Path

import pytest

from supervisor.core.program.facts import Policy, ProgramFacts, State
from supervisor.protocol.layout import CheckpointName
from supervisor.runner.attempt.services import Services
from tests.host.mirror.test_run import FILES
from tests.runner.mirror.test_rollback import MirroredJob
from tests.waiting import stays_async

pytestmark = pytest.mark.integration


async def test_what_its_disk_has_changed_is_not_sent_again_and_again_and_a_newer_one_at_once(
    tmp_path: Path, services: Services
) -> None:
    """Even while the program leaves, when errors are tried again each second."""
    with MirroredJob(tmp_path, services, "durable=remote\n") as job:
        await job.train_and_save(100)
        job.mirror.on_settled(State.RUNNING, leaving(), 0.0)
        damaged = job.commit(200, 1, FILES[0])
        await job.until(lambda: job.mirror.error, "it is refused")

        assert "is not what the worker has written" in (job.mirror.error or "")
        await stays_async(lambda: job.mirror.failures == 1, "it is tried again", 3.0)
        assert job.mirror.waits and not job.mirror.has(str(damaged))

        sound = job.commit(300, 1)
        async with asyncio.timeout(20.0):
            await job.until(lambda: job.mirror.has(str(sound)), "the newer one is there")
        assert job.mirror.error is None
        assert job.fetched_elsewhere() == CheckpointName(300, 1)


def leaving() -> ProgramFacts:
    return ProgramFacts(Policy("digits", is_job=True), State.RUNNING, closing=True)
