"""What a worker names is held, and becomes a checkpoint before one is selected. Real memory, processes and files."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from supervisor.config import load_config
from supervisor.core.program.effects import SalvageMemory
from supervisor.core.program.events import CopiesHeld, Event, MemoryOffer, MemorySalvaged
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.wire.messages import Committed, FromWorker, Hello, MemoryCopies, Restored
from supervisor.runner.attempt.services import ProgramServices, Services
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from tests.host.memory_tier.test_salvage import Job
from tests.waiting import wait_until_async

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


def hello(attempt: int) -> Hello:
    return Hello(attempt, 1, os.getpid(), "1", restores_memory=True)


def committed(attempt: int) -> Committed:
    return Committed(attempt, 12, f"step-0000000012.a{attempt}", 1, 0.1, stall_s=0.0)


async def until_let_go(daemon: Daemon) -> None:
    """A thread closes it."""
    await wait_until_async(lambda: not daemon.is_held, "it is let go")


async def until_written(daemon: Daemon) -> None:
    await wait_until_async(lambda: not daemon.holder.is_writing)


async def received(offer: MemoryOffer) -> list[int]:
    """The steps that a worker finds in what it is offered, newest first."""

    def work() -> list[int]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"\0{offer.socket}")
            _, (descriptor,), _, _ = socket.recv_fds(connection, 100, 1)
        with open(descriptor, "rb") as file:
            return [layout.prove(half).step for half in layout.newest_first(memoryview(file.read()))]

    return await asyncio.to_thread(work)


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

    with capture_logs() as logged:
        daemon.holder.on_message(Restored(4, 5, "step-0000000005.a2", 0.1))
    assert [(entry["event"], entry["attempt"]) for entry in logged] == [("memory.lost", 3)]
    daemon.job.folder.mkdir()
    await daemon.holder.settle()

    await until_let_go(daemon)
    assert daemon.job.committed == []


@pytest.mark.parametrize(
    "let_go",
    [
        lambda holder: holder.live.release(3),
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

    await until_let_go(daemon)
    assert daemon.job.committed == []


async def test_a_worker_that_dies_as_it_takes_larger_memory_leaves_the_copies_before(daemon: Daemon) -> None:
    """Its last word names memory that is gone with it."""
    daemon.job.copy(10)
    daemon.name_memory()
    gone = await asyncio.create_subprocess_exec("/bin/true")
    await gone.wait()

    daemon.holder.on_message(MemoryCopies(3, gone.pid, 5, 1 << 20))
    daemon.holder.salvage(SalvageMemory(3))
    await daemon.holder.settle()

    assert daemon.events[-2:] == [CopiesHeld(3, True), MemorySalvaged(3, 10, "step-0000000010.a3", 1.5e9)]


async def test_memory_that_cannot_be_held_is_said(daemon: Daemon) -> None:
    daemon.holder.on_message(MemoryCopies(3, os.getpid(), 1))

    assert daemon.events == [CopiesHeld(3, False)]
    assert "not a file in memory" in str(daemon.records.training.memory_off)


async def test_a_worker_that_waits_is_offered_the_memory_while_that_is_written(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.holder.salvage(SalvageMemory(3))
    daemon.holder.on_message(hello(4))

    assert await daemon.holder.until_restorable(4)
    offer = daemon.holder.offer()

    assert offer is not None
    assert offer.of_attempt == 3
    assert await received(offer) == [10]
    await until_written(daemon)
    assert daemon.is_held, "the worker may not have it yet"
    daemon.holder.on_message(Restored(4, 10, "step-0000000010.a3", 0.1, from_memory=True))
    await until_let_go(daemon)


@pytest.mark.parametrize("worker", [None, Hello(4, 1, 1, "1"), Hello(3, 1, 1, "1", restores_memory=True)])
async def test_without_a_worker_that_waits_and_can_it_is_on_the_disk_first(daemon: Daemon, worker: Hello) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.holder.salvage(SalvageMemory(3))
    if worker is not None:
        daemon.holder.on_message(worker)

    assert not await daemon.holder.until_restorable(4)
    await daemon.holder.settle()

    assert daemon.job.committed == ["step-0000000010.a3"]
    assert daemon.holder.offer() is None


async def test_a_worker_that_comes_later_need_not_wait_for_the_disk(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.holder.salvage(SalvageMemory(3))
    waits = asyncio.create_task(daemon.holder.until_restorable(4))
    await asyncio.sleep(0)

    daemon.holder.on_message(hello(4))

    assert await waits


@pytest.mark.parametrize("newer", [MemoryCopies(4, os.getpid(), None, 0, "none"), committed(4)])
async def test_what_could_not_be_written_is_offered_again_until_the_worker_has_a_newer_state(
    daemon: Daemon, newer: FromWorker
) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.job.folder.rmdir()
    daemon.holder.salvage(SalvageMemory(3))
    daemon.holder.on_message(hello(4))
    assert await daemon.holder.until_restorable(4)
    assert daemon.holder.offer() is not None
    await until_written(daemon)
    daemon.holder.on_message(Restored(4, 10, "step-0000000010.a3", 0.1, from_memory=True))
    assert daemon.is_held

    begins = asyncio.create_task(daemon.holder.until_restorable(5))
    await until_written(daemon)  # which fails once more
    daemon.holder.on_message(hello(5))
    assert await begins, "attempt 4 has died before it had a state of its own"
    await until_written(daemon)
    daemon.holder.on_message(Restored(5, 10, "step-0000000010.a3", 0.1, from_memory=True))
    daemon.holder.on_message(replace(newer, attempt=5))

    await until_let_go(daemon)
    daemon.job.folder.mkdir()
    await daemon.holder.settle()
    assert daemon.job.committed == []


async def test_what_was_offered_and_is_written_is_not_written_again(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.holder.salvage(SalvageMemory(3))
    daemon.holder.on_message(hello(4))
    assert await daemon.holder.until_restorable(4)
    daemon.holder.offer()
    await until_written(daemon)

    assert daemon.holder.offer() is None, "it is on the disk"
    await daemon.holder.settle()  # for the next attempt, as this one died

    assert len([event for event in daemon.events if isinstance(event, MemorySalvaged)]) == 1
    await until_let_go(daemon)


async def test_what_is_no_newer_than_what_its_worker_saved_is_not_said_to_be_lost(daemon: Daemon) -> None:
    daemon.job.copy(10)
    newest = daemon.job.save(12, attempt=3)
    daemon.name_memory()
    with capture_logs() as logs:
        daemon.holder.salvage(SalvageMemory(3))
        daemon.holder.on_message(hello(4))
        assert await daemon.holder.until_restorable(4)
        assert daemon.holder.offer() is not None
        await until_written(daemon)
        assert daemon.holder.unwritten is None
        daemon.holder.on_message(Restored(4, 12, newest, 0.1))
        await until_let_go(daemon)

    assert [entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")] == ["memory.not_salvaged"]


@pytest.mark.parametrize("is_being_written", [False, True])
async def test_what_no_disk_took_is_written_by_whoever_is_given_it(
    daemon: Daemon, tmp_path: Path, services: Services, is_being_written: bool
) -> None:
    """As when the section of a job changes whose disk is away, or the daemon is executed anew."""
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.job.folder.rmdir()
    daemon.holder.salvage(SalvageMemory(3))
    await daemon.holder.settle()
    following = Daemon(tmp_path, services)  # makes the folder again
    if is_being_written:
        daemon.holder.try_again()

    left = daemon.holder.hand_over()
    assert left is not None
    assert daemon.holder.hand_over() is None
    daemon.holder.detach()
    following.holder.take_over(left)
    await following.holder.settle()
    await until_written(daemon)

    assert daemon.job.committed == ["step-0000000010.a3"]
    assert daemon.events == [CopiesHeld(3, True)], "one tells of it"
    if not is_being_written:  # else it may have been on the disk already
        assert following.events == [MemorySalvaged(3, 10, "step-0000000010.a3", 1.5e9)]
    await until_let_go(daemon)
    following.job.held.close()
    following.job.file.close()


async def test_what_is_let_go_before_a_disk_took_it_is_said(daemon: Daemon) -> None:
    daemon.job.copy(10)
    daemon.name_memory()
    daemon.job.folder.rmdir()
    daemon.holder.salvage(SalvageMemory(3))
    await daemon.holder.settle()

    with capture_logs() as logged:
        daemon.holder.detach()
        daemon.holder.detach()

    assert [(entry["event"], entry["attempt"]) for entry in logged] == [("memory.lost", 3)]
