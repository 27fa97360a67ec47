"""Tells listeners and watchers what becomes of one program."""

from supervisor.config import ProgramConfig
from supervisor.core.listeners import occurrences
from supervisor.core.listeners.lifelines import Lifeline
from supervisor.core.listeners.occurrences import Fact, Occurrence, of_program
from supervisor.core.listeners.wire_states import WireState
from supervisor.core.program import events as fact
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.logs.handover import ProgramOutput
from supervisor.runner.listeners.hub import ListenerHub, ListenerStatus


class EventPublisher:
    """Looks on while the program runs; a listener's own standing goes to its pool too."""

    __slots__ = ("_config", "_lifeline", "_listeners", "_pids")

    def __init__(self, config: ProgramConfig, listening: ListenerHub) -> None:
        self._config = config
        self._listeners = listening
        self._lifeline = Lifeline(config.name, config.process, config.group)
        self._pids: tuple[tuple[int, int], ...] = ()  # by attempt, of the last two, which may still print
        if config.listener is not None:
            listening.subscribe(config.group, config.listener)

    @property
    def listener_status(self) -> ListenerStatus | None:
        """How it does as an event listener; None if it is none."""
        if self._config.listener is None:
            return None
        return self._listeners.status_of(self._config.group, self._config.name)

    def on_change(self, event: fact.Event | None, facts: ProgramFacts, state: WireState, pid: int | None) -> None:
        """Something may have changed: `state` is where it stands now in Supervisor's words, `pid` its process."""
        if pid is not None and (facts.attempt, pid) not in self._pids:
            self._pids = (*self._pids[-1:], (facts.attempt, pid))
        ended_well = isinstance(event, fact.WorkerExited) and self._is_expected_exit(event.code)
        before = self._lifeline.state
        told = self._lifeline.moved(
            state,
            facts.attempt,
            pid,
            expected=ended_well or facts.state is State.SUCCEEDED,
            state=facts.state.value,
            reason=facts.reason,
        )
        match event:
            case fact.CheckpointCommitted():
                told.append(self._occurrence("CHECKPOINT_COMMITTED", facts, step=event.step))
            case fact.NoticeReceived():
                notice = event.notice
                words = {"source": notice.source, "kind": str(notice.kind), "text": notice.text}
                told.append(self._occurrence("NOTICE_RECEIVED", facts, certainty=str(notice.certainty), **words))
        self._listeners.publish(told)
        if self._config.listener is not None and before is not self._lifeline.state:
            self._listeners.set_running(
                self._config.group, self._config.name, self._lifeline.state is WireState.RUNNING
            )

    def on_output(self, output: ProgramOutput) -> None:
        """It printed something that listeners are to hear."""
        config, pid = self._config, dict(self._pids).get(output.attempt, self._lifeline.pid)
        told = occurrences.printed(output.event, config.process, config.name, config.group, pid, output.data)
        self._listeners.publish([told])

    def _is_expected_exit(self, code: int | None) -> bool:
        return self._config.job is None and code in tuple(self._config.exitcodes)

    def _occurrence(self, name: str, facts: ProgramFacts, **more: Fact) -> Occurrence:
        return of_program(name, self._config.name, self._config.group, attempt=facts.attempt, **more)
