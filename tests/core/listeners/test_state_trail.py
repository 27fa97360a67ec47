"""Changes of state in the words of Supervisor's listeners."""

import pytest

from supervisor.core.listeners.state_trail import SupervisorStateTrail
from supervisor.core.listeners.wire_states import WireState, wire_state
from supervisor.core.program.facts import State


def walk(*moves: tuple[WireState, int, int | None]) -> list[str]:
    """What is told of a program that moves so: state, attempt, pid."""
    lifeline = SupervisorStateTrail("g:p", "p", "g")
    published = []
    for to, attempt, pid in moves:
        published += lifeline.state_changed(to, attempt, pid, expected=False, state=to.name, reason=None)
    return [
        f"{event.name.removeprefix('PROCESS_STATE_')} {str(event.payload).removeprefix('processname:p groupname:g ')}"
        for event in published
    ]


STARTING, RUNNING, BACKOFF = WireState.STARTING, WireState.RUNNING, WireState.BACKOFF
STOPPING, STOPPED, EXITED, FATAL = WireState.STOPPING, WireState.STOPPED, WireState.EXITED, WireState.FATAL


def test_a_start_and_a_stop():
    assert walk((STARTING, 1, None), (RUNNING, 1, 7), (STOPPING, 1, 7), (STOPPED, 1, None)) == [
        "STARTING from_state:STOPPED tries:0",
        "RUNNING from_state:STARTING pid:7",
        "STOPPING from_state:RUNNING pid:7",
        "STOPPED from_state:STOPPING pid:7",
    ]


def test_tries_count_failed_starts_and_begin_anew_when_it_runs():
    lines = walk(
        (STARTING, 1, 7), (BACKOFF, 1, None), (STARTING, 2, 8), (BACKOFF, 2, None), (STARTING, 3, 9), (RUNNING, 3, 9)
    )
    again = walk((STARTING, 1, 7), (BACKOFF, 1, None), (STARTING, 2, 8), (RUNNING, 2, 8), (BACKOFF, 2, None))

    assert lines == [
        "STARTING from_state:STOPPED tries:0",
        "BACKOFF from_state:STARTING tries:1",
        "STARTING from_state:BACKOFF tries:1",
        "BACKOFF from_state:STARTING tries:2",
        "STARTING from_state:BACKOFF tries:2",
        "RUNNING from_state:STARTING pid:9",
    ]
    assert again[-2:] == ["EXITED from_state:RUNNING expected:0 pid:8", "BACKOFF from_state:EXITED tries:1"]


def test_a_process_that_is_gone_has_no_pid_any_more():
    assert walk((STARTING, 1, 7), (BACKOFF, 1, None), (STOPPED, 1, None))[-1] == "STOPPED from_state:BACKOFF pid:0"


@pytest.mark.parametrize(
    ("before", "to", "lines"),
    [
        (RUNNING, STARTING, ["EXITED from_state:RUNNING expected:0 pid:7", "STARTING from_state:EXITED tries:0"]),
        (RUNNING, FATAL, ["EXITED from_state:RUNNING expected:0 pid:7", "FATAL from_state:EXITED"]),
        (STARTING, FATAL, ["BACKOFF from_state:STARTING tries:1", "FATAL from_state:BACKOFF"]),
        (STARTING, EXITED, ["RUNNING from_state:STARTING pid:7", "EXITED from_state:RUNNING expected:0 pid:7"]),
        (STARTING, STARTING, ["BACKOFF from_state:STARTING tries:1", "STARTING from_state:BACKOFF tries:1"]),
        (STOPPING, STARTING, ["STOPPED from_state:STOPPING pid:7", "STARTING from_state:STOPPED tries:0"]),
        (STOPPING, BACKOFF, ["EXITED from_state:STOPPING expected:0 pid:7", "BACKOFF from_state:EXITED tries:1"]),
    ],
)
def test_listeners_get_the_intermediate_state_of_a_direct_change(before, to, lines):
    moves = [(STARTING, 1, 7)] if before is STARTING else [(STARTING, 1, 7), (RUNNING, 1, 7)]
    moves += [(STOPPING, 1, 7)] if before is STOPPING else []

    assert walk(*moves, (to, 2, None))[-len(lines) :] == lines
    assert len(walk(*moves, (to, 2, None))) == len(moves) + len(lines)


def test_nothing_is_told_where_the_state_stays_the_same():
    assert len(walk((STARTING, 1, None), (RUNNING, 1, 7), (RUNNING, 1, 7), (STOPPING, 1, 7), (STOPPING, 1, 7))) == 3


def test_a_program_that_is_held_back_and_then_starts_is_told_of_once():
    assert walk((STARTING, 0, None), (STARTING, 1, None), (STARTING, 1, 7)) == ["STARTING from_state:STOPPED tries:0"]


def test_every_state_of_ours_has_a_word():
    assert {wire_state(state) for state in State} == set(WireState)
