"""What one program has done since the daemon took it up, counted for /metrics from its orders and its worker's words.

Counters begin at 0 with the daemon and after `update`, as Prometheus expects of a process; the ledger has what was
before. Times are monotonic seconds but where `wall` says otherwise.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from supervisor.core.program import effects as order
from supervisor.core.program.facts import State
from supervisor.protocol import messages

ASKED_KEPT = 64  # flush requests without an answer that are remembered; one a stop or notice, so far more than enough

SPENT = {
    State.STARTING: "starting",
    State.ADOPTING: "starting",
    State.RUNNING: "running",
    State.FLUSHING: "flushing",
    State.STOPPING: "stopping",
    State.KILLING: "stopping",
    State.BACKOFF: "backoff",
}
"""What a program's time goes into; in all other states it is down."""


@dataclass(frozen=True, slots=True)
class DurationStats:
    """How often something was timed, how long it took in all, and the last time (seconds)."""

    count: int = 0
    sum_s: float = 0.0
    last_s: float | None = None

    def plus(self, span_s: float) -> Self:
        """The same, with one more."""
        return replace(self, count=self.count + 1, sum_s=self.sum_s + span_s, last_s=span_s)


_NEVER = DurationStats()
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class ProgramCounters:
    """The counts of one program. `ended`: attempts that are over, by cause; `spent_s`: seconds, by what took them."""

    attempts: int = 0
    ended_by_cause: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    state_s: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    repeated_steps: int = 0
    progressed_wall_at: float | None = None
    refused_checkpoints: int = 0
    failed_saves: int = 0
    save: DurationStats = _NEVER
    stall: DurationStats = _NEVER
    flush: DurationStats = _NEVER  # from the request to the checkpoint on the disk
    _step: int | None = None  # of the present attempt
    _furthest: int = 0
    _asked_at: dict[int, float] = field(default_factory=dict)
    _is_repeating: bool = False  # an adopted worker says once more what it said to an earlier daemon
    _since: float = field(default_factory=time.monotonic)

    def on_effect(self, effect: order.Effect, now: float) -> None:
        """The core gave an order."""
        match effect:
            case order.Spawn():
                self.attempts += 1
                self._step, self._is_repeating = None, False
                self._asked_at.clear()
            case order.Identify():
                self._is_repeating = True
            case order.RequestFlush():
                self._asked_at[effect.id] = now
                while len(self._asked_at) > ASKED_KEPT:
                    del self._asked_at[next(iter(self._asked_at))]
            case order.RecordEnd():
                self.ended_by_cause = {
                    **self.ended_by_cause,
                    effect.cause: self.ended_by_cause.get(effect.cause, 0) + 1,
                }

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        """The worker said something."""
        if self._is_repeating:
            self._hear_again(message)
            return
        match message:
            case messages.Restored():
                self._step = message.step
                self.repeated_steps += max(0, self._furthest - message.step)
            case messages.Progress():
                self._progressed(message.step)
            case messages.Committed():
                self._progressed(message.step)
                self.save = self.save.plus(message.save_s)
                self.stall = self.stall.plus(message.stall_s)
                asked_at = [self._asked_at.pop(each) for each in message.flushes if each in self._asked_at]
                if asked_at:
                    self.flush = self.flush.plus(now - min(asked_at))
            case messages.SaveFailed():
                self.failed_saves += 1
                for each in message.flushes:
                    self._asked_at.pop(each, None)

    def on_state_change(self, state: State, now: float) -> None:
        """The program was in `state` from the last call until now."""
        spent = SPENT.get(state, "down")
        self.state_s[spent] = self.state_s.get(spent, 0.0) + now - self._since
        self._since = now

    def _hear_again(self, message: messages.FromWorker) -> None:
        """Up to `standing`: where it stands, of which nothing was done for this daemon."""
        match message:
            case messages.Restored() | messages.Progress() | messages.Committed():
                self._step = max(message.step, self._step or 0)
                self._furthest = max(message.step, self._furthest)
            case messages.WorkerStatus():
                self._is_repeating = False

    def _progressed(self, step: int) -> None:
        if self._step is not None and step > self._step:
            self.steps += step - self._step
            self.progressed_wall_at = time.time()
        self._step = max(step, self._step or 0)
        self._furthest = max(step, self._furthest)
