"""Copies the state into memory every second or so, where it outlives this process; decides when, and whether at all.

The copy is made between two steps, as for a save. A thread beside training completes it: it adds the small files and
hashes all. What this costs training is measured, and the next copy comes when it was at most COST_SHARE of the time,
sooner than after a second only for CHEAP_SHARE.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from supervisor.protocol.available_memory import available_memory, resident_bytes
from supervisor.protocol.memory_tier.layout import Description, half_bytes
from supervisor.protocol.plurals import counted_bytes
from supervisor.protocol.wire.messages import MemoryCopies
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.saving.memory_file import CopyRoom, MemoryFile, NoRoom

INTERVAL_S = 1.0  # of lost work hardly anybody notices less
LEAST_INTERVAL_S = 0.25  # of copies that cost next to nothing: what is lost then is small beside a restart
CHEAP_SHARE = 0.003  # of training time, for copies more often than each INTERVAL_S
COST_SHARE = 0.01  # of training time, for all
CREDIT_S = 1.0  # what copies may cost in advance: a crash soon after a start is to cost little, too
LONGEST_S = 20.0  # between copies: the shortest automatic interval of saves is 30 s, so memory would buy little
MEASURED = 3  # copies, before their costs are smoothed: the first ones find cold memory
JUDGED = 10  # copies, before they may be found too dear: a host may be busy for a minute
MEMORY_SHARE = 8  # both copies take at most this part of the memory that is left: the rest is for training and its data
LEAST_LEFT = 3  # times what they take; if less is left later, they are given back: training may want it soon
LOOK_S = 1.0  # between looks at the memory that is left
SPARE = 1.0 / 16  # of a copy's size, as histories grow
SPARE_BYTES = 4 << 20  # for the small files and the description
WEIGHT = 0.3  # of the newest copy in the smoothed cost
RAN_OUT = "with them, an earlier attempt ran out of memory; `supervisorctl restart` tries them again"

Boundary = TypeVar("Boundary")

Complete = Callable[[], Description]
CopyState = Callable[[Boundary, CopyRoom], Complete]
"""Copies the state into the room, and returns what completes the copy on another thread. Raises CannotCopy, NoRoom."""


class CannotCopy(Exception):
    """The state can't be copied into memory; the text says why."""


@dataclass(slots=True)
class CopyCadence:
    """When the next copy may begin, by what the ones before cost training. Seconds, points in time are monotonic.

    COST_SHARE of the time that passes pays for them, and none begins before all are paid. What was not spent is kept up
    to CREDIT_S. So in any time they take at most that share of it, CREDIT_S and one copy.
    """

    counted_at: float
    credit_s: float = CREDIT_S
    cost_s: float = 0.0
    copies: int = 0

    def record_copy(self, cost_s: float, began_at: float) -> None:
        """A copy cost training so much."""
        self.copies += 1
        weight = 1.0 if self.copies <= MEASURED else WEIGHT
        self.cost_s += weight * (cost_s - self.cost_s)
        self.credit_s = min(CREDIT_S, self.credit_s + COST_SHARE * (began_at - self.counted_at)) - cost_s
        self.counted_at = began_at

    def record_other_cost(self, cost_s: float) -> None:
        """Something else for their sake cost training so much."""
        self.credit_s -= cost_s

    @property
    def due_at(self) -> float:
        """When the next one may begin."""
        if not self.copies:
            return self.counted_at
        return self.counted_at + max(self._wanted_s, -self.credit_s / COST_SHARE)

    @property
    def interval_s(self) -> float:
        """From the begin of a copy to the next one, in the long run."""
        return max(self._wanted_s, self.cost_s / COST_SHARE)

    @property
    def _wanted_s(self) -> float:
        if self.copies < MEASURED:
            return INTERVAL_S
        return min(INTERVAL_S, max(LEAST_INTERVAL_S, self.cost_s / CHEAP_SHARE))

    @property
    def is_worth_it(self) -> bool:
        """Whether copies come often enough."""
        return self.copies < JUDGED or self.interval_s <= LONGEST_S


@dataclass(frozen=True, slots=True)
class NewestCopy:
    """The newest whole copy. `interval_s`: how far apart copies are now; `cost_s`: what one costs training."""

    step: int
    interval_s: float
    cost_s: float


def has_copies(attempt: Attempt) -> bool:
    """Whether copies are wanted, and somebody is there to hold them. Not in a proof, which kills on purpose."""
    return attempt.launch.memory_checkpoint != "off" and attempt.channel is not None and attempt.proof is None


def report_no_copies(attempt: Attempt, why: str) -> None:
    """Tells the daemon that there are no copies from now on."""
    attempt.reporter.send_message(MemoryCopies(attempt.number, os.getpid(), None, 0, why))


class MemoryTier(Generic[Boundary]):
    """The copies of one run: made on the thread that trains, completed on a second one. A third looks at the memory
    that is left, also while a step or an evaluation takes long, and gives back what copies take before it is missing.
    """

    def __init__(self, attempt: Attempt, copy_state: CopyState[Boundary]) -> None:
        self.newest: NewestCopy | None = None
        self._attempt = attempt
        self._copy_state = copy_state
        self._cadence = CopyCadence(time.monotonic())
        self._file: MemoryFile | None = None
        self._next_file: MemoryFile | None = None  # larger; takes its place once it holds a copy
        self._thread = ThreadPoolExecutor(1, "stepkeeper-memory")
        self._work: Future[None] | None = None
        self._needed_bytes = 0
        self._changing = threading.Lock()  # held by whoever uses the files
        self._off = threading.Event()

    def on_step_boundary(self, boundary: Callable[[], Boundary]) -> float:
        """Copies the state if it is time. Returns for how many seconds training waited."""
        now = time.monotonic()
        if self._off.is_set() or now < self._cadence.due_at or (self._work is not None and not self._work.done()):
            return 0.0
        with self._changing:
            if not self._off.is_set():
                self._copy(boundary, now)
        return time.monotonic() - now

    def _copy(self, boundary: Callable[[], Boundary], now: float) -> None:
        if not self._cadence.is_worth_it:
            cost_s, interval_s = self._cadence.cost_s, self._cadence.interval_s
            self._turn_off(
                f"a copy costs {cost_s:.2f} s, so {COST_SHARE:.0%} of training is one every {interval_s:.0f} s"
            )
            return
        file = self._next_file or self._file
        room = file.begin() if file is not None else CopyRoom(memoryview(bytearray(half_bytes(0))), 0)
        try:
            complete = self._copy_state(boundary(), room)
        except NoRoom as error:
            self._needed_bytes = error.needed_bytes
            self._cadence.record_other_cost(time.monotonic() - now)
            self._submit(self._allocate)
            return
        except (CannotCopy, MemoryError) as error:
            self._turn_off(str(error))
            return
        stall_s = time.monotonic() - now
        self._submit(lambda: self._complete(room, complete, stall_s, now))

    def close(self) -> None:
        """Makes no more copies; the newest one stays for the daemon."""
        self._off.set()
        self._thread.shutdown()

    def _submit(self, work: Callable[[], None]) -> None:
        try:
            self._work = self._thread.submit(self._do_beside, work)
        except RuntimeError as error:  # no thread can be started: a limit was reached, or the main one is over
            self._turn_off(str(error))

    def _turn_off(self, why: str) -> None:
        """Gives the memory back, and says why."""
        self._off.set()
        self.newest = None
        report_no_copies(self._attempt, why)
        for file in (self._file, self._next_file):
            if file is not None:
                file.close()
        self._file = self._next_file = None

    # --- on threads beside training -----------------------------------------------------------------------------------

    def _do_beside(self, work: Callable[[], None]) -> None:
        with self._changing:
            if not self._off.is_set():
                work()

    def _complete(self, room: CopyRoom, complete: Complete, stall_s: float, began_at: float) -> None:
        cpu_s = time.thread_time()
        try:
            description = complete()
            room.seal(description)
        except NoRoom as error:
            self._needed_bytes = 2 * error.needed_bytes
            self._allocate()
            return
        except Exception as error:  # noqa: BLE001 - training must not end because of it
            self._turn_off(f"a copy failed: {describe_error(error)}")
            return
        self._cadence.record_copy(stall_s + _beside_s(cpu_s), began_at)
        self.newest = NewestCopy(description.step, self._cadence.interval_s, self._cadence.cost_s)
        if self._next_file is not None:
            before, self._file, self._next_file = self._file, self._next_file, None
            message = MemoryCopies(self._attempt.number, os.getpid(), self._file.descriptor, self._file.size_bytes)
            self._attempt.reporter.send_message(message)
            if before is not None:
                before.close()

    def _allocate(self) -> None:
        """Makes a file that is large enough, if there is memory for it."""
        half = half_bytes(int(self._needed_bytes * (1 + SPARE)) + SPARE_BYTES)
        if self._next_file is not None:  # it was too small as well, and holds no copy
            self._next_file.close()
            self._next_file = None
        try:
            left = self._memory_left()
            if 2 * half * MEMORY_SHARE > left:
                sizes = f"two copies take {counted_bytes(2 * half)}"
                self._turn_off(f"{sizes}, more than an eighth of the {counted_bytes(left)} of memory that are left")
                return
            cpu_s = time.thread_time()
            self._next_file = MemoryFile(half)
            self._cadence.record_other_cost(_beside_s(cpu_s))
            if self._file is None:
                threading.Thread(target=self._watch_memory, name="stepkeeper-memory-left", daemon=True).start()
        except (OSError, ValueError, KeyError, MemoryError, RuntimeError) as error:
            self._turn_off(f"no memory for copies: {describe_error(error)}")

    def _watch_memory(self) -> None:
        """Copies end where memory becomes short: training and its data come first."""
        while not self._off.wait(LOOK_S):
            with self._changing, contextlib.suppress(OSError, ValueError, KeyError):  # nobody says how much is left
                size = sum(file.size_bytes for file in (self._file, self._next_file) if file is not None)
                left = self._memory_left()
                if left < LEAST_LEFT * size and not self._off.is_set():
                    self._turn_off(
                        f"they take {counted_bytes(size)}, and only {counted_bytes(left)} of memory are left"
                    )

    def _memory_left(self) -> int:
        """Bytes that this process may still take. Raises OSError, ValueError or KeyError if nobody says."""
        left, limit = available_memory()[0], self._attempt.launch.memory_limit
        return left if limit is None else max(0, min(left, limit - resident_bytes()))


def _beside_s(since_cpu_s: float) -> float:
    """What the processor time of this thread costs training: its part of all processors."""
    return (time.thread_time() - since_cpu_s) / (os.cpu_count() or 1)
