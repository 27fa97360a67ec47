"""The events that listeners and watchers get: Supervisor's types with their payloads, and a few of our own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.core.listeners.wire_states import WireState

EventValue = str | int | float | bool | None

ALL = "EVENT"
TICK_PERIODS_S = (5, 60, 3600)

_STATE, _DAEMON, _GROUP, _TICK = "PROCESS_STATE", "SUPERVISOR_STATE_CHANGE", "PROCESS_GROUP", "TICK"
REMOTE = "REMOTE_COMMUNICATION"
_LOG, _COMMUNICATION = _PRINTED = "PROCESS_LOG", "PROCESS_COMMUNICATION"

PARENTS: Mapping[str, str] = {
    **{f"{_STATE}_{word}": _STATE for word in (*WireState.__members__, "UNKNOWN")},
    f"{_DAEMON}_RUNNING": _DAEMON,
    f"{_DAEMON}_STOPPING": _DAEMON,
    f"{_GROUP}_ADDED": _GROUP,
    f"{_GROUP}_REMOVED": _GROUP,
    **{f"{_TICK}_{period}": _TICK for period in TICK_PERIODS_S},
    **{f"{kind}_{channel}": kind for kind in _PRINTED for channel in ("STDOUT", "STDERR")},
    **dict.fromkeys((_STATE, _DAEMON, _GROUP, _TICK, REMOTE, *_PRINTED), ALL),
}
"""Supervisor's event types, and what each is a kind of; EVENT is all of them."""

TYPES = frozenset({*PARENTS, ALL})
OURS: Mapping[str, str] = {
    "CHECKPOINT_COMMITTED": "CHECKPOINT",
    "NOTICE_RECEIVED": "NOTICE",
    "REPLAY_DIFFERED": "REPLAY",
    "TRAINING_SLOWER": "SPEED",
    "TRAINING_AS_USUAL": "SPEED",
    "PROOF_ENDED": "PROOF",
    "GPU_FAULT": "GPU",
    "GPU_RETURNED": "GPU",
}
"""Our own types, and what each is a kind of; for watchers, not for listeners."""


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """One event. `payload`: what listeners get, None if it is not for them. `fields`: what watchers get.

    `is_for_all`: for watchers too; frequent ones would push rare ones out of their buffer.
    """

    name: str
    payload: str | bytes | None
    fields: Mapping[str, EventValue] = field(default_factory=dict)
    program: str | None = None
    group: str | None = None
    is_for_all: bool = True


def is_kind_of(name: str, chosen: Iterable[str]) -> bool:
    """Whether an event type is one of these or a kind of one."""
    wanted, kind = frozenset(chosen), name
    while kind not in wanted:
        if kind == ALL:
            return False
        kind = PARENTS.get(kind) or OURS.get(kind) or ALL
    return True


def wants_ticks(chosen: Iterable[str]) -> bool:
    """Whether a subscriber to these event types gets ticks."""
    chosen = frozenset(chosen)
    return any(is_kind_of(f"{_TICK}_{period}", chosen) for period in TICK_PERIODS_S)


def tick_events(wall_s: int) -> list[PublishedEvent]:
    """The ticks of a moment (whole seconds of Unix time)."""
    return [
        PublishedEvent(f"{_TICK}_{period}", f"when:{wall_s}", {"when": wall_s}, is_for_all=False)
        for period in TICK_PERIODS_S
        if wall_s % period == 0
    ]


def next_tick(wall_s: float, last: int | None = None) -> int:
    """When the next tick is due after a moment (seconds of Unix time). `last`: the one that was made last, perhaps a
    moment too early: the clock that sleeps are measured by is another one."""
    due = (int(wall_s) // TICK_PERIODS_S[0] + 1) * TICK_PERIODS_S[0]
    return due + TICK_PERIODS_S[0] if due == last else due


def remote_communication(type_: str, data: str) -> PublishedEvent:
    """A client sent a message to the listeners (sendRemoteCommEvent)."""
    return PublishedEvent(REMOTE, f"type:{type_}\n{data}", {"type": type_, "data": data})


def group_added(group: str) -> PublishedEvent:
    """A group is in use from now on."""
    return PublishedEvent(f"{_GROUP}_ADDED", f"groupname:{group}\n", group=group)


def group_removed(group: str) -> PublishedEvent:
    """No program of a group is in use any more."""
    return PublishedEvent(f"{_GROUP}_REMOVED", f"groupname:{group}\n", group=group)


def daemon_running() -> PublishedEvent:
    """The daemon is running."""
    return PublishedEvent(f"{_DAEMON}_RUNNING", "")


def daemon_stopping() -> PublishedEvent:
    """The daemon was told to leave."""
    return PublishedEvent(f"{_DAEMON}_STOPPING", "")


def program_event(name: str, program: str, group: str, **facts: EventValue) -> PublishedEvent:
    """An event of our own, for watchers."""
    return PublishedEvent(name, None, facts, program, group)


def output_event(name: str, process: str, program: str, group: str, pid: int, data: bytes) -> PublishedEvent:
    """A program's output for listeners: all of it (PROCESS_LOG), or what was between capture marks."""
    fields: dict[str, EventValue] = {"process": process, "pid": pid, "data": data.decode(errors="replace")}
    words = f"processname:{process} groupname:{group} pid:{pid}"
    is_log = is_kind_of(name, [_LOG])
    if is_log:
        words += f" channel:{name.removeprefix(f'{_LOG}_').lower()}"
    return PublishedEvent(name, f"{words}\n".encode() + data, fields, program, group, is_for_all=not is_log)
