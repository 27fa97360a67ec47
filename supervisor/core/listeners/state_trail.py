"""A program's state changes as Supervisor's listeners expect them, with every state that Supervisor would pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.listeners.event_types import EventValue, PublishedEvent
from supervisor.core.listeners.wire_states import WireState

_STOPPED, _STARTING, _RUNNING, _BACKOFF = WireState.STOPPED, WireState.STARTING, WireState.RUNNING, WireState.BACKOFF
_STOPPING, _EXITED, _FATAL = WireState.STOPPING, WireState.EXITED, WireState.FATAL

_BETWEEN: Mapping[tuple[WireState, WireState], WireState] = {
    **dict.fromkeys([(_RUNNING, _STARTING), (_RUNNING, _BACKOFF), (_RUNNING, _FATAL), (_RUNNING, _STOPPED)], _EXITED),
    **dict.fromkeys([(_STOPPING, _BACKOFF), (_STOPPING, _FATAL)], _EXITED),
    (_STOPPING, _STARTING): _STOPPED,
    (_STARTING, _FATAL): _BACKOFF,
    (_STARTING, _STARTING): _BACKOFF,
    (_STARTING, _EXITED): _RUNNING,
    (_STOPPED, _RUNNING): _STARTING,
}
"""The state between, where we go in one step and Supervisor in two. The exit of a process is always reported."""

_NAMES: Mapping[WireState, str] = {wire_state: f"PROCESS_STATE_{wire_state.name}" for wire_state in WireState}


@dataclass(slots=True)
class SupervisorStateTrail:
    """One program as its listeners know it. `state`: the last one that they were told."""

    program: str
    process: str
    group: str
    state: WireState = WireState.STOPPED
    _attempt: int = 0
    _tries: int = 0
    _pid: int = 0
    _death: Mapping[str, EventValue] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """The pid of its process; 0 if there is none."""
        return self._pid

    def state_changed(
        self,
        to: WireState,
        attempt: int,
        pid: int | None,
        *,
        expected: bool,
        state: str,
        reason: str | None,
        death: Mapping[str, EventValue] | None = None,
    ) -> list[PublishedEvent]:
        """The events of a change to state `to`; none if listeners would see no difference.

        `pid`: of its process, None if there is none. `expected`: it ended as expected. `state` and `reason` are for
        watchers, in stepkeeper's own words; `death`: why it died, if it has.
        """
        again = to is self.state is WireState.STARTING and self._pid != 0 and self._attempt != attempt
        was, self._attempt = self._attempt or attempt, attempt
        self._pid = self._pid if pid is None else pid
        if to is self.state and not again:
            return []
        self._death = death or {}
        between = _BETWEEN.get((self.state, to))
        first: dict[str, EventValue] = {"attempt": was, "reason": reason}
        then: dict[str, EventValue] = {"attempt": attempt, "reason": reason, "state": state}
        return [
            *([] if between is None else [self._enter_state(between, expected, first)]),
            self._enter_state(to, expected, then),
        ]

    def _enter_state(self, to: WireState, expected: bool, facts: Mapping[str, EventValue]) -> PublishedEvent:
        said: dict[str, EventValue] = {}
        match to:
            case WireState.STARTING:
                said["tries"] = self._tries
            case WireState.BACKOFF:
                self._tries += 1
                said["tries"] = self._tries
            case WireState.EXITED:
                said.update(expected=int(expected), pid=self._pid)
            case WireState.RUNNING | WireState.STOPPING | WireState.STOPPED:
                said["pid"] = self._pid
        if to not in (WireState.STARTING, WireState.BACKOFF):
            self._tries = 0
        if to in (WireState.BACKOFF, WireState.EXITED, WireState.STOPPED, WireState.FATAL):
            self._pid = 0
        words = {"processname": self.process, "groupname": self.group, "from_state": self.state.name, **said}
        why = self._death if to in (WireState.BACKOFF, WireState.EXITED, WireState.FATAL) else {}
        fields = {"process": self.process, "from_state": self.state.name, **said, **facts, **why}
        self.state = to
        payload = " ".join(f"{key}:{value}" for key, value in words.items())
        return PublishedEvent(_NAMES[to], payload, fields, self.program, self.group)
