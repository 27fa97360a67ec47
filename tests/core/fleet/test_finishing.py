"""When the daemon has nothing left to do."""

import pytest

from supervisor.core.fleet.finishing import (
    Ending,
    ExitOn,
    Finish,
    finish,
)
from supervisor.core.program.facts import State

BOTH = (ExitOn.FATAL, ExitOn.DONE)


def endings(*states: State) -> list[Ending]:
    return [Ending(state) for state in states]


def test_without_exit_on_it_never_ends_by_itself():
    assert finish((), endings(State.FAILED, State.SUCCEEDED)) is None


def test_one_that_is_given_up_is_fatal_while_others_run():
    assert finish((ExitOn.FATAL,), endings(State.RUNNING, State.FAILED)) is Finish.FATAL
    assert finish(BOTH, endings(State.RUNNING, State.FAILED)) is Finish.FATAL


def test_fatal_alone_does_not_end_what_is_done():
    assert finish((ExitOn.FATAL,), endings(State.SUCCEEDED)) is None


@pytest.mark.parametrize("state", sorted(set(State) - {State.SUCCEEDED, State.EXITED, State.FAILED}))
def test_done_waits_for_every_program_that_ran(state: State):
    assert finish((ExitOn.DONE,), endings(State.SUCCEEDED, state)) is None


def test_all_that_ended_as_they_should_are_done():
    assert finish((ExitOn.DONE,), endings(State.SUCCEEDED, State.SUCCEEDED)) is Finish.DONE


@pytest.mark.parametrize("state", [State.EXITED, State.FAILED])
def test_one_that_did_not_makes_the_end_fatal(state: State):
    assert finish((ExitOn.DONE,), endings(State.SUCCEEDED, state)) is Finish.FATAL


def test_what_was_never_started_keeps_nobody():
    idle = Ending(State.STOPPED, ran=False)

    assert finish((ExitOn.DONE,), [idle, Ending(State.SUCCEEDED)]) is Finish.DONE
    assert finish((ExitOn.DONE,), [idle]) is None
    assert finish((ExitOn.DONE,), []) is None


def test_what_was_done_before_a_restart_is_done():
    assert finish((ExitOn.DONE,), [Ending(State.STOPPED, ran=False, was_done=True)]) is Finish.DONE
