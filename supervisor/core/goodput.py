"""Where a job's time went: every second of it is in exactly one of a few categories.

Time is a number that comes in (seconds of any monotonic clock). What is booked stays booked, so every sum only grows.
The time since the last booking is the open span; it is booked once it is known what it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.core.program.facts import ProgramFacts, State


class TimeSpent(StrEnum):
    """What a second of a job went into."""

    TRAINING = "training"  # steps that were never done before
    SAVING = "saving"  # training waited for a checkpoint
    RESTORING = "restoring"  # the worker put its state back in place
    STARTING = "starting"  # spawn, import, the checkpoint's proof
    TRACING = "tracing"  # from the restored state to the end of the first step
    REPLAYING = "replaying"  # steps that an earlier attempt had done already, or that are done twice to compare
    DATA = "data"  # the training loop waited for its input, as far as the worker reports it
    HUNG = "hung"  # silence that turned out to be a hang, until the process was gone
    DOWN = "down"  # no process, though it is wanted: back-off, failed, host or daemon away
    STOPPED = "stopped"  # not wanted, or done: counts for nothing


STEPPING = frozenset({TimeSpent.TRAINING, TimeSpent.REPLAYING})
"""A span of these is booked step by step, so only when a step is reported."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What a meter shows, from which a later daemon continues.

    `spent_s`: what is booked; `open_as`: the category of the open span; `step`: the last one known, `furthest` that of
    all attempts; `owed_s`: time that training waited for checkpoints and that is not booked yet.
    """

    attempt: int
    spent_s: Mapping[TimeSpent, float] = field(default_factory=dict)
    open_as: TimeSpent = TimeSpent.STOPPED
    step: int | None = None
    furthest: int = 0
    owed_s: float = 0.0


class GoodputMeter:
    """Where the time of one job goes from `now` on; it continues from the last reading of an earlier daemon, if any.

    `since`: where the open span begins.
    """

    def __init__(self, now: float, last: MeterReading | None = None) -> None:
        last = last or MeterReading(0)
        self.since = now
        self.attempt = last.attempt
        self.open_as = last.open_as
        self.step = last.step
        self.furthest = last.furthest
        self._owed_s = last.owed_s
        self._owed_replay_s = 0.0
        self._spent_s = dict(last.spent_s)
        self._total_s = dict.fromkeys(TimeSpent, 0.0)

    @property
    def total_s(self) -> dict[TimeSpent, float]:
        """Seconds booked since this meter was made, all attempts together."""
        return dict(self._total_s)

    @property
    def reading(self) -> MeterReading:
        """What a later meter continues from, as of `since`."""
        spent_s = dict(self._spent_s)
        return MeterReading(self.attempt, spent_s, self.open_as, self.step, self.furthest, self._owed_s)

    # --- what happens -------------------------------------------------------------------------------------------------

    def close_attempt(self, now: float) -> None:
        """Another attempt is about to begin: the time until now belongs to this one."""
        self._settle(self.open_as, now)

    def begin_attempt(self, attempt: int, now: float) -> None:
        """A process is started for a new attempt."""
        self.close_attempt(now)
        self.attempt, self.step, self._owed_s, self._spent_s = attempt, None, 0.0, {}
        self._owed_replay_s = 0.0
        self.open_as = TimeSpent.STARTING

    def state_restored(self, step: int, restore_s: float, now: float, again: bool = False) -> None:
        """The worker restored its state, which took the last `restore_s`; `again`: at an unknown time before.

        Does nothing for an attempt that has done steps.
        """
        if self.open_as is not TimeSpent.STARTING:
            return
        if not again:
            self._settle(TimeSpent.STARTING, max(self.since, now - max(0.0, restore_s)))
            self._settle(TimeSpent.RESTORING, now)
        self.open_as = TimeSpent.TRACING
        self.step = step

    def steps_done(self, step: int, now: float, step_s: float | None = None, data_s: float | None = None) -> None:
        """`step` is done. Since the last report: `step_s` a step on average, and `data_s` of waiting for data."""
        if self.open_as in (TimeSpent.STARTING, TimeSpent.TRACING):
            further = max(0, step - self.step - 1) if self.step is not None else 0  # more than one: no daemon ran
            self._settle(self.open_as, max(self.since, now - further * (step_s or 0.0)))
            if self.step is not None and further:
                self.step += 1
        if self.open_as in (TimeSpent.STARTING, TimeSpent.TRACING, *STEPPING):
            self._settle_steps(step, data_s or 0.0, now)
            self.open_as = TimeSpent.REPLAYING if step < self.furthest else TimeSpent.TRAINING
        self.step = max(step, self.step or 0)
        self.furthest = max(self.furthest, self.step)

    def checkpoint_committed(self, stall_s: float) -> None:
        """A checkpoint is on the disk, for which training waited `stall_s`."""
        self._owed_s += max(0.0, stall_s)

    def steps_replayed(self, took_s: float) -> None:
        """Training made no new steps for so long, while it did some a second time to compare their results."""
        self._owed_replay_s += max(0.0, took_s)

    def state_changed(self, facts: ProgramFacts, now: float) -> None:
        """Follows the program's state, after anything that may have changed it."""
        entered = _in_state(facts)
        if entered is None:
            if self.open_as in (TimeSpent.DOWN, TimeSpent.STOPPED, TimeSpent.HUNG):
                self._settle(self.open_as, now)  # a worker was found that nobody knew of
                self.open_as = TimeSpent.STARTING
        elif entered is not self.open_as:
            self._settle(TimeSpent.HUNG if entered is TimeSpent.HUNG else self.open_as, now)
            self.open_as = entered

    def found_no_worker(self, wanted: bool, step: int | None, lived_until: float | None) -> None:
        """A new daemon finds no worker; the last one reached `step` and was alive at `lived_until`, if known."""
        if self.open_as in (TimeSpent.DOWN, TimeSpent.STOPPED):
            return
        if lived_until is not None and lived_until > self.since:
            if step is not None and step > (self.step or 0):
                self.steps_done(step, lived_until)
            self._settle(self.open_as, lived_until)
        self._owed_s = 0.0
        self.open_as = TimeSpent.DOWN if wanted else TimeSpent.STOPPED

    def settle_known_time(self, now: float) -> None:
        """Books the open span if nothing that comes later can change its category."""
        if self.open_as in (TimeSpent.DOWN, TimeSpent.STOPPED, TimeSpent.HUNG):
            self._settle(self.open_as, now)

    # --- booking ------------------------------------------------------------------------------------------------------

    def _settle(self, spent: TimeSpent, now: float) -> None:
        span_s = max(0.0, now - self.since)
        self.since = max(self.since, now)
        if spent in STEPPING:
            paid_s = min(span_s, self._owed_s)
            self._owed_s -= paid_s
            self._book(TimeSpent.SAVING, paid_s)
            span_s -= paid_s
            span_s -= self._pay_replay(span_s)
        self._book(spent, span_s)

    def _pay_replay(self, span_s: float) -> float:
        """Books what is owed for replays, at most the whole span. Returns how much that was."""
        paid_s = min(span_s, self._owed_replay_s)
        self._owed_replay_s -= paid_s
        self._book(TimeSpent.REPLAYING, paid_s)
        return paid_s

    def _settle_steps(self, step: int, data_s: float, now: float) -> None:
        """Splits the open span into saving, waiting for data, and steps, which are new or replayed."""
        before = self.step or 0
        done = step - before
        replayed = min(done, max(0, self.furthest - before))
        span_s = max(0.0, now - self.since)
        self.since = max(self.since, now)
        paid_s = min(span_s, self._owed_s)
        self._owed_s -= paid_s
        replayed_s = self._pay_replay(span_s - paid_s)
        waited_s = min(span_s - paid_s - replayed_s, max(0.0, data_s))
        stepped_s = span_s - paid_s - replayed_s - waited_s
        share = replayed / done if done > 0 else float(self.open_as is TimeSpent.REPLAYING)
        self._book(TimeSpent.SAVING, paid_s)
        self._book(TimeSpent.DATA, waited_s)
        self._book(TimeSpent.REPLAYING, stepped_s * share)
        self._book(TimeSpent.TRAINING, stepped_s * (1 - share))

    def _book(self, spent: TimeSpent, span_s: float) -> None:
        if span_s > 0:
            self._spent_s[spent] = self._spent_s.get(spent, 0.0) + span_s
            self._total_s[spent] += span_s


def _in_state(facts: ProgramFacts) -> TimeSpent | None:
    """The category that follows from the state alone; None if the worker's reports decide."""
    match facts.state:
        case State.STOPPED | State.BACKOFF | State.FAILED:
            return TimeSpent.DOWN if facts.wanted else TimeSpent.STOPPED
        case State.SUCCEEDED | State.EXITED:
            return TimeSpent.STOPPED
        case State.STOPPING | State.KILLING:
            if facts.current.decided_end is not None and facts.current.decided_end[0].traits.is_stall:
                return TimeSpent.HUNG
            return TimeSpent.DOWN if facts.wanted else TimeSpent.STOPPED
        case _:
            return None


def goodput(spent_s: Mapping[TimeSpent, float]) -> float | None:
    """The share of the time in which it was wanted that went into new steps; None while there is no such time."""
    wanted_s = sum(span_s for spent, span_s in spent_s.items() if spent is not TimeSpent.STOPPED)
    return spent_s.get(TimeSpent.TRAINING, 0.0) / wanted_s if wanted_s > 0 else None
