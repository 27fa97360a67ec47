"""Trains steps a second time from the same state and compares the bits: the turn of the loop, and what follows from it.

A checkpoint was begun at step S, and enough training time is earned (`budget.py`). When the loop asks for its next
batch, all that a checkpoint would hold is copied. At S + n, when it asks again, this state is copied too, and the one
of S is put back: steps, position, variables, generators, `run.state`. So the same loop is given the same batches
again, by the same generator, and trains the same n steps, without knowing it. When it then asks for the batch after S
+ n, the state is compared with the copy, byte by byte, and training goes on.

Nothing is lost by it, and nothing can be told from the result. Unless all is equal, the copy of the first time is put
back: after a difference, when a flush, a stop or an export is requested (which waits for one step at most), when the
time is used up, and when the loop is left within the replay. Until then, nothing of the replayed steps is reported or
saved. A process that dies in a replay has done what it had reported before, and begins from its newest checkpoint.

The loop asks between two steps, behind whatever its body does after `step_done`; so all of a body is done again, and
nothing twice in one state.
"""

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

from supervisor.protocol.checkpoints.replayed import add_replayed
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.plurals import counted, counted_bytes
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Replayed
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.replay.budget import ReplayBudget
from worker.replay.direct_loop import loop_of, why_not_direct
from worker.replay.replayed_run import ReplayedRun, StateCopy

NO_BATCHES = "the loop does not take its batches from run.batches, so it can't be led back to earlier ones"
MOST_MEMORY = 0.5  # of what is available; training itself may need more at any time
MOST_BATCH_BYTES = 256 << 20  # of the batches that are kept for the second time
_CGROUP = Path("/sys/fs/cgroup")
MAX_NAMED = 20  # tensors in the text for people; the message has more

Tensors = TypeVar("Tensors")
Item = TypeVar("Item")
Batch = TypeVar("Batch")


@dataclass(slots=True)
class _Interval(Generic[Tensors, Item]):
    """Steps that are trained twice. `before`: the state at their beginning, which took `copied_s` to copy; `items`:
    what was read for them, of so many `bytes`; `passes`: over the data, before the newest item was read."""

    before: StateCopy[Tensors]
    first_step: int
    last_step: int
    copied_s: float = 0.0
    items: list[Item] = field(default_factory=list)
    bytes: int = 0
    passes: Mapping[str, Any] = field(default_factory=dict)


class Replays(Generic[Tensors, Item]):
    """The replays of one run. All of it runs on the thread that trains."""

    def __init__(self, run: ReplayedRun[Tensors], attempt: Attempt, directory: Path | None) -> None:
        """Training begins now. `directory`: where the run's checkpoints are."""
        launch = attempt.launch
        self._run = run
        self._attempt = attempt
        self._directory = directory
        self._budget = ReplayBudget(launch.replay or 0.0, time.monotonic())
        self._stops = launch.on_replay_difference == "stop"
        self._is_off = launch.replay is None
        self._is_checked = False
        self._batches: weakref.ref[Any] | None = None
        self._known_loops: set[tuple[CodeType, int]] = set()
        self._tried_step: int | None = None  # the checkpoint at which a replay was decided about
        self._says_memory = True
        self._is_replaying = False

    def give_up(self, why: str) -> None:
        """Replays nothing from now on, and says why."""
        if not self._is_off:
            self._is_off = True
            report_no_replays(self._attempt, why)

    def watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Returns the generator that the script's loop reads, to know it again."""
        self._batches = weakref.ref(batches)
        return batches

    def leave(self) -> None:
        """Ends a replay whose loop was left while the script still holds the generator."""
        batches = None if self._batches is None else self._batches()
        if self._is_replaying and batches is not None:
            batches.close()

    def over(
        self,
        items: Iterator[Item],
        size_of: Callable[[Item], int],
        again: Callable[[], Iterator[Item]] | None = None,
        keep: Callable[[Item], Item] = lambda item: item,
    ) -> Iterator[Item]:
        """Passes on what is read of one epoch, some of it a second time.

        `again`: reads from the position that was put back; None: the items are kept (`keep`: what to do for that with
        each; `size_of`: its bytes).
        """
        interval: _Interval[Tensors, Item] | None = None
        for item in items:
            if interval is not None and again is None:
                interval.items.append(keep(item))
                interval.bytes += size_of(item)
            yield item
            if self._is_off or not self._run.loop.is_between_steps():
                continue
            if interval is not None:  # before the next item is read: the end of the data would change it
                interval.passes = self._run.loop.read_passes()
            if interval is None:
                interval = self._begin()
            elif self._attempt.requests.has_work or interval.bytes > MOST_BATCH_BYTES:
                interval = None
            elif self._attempt.requests.step >= interval.last_step or self._is_at_save:
                yield from self._train_again(interval, again)
                interval = self._begin()
        if interval is not None and self._run.loop.is_between_steps() and not self._attempt.requests.has_work:
            yield from self._train_again(interval, again)

    @property
    def _is_at_save(self) -> bool:
        """Whether a checkpoint of the present step was begun."""
        return self._run.saves.begun_step == self._attempt.requests.step

    def _begin(self) -> _Interval[Tensors, Item] | None:
        """Begins an interval here, if a checkpoint was begun here and there is time for a replay."""
        run, now, step = self._run, time.monotonic(), self._attempt.requests.step
        if not self._is_at_save or self._tried_step == step or self._attempt.requests.has_work:
            return None
        self._tried_step = step
        step_s = run.saves.step_s
        if step_s is None or self._budget.left_s(now) <= 0:
            return None
        is_known = self._is_checked and not run.saves.findings
        if not is_known and (why := run.why_not_replayable()) is not None:
            self.give_up(why)
            return None
        self._is_checked = True
        steps = self._budget.choose_steps(now, step_s, run.state_bytes)
        if steps < 1 or not self._has_memory() or not self._can_lead_back(sys._getframe(1)):
            return None
        try:
            interval: _Interval[Tensors, Item] = _Interval(run.copy(), step, step + steps)
        except MemoryError as error:
            self._explain_memory(describe_error(error))
            return None
        interval.copied_s = time.monotonic() - now
        self._budget.record(interval.copied_s)
        return interval

    def _can_lead_back(self, inside: FrameType) -> bool:
        """Whether the loop takes its batches from the run alone. `inside`: a frame of the generator that it reads."""
        loop = loop_of(inside)
        place = None if loop is None else (loop.f_code, loop.f_lasti)
        if place in self._known_loops:
            return True
        batches = None if self._batches is None else self._batches()
        why = why_not_direct(loop, batches)
        if why is not None or place is None:
            self.give_up(why or "nothing is known of the loop")
            return False
        self._known_loops.add(place)
        return True

    def _has_memory(self) -> bool:
        """Whether two copies and the batches take no more than a part of the memory that is left."""
        available, needed = _available_bytes(), 2 * self._run.state_bytes + MOST_BATCH_BYTES
        if available is None or needed <= MOST_MEMORY * available:
            return True
        self._explain_memory(f"it takes up to {counted_bytes(needed)}, and {counted_bytes(available)} are left")
        return False

    def _explain_memory(self, why: str) -> None:
        if self._says_memory:
            self._says_memory = False
            self._attempt.reporter.show_message(f"replays no steps while memory is short: {why}")

    def _train_again(
        self, interval: _Interval[Tensors, Item], again: Callable[[], Iterator[Item]] | None
    ) -> Iterator[Item]:
        """Trains the steps of an interval a second time. Ends in the state of the first time in any case."""
        run, began_at = self._run, time.monotonic()
        try:
            after = run.copy()
        except MemoryError as error:
            self._explain_memory(describe_error(error))
            return
        if interval.passes != interval.before.loop.passes or not run.can_go_back(interval.before, after):
            self._budget.record(time.monotonic() - began_at)
            return
        steps = after.loop.step - interval.first_step
        if steps == 0:
            return
        is_done, steps_s, differing = False, 0.0, tuple[str, ...]()
        run.loop.begin()
        self._is_replaying = True
        try:
            run.put_back(interval.before)
            resumed_at = time.monotonic()
            for item in iter(interval.items) if again is None else again():
                yield item
                if not run.loop.is_between_steps():
                    continue
                is_done = run.loop.read_step() == after.loop.step
                if is_done or self._attempt.requests.has_work or self._budget.must_end(time.monotonic(), began_at):
                    break
            steps_s = time.monotonic() - resumed_at
            differing = run.differences(after) if is_done else ()
        finally:
            if not is_done or differing:
                run.put_back(after)
            if is_done and not differing:
                self._mark(interval.first_step, after.loop.step)
            took_s = time.monotonic() - began_at
            self._budget.record(took_s, took_s - steps_s + interval.copied_s if is_done else None)
            self._is_replaying = False
            run.loop.end(took_s)
            self._report(interval.first_step, steps if is_done else 0, took_s, differing)
        if differing and self._stops:
            text = _describe(interval.first_step, steps, differing)
            self._attempt.exit_with_error(WorkerExit.NOT_REPEATABLE, text, after.loop.step)
        if self._attempt.requests.has_work:
            run.loop.serve_requests()

    def _agreed(self, first_step: int, last_step: int) -> tuple[str, ...]:
        """The checkpoints of the two states between which the steps lie, as far as there are some."""
        steps = (first_step, *((last_step,) if self._is_at_save else ()))
        return tuple(str(CheckpointName(step, self._attempt.number)) for step in steps)

    def _mark(self, first_step: int, last_step: int) -> None:
        if self._directory is None:
            return
        try:
            add_replayed(self._directory, self._agreed(first_step, last_step))
        except OSError as error:
            self._attempt.reporter.show_message(f"cannot record which checkpoints were replayed: {error}")

    def _report(self, first_step: int, steps: int, took_s: float, differing: tuple[str, ...]) -> None:
        if differing:
            self._attempt.reporter.show_message(_describe(first_step, steps, differing))
        agreed = self._agreed(first_step, first_step + steps) if steps and not differing else ()
        step = self._attempt.requests.step
        self._attempt.reporter.send_message(Replayed(self._attempt.number, step, steps, took_s, differing, agreed))


def report_no_replays(attempt: Attempt, why: str) -> None:
    """Says that this attempt trains no steps a second time, although its job asks for it."""
    attempt.reporter.show_message(f"replays no steps: {why}")
    attempt.reporter.send_message(Replayed(attempt.number, attempt.requests.step, 0, 0.0, problem=why))


def _describe(first_step: int, steps: int, differing: tuple[str, ...]) -> str:
    more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
    return (
        f"{counted(steps, 'step')} from step {first_step} on gave other bits when they were trained a second time: "
        f"{', '.join(differing[:MAX_NAMED])}{more}; the arithmetic of this host is wrong, or training is not "
        f"deterministic (docs/replay.md)"
    )


def _available_bytes() -> int | None:
    """The smaller of what the host has left and what the process's control group allows; None if neither is known."""
    known = (size for size in (_bytes_of_host(), _bytes_of_group()) if size is not None)
    return min(known, default=None)


def _bytes_of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _bytes_of_group() -> int | None:
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        folder = _CGROUP / group
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None
