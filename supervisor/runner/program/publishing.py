"""Publishes the events of one program, for its event listeners and for those who watch the event stream."""

import time
from collections.abc import Callable
from dataclasses import replace

from supervisor.config import ProgramConfig
from supervisor.core.diagnosis.evidence import flat
from supervisor.core.listeners import event_types
from supervisor.core.listeners.event_types import EventValue, PublishedEvent, program_event
from supervisor.core.listeners.state_trail import SupervisorStateTrail
from supervisor.core.listeners.wire_states import WireState
from supervisor.core.program import effects, events
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.limits import TokenBucket
from supervisor.runner.listeners.hub import ListenerHub, ListenerStatus
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords

NAMED = 10  # tensors in an event; the log has more
OWN_A_SECOND, OWN_AT_ONCE = 1.0, 100  # of what a program says or prints; all share the buffer of those who watch
OWN_BYTES_A_SECOND, OWN_BYTES_AT_ONCE = 2000.0, 1 << 20


def _death_in(decided: list[effects.Effect]) -> dict[str, EventValue] | None:
    """Why an attempt died, if one did."""
    ends = [effect for effect in decided if isinstance(effect, effects.RecordEnd)]
    return flat(ends[0].diagnosis) if ends and ends[0].diagnosis is not None else None


class EventPublisher(ProgramObserver):
    """Publishes state changes, checkpoints, notices, differences of replays, and output.

    A listener's own state goes to its pool besides.

    `wire_state`: where the program stands in Supervisor's words; `records`: of its process.
    """

    __slots__ = ("_config", "_lifeline", "_listeners", "_own", "_pids", "_records", "_wire_state")

    def __init__(
        self,
        config: ProgramConfig,
        listeners: ListenerHub,
        wire_state: Callable[[], WireState],
        records: ProgramRecords,
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._wire_state = wire_state
        self._records = records
        self._own: tuple[TokenBucket, TokenBucket] | None = None  # events and bytes, once there was one
        self._lifeline = SupervisorStateTrail(config.name, config.process, config.group)
        self._pids: dict[int, int] = {}  # by attempt, of the last two, which may still print
        if config.listener is not None:
            listeners.subscribe(config.group, config.listener)

    @property
    def listener_status(self) -> ListenerStatus | None:
        """The program's state as an event listener; None if it is none."""
        if self._config.listener is None:
            return None
        return self._listeners.status_of(self._config.group, self._config.name)

    def on_decision(
        self, event: events.Event | str | None, before: State, decided: list[effects.Effect], facts: ProgramFacts
    ) -> None:
        pid = self._records.process.pid
        if pid is not None and self._pids.get(facts.attempt) != pid:
            self._pids = {**dict(list(self._pids.items())[-1:]), facts.attempt: pid}
        ended_well = False
        if self._config.job is None and isinstance(event, events.WorkerExited):
            ended_well = event.code in tuple(self._config.exitcodes)
        wire_before = self._lifeline.state
        occurrences = self._lifeline.state_changed(
            self._wire_state(),
            facts.attempt,
            pid,
            expected=ended_well or facts.state is State.SUCCEEDED,
            state=facts.state.value,
            reason=facts.reason,
            death=_death_in(decided),
        )
        match event:
            case events.CheckpointCommitted() if self._has_room(0):
                occurrences.append(self._occurrence("CHECKPOINT_COMMITTED", facts, step=event.step))
            case events.SpeedChanged(attempt, None) if attempt == facts.attempt:
                occurrences.append(self._occurrence("TRAINING_AS_USUAL", facts))
            case events.SpeedChanged(attempt, slow) if attempt == facts.attempt and slow is not None:
                times = {"step_s": slow.step_s, "usual_step_s": slow.usual_step_s}
                occurrences.append(self._occurrence("TRAINING_SLOWER", facts, **times, text=str(slow)))
            case events.NoticeReceived():
                notice = event.notice
                words = {"source": notice.source, "kind": str(notice.kind), "text": notice.text}
                occurrences.append(self._occurrence("NOTICE_RECEIVED", facts, certainty=str(notice.certainty), **words))
        self._listeners.publish(occurrences)
        if self._config.listener is not None and wire_before is not self._lifeline.state:
            self._listeners.set_running(
                self._config.group, self._config.name, self._lifeline.state is WireState.RUNNING
            )

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if isinstance(message, messages.Replayed) and message.differing:
            facts: dict[str, EventValue] = {"attempt": message.attempt, "step": message.step, "steps": message.steps}
            text = ", ".join(message.differing[:NAMED])
            event = program_event("REPLAY_DIFFERED", self._config.name, self._config.group, **facts, text=text)
            if self._has_room(len(text)):
                self._listeners.publish([event])

    def on_output(self, output: ProgramOutput) -> None:
        """Publishes what the program printed."""
        config, pid = self._config, self._pids.get(output.attempt, self._lifeline.pid)
        event = event_types.output_event(output.event, config.process, config.name, config.group, pid, output.data)
        if event.is_for_all and not self._has_room(len(output.data)):
            event = replace(event, is_for_all=False)  # listeners have a buffer in which each program has its share
        self._listeners.publish([event])

    def _has_room(self, size_bytes: int) -> bool:
        """Whether those who watch get one more event that the program makes whenever it likes."""
        if self._own is None:
            self._own = TokenBucket(OWN_A_SECOND, OWN_AT_ONCE), TokenBucket(OWN_BYTES_A_SECOND, OWN_BYTES_AT_ONCE)
        (count, volume), now = self._own, time.monotonic()
        return volume.has(now, size_bytes) and count.take(now) and volume.take(now, size_bytes)

    def _occurrence(self, name: str, facts: ProgramFacts, **more: EventValue) -> PublishedEvent:
        return program_event(name, self._config.name, self._config.group, attempt=facts.attempt, **more)
