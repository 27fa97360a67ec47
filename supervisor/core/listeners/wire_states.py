"""Supervisor's words for where a program stands, and which of them ours are: what clients and listeners see."""

from collections.abc import Mapping
from enum import IntEnum

from supervisor.core.program.facts import State


class WireState(IntEnum):
    """A state of Supervisor's XML-RPC interface, API version 3.0, with its number."""

    STOPPED = 0
    STARTING = 10
    RUNNING = 20
    BACKOFF = 30
    STOPPING = 40
    EXITED = 100
    FATAL = 200


_OURS: Mapping[State, WireState] = {
    State.STOPPED: WireState.STOPPED,
    State.STARTING: WireState.STARTING,
    State.ADOPTING: WireState.STARTING,
    State.RUNNING: WireState.RUNNING,
    State.FLUSHING: WireState.RUNNING,
    State.STOPPING: WireState.STOPPING,
    State.KILLING: WireState.STOPPING,
    State.BACKOFF: WireState.BACKOFF,
    State.SUCCEEDED: WireState.EXITED,
    State.EXITED: WireState.EXITED,
    State.FAILED: WireState.FATAL,
}


def wire_state(state: State, *, is_stopping: bool = False, is_held_back: bool = False) -> WireState:
    """What clients see. `is_stopping`: a stop follows, be it after a flush; `is_held_back`: it waits for others."""
    if is_stopping:
        return WireState.STOPPING
    if is_held_back:
        return WireState.STARTING  # it is wanted, and on its way as far as anybody can tell
    return _OURS[state]
