"""When the state is copied into memory, what that costs, and when it is not done at all."""

import contextlib
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.available_memory import available_memory, resident_bytes
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import Description
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import FromWorker, MemoryCopies
from tests.waiting import wait_until
from worker.process.attempt import Attempt
from worker.process.requests import PendingRequests
from worker.saving import memory_tier
from worker.saving.memory_file import CopyRoom, MemoryFile, NoRoom
from worker.saving.memory_tier import CannotCopy, CopyCadence, MemoryTier


@dataclass
class Listener:
    """Who is told what the worker says."""

    said: list[FromWorker] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def send_message(self, message: FromWorker) -> None:
        self.said.append(message)

    def show_message(self, text: str) -> None:
        self.shown.append(text)


class Run:
    """A run whose state is `size` bytes."""

    def __init__(self, size: int, fail: Exception | None = None) -> None:
        self.size, self.fail, self.step = size, fail, 0
        self.slow_s = 0.0
        self.listener = Listener()
        self.attempt = Attempt(Launch(job="digits"), PendingRequests(), self.listener, number=3)  # type: ignore[arg-type]
        self.tier: MemoryTier[int] = MemoryTier(self.attempt, self.copy)

    def copy(self, step: int, room: CopyRoom) -> Callable[[], Description]:
        if self.fail is not None:
            raise self.fail
        offset, memory = room.take(self.size)
        memory[:] = bytes([step % 256]) * self.size
        time.sleep(self.slow_s)
        return lambda: Description("digits", 3, step, 1.5, (), (layout.FilePlace("state", offset, self.size),))

    def until(self, condition: Callable[[], Any]) -> None:
        """Steps until that holds."""

        def do_step() -> Any:
            self.step += 1
            self.tier.on_step_boundary(lambda: self.step)
            return condition()

        wait_until(do_step, "it holds")

    @property
    def newest(self) -> Description:
        message = next(each for each in reversed(self.listener.said) if isinstance(each, MemoryCopies))
        with open(f"/proc/self/fd/{message.descriptor}", "rb") as file:
            return layout.prove(next(layout.newest_first(memoryview(file.read()))))


def test_the_memory_is_named_once_it_holds_a_state_and_then_holds_newer_ones() -> None:
    run = Run(10_000)

    run.until(lambda: run.tier.newest)
    first = run.newest.step
    assert [type(each) for each in run.listener.said] == [MemoryCopies]
    run.until(lambda: run.tier.newest is not None and run.tier.newest.step != first)

    assert run.tier.newest is not None
    assert run.newest.step == run.tier.newest.step
    assert memory_tier.LEAST_INTERVAL_S <= run.tier.newest.interval_s <= memory_tier.INTERVAL_S
    assert 0.0 < run.tier.newest.cost_s < 0.1
    assert len(run.listener.said) == 1
    run.tier.close()


def test_a_state_that_has_grown_gets_larger_memory_and_the_old_one_stays_until_that_holds_it() -> None:
    before = mapped_inodes()
    run = Run(10_000)
    run.until(lambda: run.tier.newest)
    first, run.size = run.newest.step, 9_000_000

    run.until(lambda: len(run.listener.said) == 2)

    assert run.newest.step > first
    assert run.newest.files[0].size == 9_000_000
    assert mapped_bytes(before) < 2 * 15_000_000, "the smaller one is gone"
    run.tier.close()


def test_memory_that_was_too_small_before_it_held_a_state_is_given_back() -> None:
    """How much a state of several parts takes is known once the last of them has found no room."""
    gc.freeze()  # the collection below passes over what other tests left
    before = inodes_of_memory()
    run = Run(10_000)
    copy = run.copy

    def copy_two_parts(step: int, room: CopyRoom) -> Callable[[], Description]:
        complete = copy(step, room)
        room.take(9_000_000)
        return complete

    run.tier = MemoryTier(run.attempt, copy_two_parts)

    run.until(lambda: run.tier.newest)

    gc.collect()
    assert len(inodes_of_memory() - before) == 1
    run.tier.close()


def inodes_of_memory() -> set[int]:
    """Of the files in memory that this process has open."""
    opened = ((path, path.readlink()) for path in [*Path("/proc/self/fd").iterdir()] if path.is_symlink())
    return {os.stat(path).st_ino for path, target in opened if target.name.startswith("memfd:stepkeeper-state")}


@pytest.mark.parametrize("fail", [CannotCopy("only TensorFlow can write it"), MemoryError("no room")])
def test_a_state_that_cannot_be_copied_is_said_and_training_goes_on(fail: Exception) -> None:
    run = Run(10, fail)

    run.until(lambda: run.listener.said)

    assert run.listener.said == [MemoryCopies(3, os.getpid(), None, 0, str(fail))]
    assert run.tier.on_step_boundary(lambda: 1) == 0.0
    run.tier.close()


def test_a_state_too_large_for_an_eighth_of_the_memory_is_not_copied() -> None:
    run = Run(0)
    run.fail = NoRoom(available_memory()[0] // 15)

    run.until(lambda: run.listener.said)

    message = run.listener.said[0]
    assert isinstance(message, MemoryCopies)
    assert message.descriptor is None
    assert "more than an eighth of" in str(message.why_not)
    run.tier.close()


def test_a_state_that_is_too_slow_to_copy_is_copied_no_more_and_its_memory_is_given_back() -> None:
    before = mapped_inodes()
    run = Run(10_000)
    run.slow_s = 1.01 * memory_tier.LONGEST_S * memory_tier.COST_SHARE
    cadence = run.tier._cadence
    run.until(lambda: cadence.copies == 1)
    for _ in range(memory_tier.JUDGED):
        cadence.record_copy(run.slow_s, time.monotonic())
    cadence.counted_at -= 1000 * memory_tier.LONGEST_S

    run.until(lambda: len(run.listener.said) == 2)

    assert "a copy costs" in str(run.listener.said[-1])
    assert run.tier.newest is None
    assert mapped_bytes(before) == 0
    run.tier.close()


def test_a_limit_of_the_jobs_own_counts_as_the_memory_there_is() -> None:
    run = Run(1 << 20)
    run.attempt.launch = replace(run.attempt.launch, memory_limit=resident_bytes() + (1 << 24))

    run.until(lambda: run.listener.said)

    assert "more than an eighth of the 1" in str(run.listener.said)
    run.tier.close()


def test_once_memory_becomes_short_it_is_given_back_though_no_step_ends() -> None:
    before = mapped_inodes()
    run = Run(1 << 20)
    run.until(lambda: run.tier.newest)
    taken = mapped_bytes(before)

    left = memory_tier.LEAST_LEFT * taken - (1 << 20)
    run.attempt.launch = replace(run.attempt.launch, memory_limit=resident_bytes() + left)
    wait_until(lambda: len(run.listener.said) == 2, "it is given back")

    assert mapped_bytes(before) == 0

    assert "of memory are left" in str(run.listener.said[1])
    assert run.tier.newest is None
    run.tier.close()


def mapped_copies() -> list[tuple[int, int]]:
    """Inode and size of each piece of memory for copies that this process still has."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "stepkeeper-state" in line]
    places = [(int(inode), place.split("-")) for place, _, _, _, inode, *_ in lines]
    return [(inode, int(end, 16) - int(begin, 16)) for inode, (begin, end) in places]


def mapped_inodes() -> set[int]:
    """The memory that other tests left: it goes when the garbage collector comes by."""
    return {inode for inode, _ in mapped_copies()}


def mapped_bytes(but: set[int]) -> int:
    """The memory of copies that this process still has, without these inodes."""
    return sum(size for inode, size in mapped_copies() if inode not in but)


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60), st.lists(st.floats(0.0, 20.0), max_size=60))
def test_copies_take_at_most_a_hundredth_of_any_time_the_credit_and_one_copy(
    costs_s: list[float], pauses_s: list[float]
) -> None:
    """`pauses_s`: by how much copies are later than they could be."""
    cadence, begun = CopyCadence(100.0), []
    for cost_s, pause_s in zip(costs_s, [*pauses_s, *[0.0] * len(costs_s)], strict=False):
        begun.append(cadence.due_at + pause_s)
        cadence.record_copy(cost_s, begun[-1])

    for first in range(len(begun)):
        spent_s, dearest_s = 0.0, 0.0
        for number in range(first, len(begun)):
            spent_s, dearest_s = spent_s + costs_s[number], max(dearest_s, costs_s[number])
            share_s = memory_tier.COST_SHARE * (begun[number] - begun[first])
            assert spent_s <= share_s + memory_tier.CREDIT_S + dearest_s + 1e-6
    assert all(later - before >= memory_tier.LEAST_INTERVAL_S - 1e-6 for before, later in pairwise(begun))


@pytest.mark.parametrize(
    ("cost_s", "interval_s"), [(0.0001, 0.25), (0.0015, 0.5), (0.003, 1.0), (0.009, 1.0), (0.02, 2.0)]
)
def test_copies_that_cost_next_to_nothing_come_more_often(cost_s: float, interval_s: float) -> None:
    cadence = CopyCadence(0.0, credit_s=0.0)
    for _ in range(100):
        before = cadence.due_at
        cadence.record_copy(cost_s, before)

    assert cadence.interval_s == pytest.approx(interval_s)
    assert cadence.due_at - before == pytest.approx(interval_s, rel=0.01)


def test_copies_come_every_second_from_the_first_on_and_dear_ones_end() -> None:
    cadence, begun = CopyCadence(0.0), []
    for _ in range(30):
        begun.append(cadence.due_at)
        cadence.record_copy(0.009, cadence.due_at)
    assert begun == [float(second) for second in range(30)]
    assert cadence.is_worth_it

    for _ in range(30):
        cadence.record_copy(0.3, cadence.due_at)
    assert not cadence.is_worth_it
    assert cadence.interval_s == pytest.approx(30.0, rel=0.01)


@pytest.mark.integration
def test_the_size_of_the_file_is_sealed_and_a_forked_process_does_not_hold_it() -> None:
    file = MemoryFile(10_000)
    with pytest.raises(PermissionError):
        os.ftruncate(file.descriptor, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file.descriptor, 1 << 30)
    inode = os.fstat(file.descriptor).st_ino
    assert inode in open_inodes()

    if (pid := os.fork()) == 0:
        os._exit(inode in open_inodes())

    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert inode in open_inodes()
    assert file.size_bytes == 2 * 12288
    file.close()


def open_inodes() -> list[int]:
    """Of all descriptors; calls only what can't raise in a fork."""
    found = []
    for number in range(1024):
        with contextlib.suppress(OSError):
            found.append(os.fstat(number).st_ino)
    return found
