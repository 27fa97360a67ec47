"""Records what a program's time went into: seconds by state, and for a job its meter, kept in the ledger."""

import time
from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.goodput import (
    STEPPING,
    GoodputMeter,
    MeterReading,
    TimeSpent,
)
from supervisor.core.program import effects
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.ledger.accounts import StoredAccount
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

SAVE_EVERY_S = 10.0  # a daemon that is killed loses no more of its readings than that; one row a job is no load

_METRIC_STATES = {
    State.STARTING: "starting",
    State.ADOPTING: "starting",
    State.RUNNING: "running",
    State.FLUSHING: "flushing",
    State.STOPPING: "stopping",
    State.KILLING: "stopping",
    State.BACKOFF: "backoff",
}
"""The states as /metrics has them; a program in any other state is down."""


class GoodputRecorder(ProgramObserver):
    """What the time of one program went into. Times are monotonic seconds.

    Every program has `state_s`. A job has a meter besides (`core/goodput.py`), started once the ledger was
    read; it is saved there when the category changes, and at least every SAVE_EVERY_S.
    """

    __slots__ = (
        "_is_adopting",
        "_is_silent",
        "_ledger",
        "_meter",
        "_program",
        "_saved_as",
        "_saved_at",
        "_state_since",
        "state_s",
    )

    def __init__(self, program: str, ledger: Ledger, now: float) -> None:
        self.state_s: dict[str, float] = {}
        """Seconds since the daemon took the program over, by state as /metrics has them."""
        self._state_since = now
        self._program = program
        self._ledger = ledger
        self._meter: GoodputMeter | None = None
        self._saved_at = 0.0
        self._saved_as: tuple[int, TimeSpent] | None = None
        self._is_adopting = False
        self._is_silent = False  # adopted and not heard from yet: it may be a zombie

    def start_meter(self, kept: StoredAccount | None, last_attempt: int) -> None:
        """Starts the meter where an earlier daemon left it. Until then nothing is recorded; later calls do nothing."""
        if self._meter is None:
            now = time.monotonic()
            since = now if kept is None else now - kept.ago_s
            last = MeterReading(last_attempt) if kept is None else kept.status
            if kept is not None and last.step is not None and kept.reached is not None:
                last = replace(last, step=max(last.step, kept.reached))
            self._meter = GoodputMeter(since, last)

    def on_adopted(self, attempt: int, age_s: float) -> None:
        """The worker of an earlier daemon is alive; its messages will tell what it did meanwhile."""
        meter = self._meter
        if meter is not None:
            self._is_adopting = self._is_silent = True
            if meter.attempt != attempt:
                meter.begin_attempt(attempt, time.monotonic() - age_s)

    def on_worker_lost(self, wanted: bool, step: int | None, alive_ago_s: float | None) -> None:
        """No worker was found. By its checkpoints it reached `step` and was alive `alive_ago_s` seconds ago."""
        if self._meter is not None:
            self._meter.found_no_worker(wanted, step, None if alive_ago_s is None else time.monotonic() - alive_ago_s)

    def on_effect(self, effect: effects.Effect, now: float) -> None:

        meter = self._meter
        if meter is None:
            return
        match effect:
            case effects.RecordEnd() if self._is_silent:
                self._is_silent = False
                meter.found_no_worker(True, None, None)
            case effects.Spawn():
                meter.close_attempt(now)
                self._save(now)
                meter.begin_attempt(effect.attempt, now)
                self._save(now)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        meter = self._meter
        if meter is None:
            return
        self._is_silent = self._is_silent and isinstance(message, messages.Done | messages.Failed)
        match message:
            case messages.Restored():
                meter.state_restored(message.step, message.restore_s, now, self._is_adopting)
            case messages.Progress():
                meter.steps_done(message.step, now, message.step_s, message.data_s)
            case messages.Committed() if message.ago_s is None:
                meter.checkpoint_committed(message.stall_s)
            case messages.Replayed():
                meter.steps_replayed(message.took_s)

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        if facts.state is not before:
            self.count_state(before, now)
        meter = self._meter
        if meter is None:
            return
        self._is_adopting = facts.state is State.ADOPTING
        meter.state_changed(facts, now)
        category = meter.attempt, TimeSpent.TRAINING if meter.open_as in STEPPING else meter.open_as
        if category != self._saved_as or now - self._saved_at >= SAVE_EVERY_S:
            self._save(now)

    def count_state(self, state: State, now: float) -> None:
        """Counts the seconds since the last call as spent in `state`."""
        name = _METRIC_STATES.get(state, "down")
        self.state_s[name] = self.state_s.get(name, 0.0) + now - self._state_since
        self._state_since = now

    def total_s(self) -> Mapping[TimeSpent, float]:
        """Seconds by category since the daemon took the job over; each only grows. Empty if there is no meter."""
        if self._meter is None:
            return {}
        self._meter.settle_known_time(time.monotonic())
        return self._meter.total_s

    def save(self) -> tuple[TimeSpent, float] | None:
        """Saves the reading; returns the present category and its seconds that are not booked yet. None: no meter."""
        if self._meter is None:
            return None
        now = time.monotonic()
        self._meter.settle_known_time(now)
        self._save(now)
        return self._meter.open_as, max(0.0, now - self._meter.since)

    def _save(self, now: float) -> None:
        meter = self._meter
        if meter is not None:
            self._ledger.accounts.store(self._program, meter.reading, max(0.0, now - meter.since))
            self._saved_at = now
            self._saved_as = meter.attempt, TimeSpent.TRAINING if meter.open_as in STEPPING else meter.open_as
