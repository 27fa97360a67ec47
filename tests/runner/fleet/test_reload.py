"""What a daemon does for its programs before it becomes the next one."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from structlog.testing import capture_logs

from supervisor.config import load_config
from supervisor.protocol.wire.messages import MemoryCopies
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs
from tests.host.memory_tier.test_salvage import Job
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "ckpt")
    job.held.close()
    yield job
    job.file.close()


async def test_what_a_worker_left_in_memory_is_kept_if_nobody_knows_yet_why_it_died(
    tmp_path: Path, services: Services, job: Job
) -> None:
    """Its end waits in the mailbox for what is found of it."""
    path = tmp_path / "test.conf"
    keys = f"command=/bin/sleep 1000\ncheckpoint_dir={job.folder}\nautorestart=false\nstandby=off\n"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\n{keys}")
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    await programs.start_all()
    runner = programs.runners["digits"]
    await wait_until_async(lambda: runner.pid is not None and runner.facts.mount is not None, "it is told to go", 20.0)
    job.copy(10, attempt=1)
    assert runner.memory is not None
    runner.memory.on_message(MemoryCopies(1, os.getpid(), job.file.descriptor, job.file.size_bytes))
    assert runner.pid is not None
    os.kill(runner.pid, SIGKILL)
    while runner.current.attempt is not None:  # noqa: ASYNC110 - a longer pause, and it waits no more
        await asyncio.sleep(0)
    assert runner.pid is not None, "it waits"

    with capture_logs() as logged:
        await programs.hand_over()

    assert "memory.lost" not in [entry["event"] for entry in logged]
    assert job.committed == ["step-0000000010.a1"]
