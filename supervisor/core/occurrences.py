"""What listeners and watchers are told of: Supervisor's event types with their payloads, and a few of our own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.core.wire_states import WireState

Fact = str | int | float | bool | None

ALL = "EVENT"
TICK_PERIODS_S = (5, 60, 3600)

_STATE, _DAEMON, _GROUP, _TICK = "PROCESS_STATE", "SUPERVISOR_STATE_CHANGE", "PROCESS_GROUP", "TICK"
REMOTE = "REMOTE_COMMUNICATION"

PARENTS: Mapping[str, str] = {
    **{f"{_STATE}_{word}": _STATE for word in (*WireState.__members__, "UNKNOWN")},
    f"{_DAEMON}_RUNNING": _DAEMON,
    f"{_DAEMON}_STOPPING": _DAEMON,
    f"{_GROUP}_ADDED": _GROUP,
    f"{_GROUP}_REMOVED": _GROUP,
    **{f"{_TICK}_{period}": _TICK for period in TICK_PERIODS_S},
    **dict.fromkeys((_STATE, _DAEMON, _GROUP, _TICK, REMOTE), ALL),
}
"""Supervisor's event types, and what each is a kind of; EVENT is all of them."""

TYPES = frozenset({*PARENTS, ALL})
UNHEARD = frozenset(
    f"{kind}{channel}" for kind in ("PROCESS_LOG", "PROCESS_COMMUNICATION") for channel in ("", "_STDOUT", "_STDERR")
)
"""Supervisor's types that would need the daemon to read what programs print; it never does."""

OURS: Mapping[str, str] = {"CHECKPOINT_COMMITTED": "CHECKPOINT", "NOTICE_RECEIVED": "NOTICE"}
"""Types that Supervisor does not know, and what each is a kind of; for watchers, not for listeners."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened. `payload`: what listeners get, None if it is not for them. `facts`: for watchers."""

    name: str
    payload: str | None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    program: str | None = None
    group: str | None = None


def is_one_of(name: str, chosen: Iterable[str]) -> bool:
    """Whether an event type is one of these or a kind of one."""
    wanted, kind = frozenset(chosen), name
    while kind not in wanted:
        if kind == ALL:
            return False
        kind = PARENTS.get(kind) or OURS.get(kind) or ALL
    return True


def wants_ticks(chosen: Iterable[str]) -> bool:
    """Whether somebody who asked for these event types gets ticks."""
    chosen = frozenset(chosen)
    return any(is_one_of(f"{_TICK}_{period}", chosen) for period in TICK_PERIODS_S)


def ticks(wall_s: int) -> list[Occurrence]:
    """The ticks of a moment (whole seconds of Unix time)."""
    return [
        Occurrence(f"{_TICK}_{period}", f"when:{wall_s}", {"when": wall_s})
        for period in TICK_PERIODS_S
        if wall_s % period == 0
    ]


def next_tick(wall_s: float) -> int:
    """When the next tick is due after a moment (seconds of Unix time)."""
    return (int(wall_s) // TICK_PERIODS_S[0] + 1) * TICK_PERIODS_S[0]


def remote(type_: str, data: str) -> Occurrence:
    """A client sent word to the listeners (sendRemoteCommEvent)."""
    return Occurrence(REMOTE, f"type:{type_}\n{data}", {"type": type_, "data": data})


def group_added(group: str) -> Occurrence:
    """A group is in use from now on."""
    return Occurrence(f"{_GROUP}_ADDED", f"groupname:{group}\n", group=group)


def group_removed(group: str) -> Occurrence:
    """Nothing of a group is in use any more."""
    return Occurrence(f"{_GROUP}_REMOVED", f"groupname:{group}\n", group=group)


def daemon_running() -> Occurrence:
    """The daemon has begun."""
    return Occurrence(f"{_DAEMON}_RUNNING", "")


def daemon_stopping() -> Occurrence:
    """The daemon was told to leave."""
    return Occurrence(f"{_DAEMON}_STOPPING", "")


def of_program(name: str, program: str, group: str, **facts: Fact) -> Occurrence:
    """Something of our own, for watchers."""
    return Occurrence(name, None, facts, program, group)
