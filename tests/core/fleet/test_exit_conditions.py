"""When the daemon has nothing left to do."""

import pytest

from supervisor.core.fleet.exit_conditions import (
    EXIT_FATAL,
    EXIT_INTERRUPTED,
    DaemonExit,
    ExitOn,
    ProgramOutcome,
    daemon_exit,
    exit_status,
)
from supervisor.core.program.facts import State

BOTH = (ExitOn.FATAL, ExitOn.DONE)


def endings(*states: State) -> list[ProgramOutcome]:
    return [ProgramOutcome(state) for state in states]


def test_without_exit_on_it_never_ends_by_itself():
    assert daemon_exit((), endings(State.FAILED, State.SUCCEEDED)) is None


def test_failed_program_is_fatal_while_others_run():
    assert daemon_exit((ExitOn.FATAL,), endings(State.RUNNING, State.FAILED)) is DaemonExit.FATAL
    assert daemon_exit(BOTH, endings(State.RUNNING, State.FAILED)) is DaemonExit.FATAL


def test_fatal_alone_does_not_end_what_is_done():
    assert daemon_exit((ExitOn.FATAL,), endings(State.SUCCEEDED)) is None


@pytest.mark.parametrize("state", sorted(set(State) - {State.SUCCEEDED, State.EXITED, State.FAILED}))
def test_done_waits_for_every_program_that_ran(state: State):
    assert daemon_exit((ExitOn.DONE,), endings(State.SUCCEEDED, state)) is None


def test_all_that_ended_as_they_should_are_done():
    assert daemon_exit((ExitOn.DONE,), endings(State.SUCCEEDED, State.SUCCEEDED)) is DaemonExit.DONE


@pytest.mark.parametrize("state", [State.EXITED, State.FAILED])
def test_unfinished_program_makes_the_end_fatal(state: State):
    assert daemon_exit((ExitOn.DONE,), endings(State.SUCCEEDED, state)) is DaemonExit.FATAL


def test_program_never_started_does_not_delay_the_exit():
    idle = ProgramOutcome(State.STOPPED, ran=False)

    assert daemon_exit((ExitOn.DONE,), [idle, ProgramOutcome(State.SUCCEEDED)]) is DaemonExit.DONE
    assert daemon_exit((ExitOn.DONE,), [idle]) is None
    assert daemon_exit((ExitOn.DONE,), []) is None


def test_job_done_before_a_restart_counts_as_done():
    assert daemon_exit((ExitOn.DONE,), [ProgramOutcome(State.STOPPED, ran=False, was_done=True)]) is DaemonExit.DONE


@pytest.mark.parametrize("exit_on", [(ExitOn.DONE,), (ExitOn.FATAL,), BOTH])
def test_a_shutdown_before_everything_is_done_is_no_success_where_success_means_done(exit_on: tuple[ExitOn, ...]):
    stopped = endings(State.SUCCEEDED, State.STOPPED)

    assert exit_status(0, exit_on, stopped) == EXIT_INTERRUPTED
    assert exit_status(0, exit_on, endings(State.SUCCEEDED)) == 0  # the last step was made while it stopped
    assert exit_status(EXIT_FATAL, exit_on, stopped) == EXIT_FATAL
    assert exit_status(0, (), stopped) == 0
