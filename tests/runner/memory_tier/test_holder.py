"""What a worker names is held, and becomes a checkpoint before one is selected. Real memory, processes and files."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from supervisor.config import load_config
from supervisor.core.program.effects import SalvageMemory
from supervisor.core.program.events import CopiesHeld, Event, MemorySalvaged
from supervisor.protocol.wire.messages import Committed, FromWorker, MemoryCopies, Restored
from supervisor.runner.attempt.background import BackgroundTasks
from supervisor.runner.attempt.program_services import ProgramServices
from supervisor.runner.attempt.services import Services
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from tests.host.memory_tier.test_salvage import Job

pytestmark = pytest.mark.integration


class Daemon(ProgramObserver):
    """The holder, and who hears of what it does."""

    def __init__(self, folder: Path, services: Services) -> None:
        path = folder / "test.conf"
        path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={folder}/ckpt\n")
        config, log = load_config(path, os.environ).programs["digits"], structlog.get_logger()
        assert config.job is not None
        self.records = ProgramRecords(config, services.ledger, services.save_durations, log)
        self.events: list[Event] = []
        self.said: list[FromWorker] = []
        self.settled: list[bool] = []
        program = ProgramServices(config, services, self.records, self, self.events.append, BackgroundTasks(log), log)
        self.holder = MemoryHolder(program, config.job, lambda: self.settled.append(self.holder.is_writing))
        self.job = Job(folder / "ckpt")

    def on_message(self, message: FromWorker, now: float) -> None:
        self.said.append(message)

    def name_memory(self) -> None:
        self.holder.on_message(MemoryCopies(3, os.getpid(), self.job.file.descriptor, self.job.file.size_bytes))

    @property
    def is_held(self) -> bool:
        """Whether the holder has the memory open, besides the job's own three descriptors (a mapping has one)."""
        file = os.fstat(self.job.file.descriptor).st_ino
        return [_inode(name) for name in os.listdir("/proc/self/fd")].count(file) > 3


def _inode(descriptor: str) -> int | None:
    try:
        return os.fstat(int(descriptor)).st_ino
    except OSError:  # it was the one of the listing
        return None


@pytest.fixture
def daemon(tmp_path: Path, services: Services) -> Iterator[Daemon]:
    it = Daemon(tmp_path, services)
    yield it
    it.holder.detach()
    it.job.held.close()
    it.job.file.close()


async def test_it_is_told_everywhere_as_a_commit_of_the_dead_attempt(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()

    daemon.holder.salvage(SalvageMemory(3))
    assert daemon.holder.is_writing
    await daemon.holder.settle()

    assert daemon.settled == [False]
    assert daemon.events == [CopiesHeld(3, True), MemorySalvaged(3, 10, "step-0000000010.a3", 1.5e9)]
    (committed,) = daemon.said
    assert isinstance(committed, Committed)
    assert (committed.attempt, committed.step, committed.checkpoint) == (3, 10, "step-0000000010.a3")
    newest = daemon.holder.pop_salvaged()
    assert newest is not None
    assert (newest.step, newest.attempt, newest.directory) == (10, 3, str(daemon.job.folder))
    assert daemon.holder.pop_salvaged() is None


async def test_while_the_disk_is_away_it_is_kept_and_tried_again_before_each_start(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.job.folder.rmdir()

    daemon.holder.salvage(SalvageMemory(3))
    await daemon.holder.settle()
    assert daemon.events == [CopiesHeld(3, True)]
    daemon.job.folder.mkdir()
    await daemon.holder.settle()

    assert daemon.events[1:] == [MemorySalvaged(3, 10, "step-0000000010.a3", 1.5e9)]


async def test_once_training_goes_on_from_an_older_state_it_is_let_go(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.job.folder.rmdir()
    daemon.holder.salvage(SalvageMemory(3))
    await daemon.holder.settle()
    assert daemon.is_held

    daemon.holder.on_message(Restored(4, 5, "step-0000000005.a2", 0.1))
    daemon.job.folder.mkdir()
    await daemon.holder.settle()

    assert not daemon.is_held
    assert daemon.job.committed == []


@pytest.mark.parametrize(
    "let_go",
    [
        lambda holder: holder.release(3),
        lambda holder: holder.detach(),
        lambda holder: holder.on_message(MemoryCopies(3, os.getpid(), None, 0, "no room")),
    ],
)
async def test_what_is_not_needed_is_let_go(daemon: Daemon, let_go: Callable[[MemoryHolder], None]) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.name_memory()  # as to a daemon that adopts the worker
    assert daemon.is_held

    let_go(daemon.holder)
    daemon.holder.salvage(SalvageMemory(3))
    await asyncio.wait_for(daemon.holder.settle(), 10.0)

    assert not daemon.is_held
    assert daemon.job.committed == []


async def test_memory_that_cannot_be_held_is_said(daemon: Daemon) -> None:
    daemon.holder.on_message(MemoryCopies(3, os.getpid(), 1))

    assert daemon.events == [CopiesHeld(3, False)]
    assert "not a file in memory" in str(daemon.records.training.memory_off)
