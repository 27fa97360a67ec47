"""What the batch script does after each end of the daemons."""

import pytest

from supervisor.core.gang.steps import (
    LEAVES_WITH,
    MAX_AGAIN,
    MAX_LOST,
    MAX_RESTARTS,
    MAX_RUNS_MISSING,
    AfterDaemon,
    AfterStep,
    ChiefSeen,
    StepHistory,
    after_daemon,
    daemon_status,
    step_status,
)
from supervisor.protocol.allocation import StepExit

KILLED = 137


@pytest.mark.parametrize(
    ("status", "is_ending", "verdict"),
    [
        (StepExit.DONE, True, AfterStep.LEAVE),
        (StepExit.FAILED, False, AfterStep.LEAVE),
        (78, True, AfterStep.LEAVE),
        (StepExit.SAVED, False, AfterStep.AGAIN),
        (StepExit.SAVED, True, AfterStep.REQUEUE),
        (StepExit.NODE_LEAVES, False, AfterStep.REQUEUE),
        (StepExit.AGAIN, False, AfterStep.AGAIN),
        (StepExit.AGAIN, True, AfterStep.REQUEUE),
        (StepExit.STORAGE_AWAY, True, AfterStep.REQUEUE),
        (KILLED, False, AfterStep.AGAIN),
        (KILLED, True, AfterStep.REQUEUE),
        (1, False, AfterStep.AGAIN),
    ],
)
def test_what_follows_a_step(status: int, is_ending: bool, verdict: AfterStep):
    assert StepHistory().after(status, None, is_ending).verdict is verdict


def test_the_highest_status_of_all_nodes_is_the_one_that_counts():
    order = [StepExit.DONE, StepExit.SAVED, StepExit.NODE_LEAVES, StepExit.AGAIN, StepExit.NODE_MISSING]
    order += [StepExit.STORAGE_AWAY, 70]
    assert order == sorted(order)


def test_daemons_that_are_lost_again_and_again_without_a_checkpoint_end_the_job():
    history = StepHistory()
    verdicts = [history.after(KILLED, "a", False).verdict for _ in range(MAX_LOST + 1)]
    assert verdicts == [*[AfterStep.AGAIN] * MAX_LOST, AfterStep.LEAVE]


def test_a_new_checkpoint_forgives_them():
    history = StepHistory()
    assert {history.after(KILLED, step, False).verdict for step in range(50)} == {AfterStep.AGAIN}


def test_gangs_that_begin_again_and_again_without_a_checkpoint_end_the_job():
    history = StepHistory()
    follows = [history.after(StepExit.AGAIN, "a", False) for _ in range(MAX_AGAIN + 1)]
    assert [follow.verdict for follow in follows] == [*[AfterStep.AGAIN] * MAX_AGAIN, AfterStep.LEAVE]
    assert follows[0].pause_s == 0 < follows[MAX_AGAIN - 1].pause_s


def test_nodes_that_never_reach_each_other_end_the_job():
    for restarts, newest, verdict in (
        (MAX_RUNS_MISSING, None, AfterStep.LEAVE),
        (MAX_RUNS_MISSING, "new", AfterStep.REQUEUE),
        (MAX_RUNS_MISSING - 1, None, AfterStep.REQUEUE),
    ):
        history = StepHistory(None, restarts)
        history.after(StepExit.NODE_MISSING, newest, False)
        assert history.after(StepExit.NODE_MISSING, newest, False).verdict is verdict


def test_a_node_that_stays_away_goes_back_to_slurm():
    history = StepHistory()
    first, second = (history.after(StepExit.NODE_MISSING, None, False).verdict for _ in range(2))
    assert (first, second) == (AfterStep.AGAIN, AfterStep.REQUEUE)
    assert history.after(StepExit.AGAIN, None, False).verdict is AfterStep.AGAIN


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ((0, True, False, None), StepExit.DONE),
        ((0, True, True, StepExit.AGAIN), StepExit.DONE),
        ((70, False, True, None), 70),
        ((0, False, False, None), StepExit.SAVED),
        ((0, False, True, None), StepExit.NODE_LEAVES),
        ((0, False, True, StepExit.AGAIN), StepExit.AGAIN),
    ],
)
def test_how_a_daemon_ends(given: tuple[int, bool, bool, StepExit | None], status: int):
    assert daemon_status(*given) == status


def test_storage_that_is_away_is_waited_for_without_end_and_counts_for_nothing():
    history = StepHistory()
    follows = [history.after(StepExit.STORAGE_AWAY, None, False) for _ in range(5 * MAX_AGAIN)]
    assert {follow.verdict for follow in follows} == {AfterStep.AGAIN}
    assert min(follow.pause_s for follow in follows) > 0
    assert history.after(StepExit.AGAIN, None, False).verdict is AfterStep.AGAIN


@pytest.mark.parametrize(
    ("verdict", "highest", "status"),
    [
        (StepExit.DONE, KILLED, StepExit.DONE),  # of a node that was lost
        (StepExit.FAILED, KILLED, StepExit.FAILED),
        (StepExit.AGAIN, KILLED, StepExit.AGAIN),
        (StepExit.SAVED, StepExit.NODE_LEAVES, StepExit.NODE_LEAVES),
        (StepExit.NODE_LEAVES, StepExit.DONE, StepExit.NODE_LEAVES),
        (None, KILLED, KILLED),
        (None, StepExit.DONE, StepExit.DONE),
    ],
)
def test_with_spare_nodes_the_chief_says_how_a_step_ended(verdict: int | None, highest: int, status: int):
    assert step_status(verdict, highest) == status


@pytest.mark.parametrize(
    ("restarts", "chief", "follows"),
    [
        (0, ChiefSeen.LISTENS, AfterDaemon.START),
        (MAX_RESTARTS, ChiefSeen.LISTENS, AfterDaemon.LEAVE),
        (0, ChiefSeen.NO_DAEMON, AfterDaemon.LEAVE),
        (MAX_RESTARTS, ChiefSeen.SILENT, AfterDaemon.LOOK),
        (MAX_RESTARTS, ChiefSeen.NO_NODE, AfterDaemon.REQUEUE),
    ],
)
def test_a_node_starts_its_daemon_again_while_the_gang_goes_on(restarts: int, chief: ChiefSeen, follows: AfterDaemon):
    assert after_daemon(restarts, chief) is follows


def test_a_node_whose_daemon_ended_in_order_or_for_good_leaves():
    assert {StepExit.DONE, StepExit.SAVED, StepExit.NODE_LEAVES, StepExit.FAILED, 71, 78} <= LEAVES_WITH
    assert LEAVES_WITH.isdisjoint({StepExit.AGAIN, StepExit.NODE_MISSING, StepExit.STORAGE_AWAY, KILLED})


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (StepExit.AGAIN, AfterStep.REQUEUE),
        (KILLED, AfterStep.REQUEUE),
        (StepExit.DONE, AfterStep.LEAVE),
        (StepExit.FAILED, AfterStep.LEAVE),
    ],
)
def test_a_job_that_has_lost_too_many_nodes_is_queued_again_unless_it_is_over(status: int, verdict: AfterStep):
    assert StepHistory().after(status, None, False, lacks_nodes=True).verdict is verdict
