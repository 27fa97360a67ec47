"""One daemon's view of its gang: who is missing, what a loss leads to, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gang.effects import (
    BeginTraining,
    Disconnect,
    EndGeneration,
    EndWorker,
    GangEffect,
    Say,
    TellCluster,
)
from supervisor.core.gang.orderly_stop import SAVING_S, STOPPED_S
from supervisor.core.gang.presence import SILENCE_S
from supervisor.core.gang.roster import GRACE_S, Roster
from supervisor.core.gang.view import LEAVE_S, GangView, TurnPhase
from supervisor.protocol.allocation import MAX_TURNS, Allocation, StepExit
from supervisor.protocol.gang import Broken, Over, Refused, SeenDivergence, WithoutWorker

NODES = ("n1", "n2", "n3")


ADDRESSES = ("n1:5000", "n2:5001", "n3:5002")
ALL = (0, 1, 2)


def view(rank: int, nodes: tuple[str, ...] = NODES, wanted: int | None = None) -> GangView:
    roster = Roster(len(nodes), len(nodes) if wanted is None else wanted)
    gang = GangView(Allocation(7, rank, nodes, 0, 1), 0.0, 120.0, roster)
    if rank == 0:
        assert gang.ready(f"{nodes[0]}:5000", 0.0) == []
    return gang


def join(chief: GangView, rank: int, now: float, turn: int = 0) -> list[GangEffect]:
    return chief.joined(rank, turn, f"{chief.allocation.nodes[rank]}:500{rank}", now)


def complete() -> GangView:
    chief = view(0)
    join(chief, 1, 1.0)
    join(chief, 2, 2.0)
    return chief


def spared(count: int = 4, wanted: int = 3) -> GangView:
    """A chief of a gang that trains, with spare nodes."""
    chief = view(0, nodes=tuple(f"n{number}" for number in range(1, count + 1)), wanted=wanted)
    for node in range(1, count):
        join(chief, node, 1.0)
    assert chief.phase is TurnPhase.TRAINING
    return chief


def test_the_chief_begins_once_all_have_joined_and_orders_them_by_rank():
    chief = view(0)
    assert join(chief, 2, 1.0) == []
    assert join(chief, 1, 2.0) == [BeginTraining(0, ALL, ADDRESSES)]


def test_what_any_node_has_seen_diverge_is_known_as_a_turn_begins_and_not_in_the_next():
    chief = spared()
    chief.joined(3, 0, "n4:5004", 2.0, SeenDivergence(7, 1))  # it trains already: that node says it again
    chief.broken("its worker ended", 3.0)
    for node in (1, 2, 3):
        seen = SeenDivergence(20 + node, 3) if node > 1 else None  # also of a spare one, which had a rank before
        chief.on_ready(node, WithoutWorker(1, ADDRESSES[node % 3], seen), 4.0)

    (begin,) = chief.ready("n1:6000", 5.0, None)

    assert isinstance(begin, BeginTraining)
    assert sorted(divergence.below_step for divergence in begin.diverged) == [22, 23]
    chief.broken("its worker ended", 6.0)
    for node in (1, 2):
        chief.on_ready(node, WithoutWorker(2, ADDRESSES[node]), 7.0)
    (again,) = chief.ready("n1:7000", 8.0)
    assert isinstance(again, BeginTraining) and again.diverged == ()


def test_a_node_that_is_not_the_chief_says_what_its_worker_has_seen():
    other = view(1)
    seen = SeenDivergence(21, 3)
    assert other.ready("n2:5000", 0.0, seen) == [Say(WithoutWorker(0, "n2:5000", seen))]


def gathering(count: int = 3, wanted: int = 3) -> GangView:
    """A chief whose second turn has not begun."""
    chief = spared(count, wanted)
    chief.broken("its worker ended", 2.0)
    assert chief.phase is TurnPhase.GATHERING
    return chief


@pytest.mark.parametrize("status", [StepExit.SAVED, StepExit.NODE_LEAVES])
@pytest.mark.parametrize("count", [3, 4])
def test_a_member_that_is_told_to_stop_between_two_turns_has_not_failed(status: StepExit, count: int):
    """A spare node does not take its rank either, as while all train: the operator has stopped the job."""
    chief = gathering(count)

    (end,) = chief.left(1, status, "saved and stopped", 3.0)

    assert end == EndGeneration(status, "rank 1 (n2) left: saved and stopped")
    assert chief.roster.failures == {}


def test_a_chief_that_is_told_to_stop_between_two_turns_stops_the_others_in_order():
    other = view(1)
    other.begun(0, ALL, ADDRESSES, 1.0)
    other.on_over(Over(1, "why"), 2.0)

    (end,) = other.left(0, StepExit.SAVED, "saved and stopped", 3.0)

    assert end == EndGeneration(StepExit.SAVED, "rank 0 (n1) left: saved and stopped")


def test_a_spare_node_that_is_told_to_stop_between_two_turns_is_not_missed():
    chief = gathering(4)

    assert chief.left(3, StepExit.SAVED, "saved and stopped", 3.0) == []
    assert chief.end is None and chief.roster.failures == {}


def test_the_rendezvous_names_who_is_missing():
    chief = view(0)
    join(chief, 1, 1.0)
    for second in range(2, 120):
        chief.heard(1, float(second))
    assert chief.expire(119.0) == []
    (end,) = chief.expire(120.0)
    assert end == EndGeneration(StepExit.NODE_MISSING, "rank 2 (n3) did not join within 120 s (rendezvous_timeout)")


def test_a_daemon_that_can_not_reach_the_chief_names_it():
    (end,) = view(1).expire(120.0)
    assert isinstance(end, EndGeneration) and "rank 0 (n1), the chief, could not be reached" in end.text


def test_silence_of_one_ends_the_generation():
    chief = complete()
    chief.heard(1, 5.0)
    assert chief.deadline() == 2.0 + SILENCE_S
    drop, end = chief.expire(2.0 + SILENCE_S)
    assert drop == Disconnect(2)
    assert end == EndGeneration(StepExit.AGAIN, f"nothing was heard of rank 2 (n3) for {SILENCE_S:g} s")
    assert chief.deadline() is None
    assert chief.lost(1, "closed", 50.0) == []  # the first reason counts


def test_a_lost_connection_ends_it_at_once():
    assert complete().lost(1, "closed", 3.0) == [EndGeneration(StepExit.AGAIN, "rank 1 (n2) was lost: closed")]


def test_a_rank_that_failed_ends_it_with_its_reason():
    (end,) = complete().left(2, StepExit.AGAIN, "its worker ended: SIGKILL", 3.0)
    assert end == EndGeneration(StepExit.AGAIN, "rank 2 (n3) left: its worker ended: SIGKILL")


def test_a_rank_that_is_done_is_no_loss_but_the_others_have_to_follow():
    chief = complete()
    assert chief.left(1, StepExit.DONE, "done", 100.0) == []
    assert chief.lost(1, "closed", 50.0) == []
    for second in range(3, 160):
        chief.heard(2, float(second))
    assert chief.deadline() == 100.0 + LEAVE_S
    assert chief.expire(159.0) == []
    (end,) = chief.expire(100.0 + LEAVE_S)
    assert isinstance(end, EndGeneration) and end.status is StepExit.AGAIN


def test_a_rank_that_leaves_before_the_beginning_is_a_loss():
    chief = view(0)
    join(chief, 1, 1.0)
    (end,) = chief.left(1, StepExit.SAVED, "told to stop", 2.0)
    assert isinstance(end, EndGeneration)


def test_a_turn_that_nobody_began_is_refused():
    (end,) = view(1).begun(1, ALL, ADDRESSES, 1.0)
    assert isinstance(end, EndGeneration)
    assert view(1).begun(0, ALL, ADDRESSES, 1.0) == [BeginTraining(0, ALL, ADDRESSES)]


def many(size: int) -> GangView:
    nodes = tuple(f"n{rank}" for rank in range(size))
    chief = GangView(Allocation(7, 0, nodes, 0, 1), 0.0, 5.0, Roster(size, size))
    chief.ready("n0:1", 0.0)
    return chief


def test_a_text_that_goes_to_every_rank_does_not_name_every_rank():
    (end,) = many(1000).expire(5.0)
    assert isinstance(end, EndGeneration)
    assert end.text.startswith("rank 1 (n1), rank 2 (n2), ") and ", and 991 more did not join" in end.text
    chief = many(1000)
    for rank in range(1, 1000):
        chief.joined(rank, 0, f"n{rank}:1", 1.0)
    *_, end = chief.expire(1.0 + SILENCE_S)
    assert isinstance(end, EndGeneration) and "rank 8 (n8), and 991 more for 10 s" in end.text


@given(
    st.lists(st.tuples(st.sampled_from(["join", "hear", "leave"]), st.integers(1, 4), st.floats(0.0, 3.0)), max_size=40)
)
def test_the_deadline_is_that_of_whoever_was_not_heard_for_longest(events: list[tuple[str, int, float]]):
    chief = many(5)
    heard, left, now, leave_by = dict[int, float](), set[int](), 0.0, None
    for event, rank, pause_s in events:
        now += pause_s
        if event == "join" and rank not in heard:
            chief.joined(rank, 0, f"n{rank}:1", now)
        elif event == "hear" and rank in heard:
            chief.heard(rank, now)
        elif event == "leave" and rank in heard and chief.phase is TurnPhase.TRAINING:
            chief.heard(rank, now)
            chief.left(rank, StepExit.DONE, "done", now)
            left.add(rank)
            leave_by = leave_by or now + LEAVE_S
        else:
            continue
        heard[rank] = now
        limits = [at + SILENCE_S for other, at in heard.items() if other not in left]
        limits += [] if chief.phase is TurnPhase.TRAINING else [5.0]
        assert chief.deadline() == min([*limits, *([leave_by] if leave_by is not None else [])])


def test_a_worker_that_ended_begins_a_turn_in_which_all_have_no_worker():
    chief = complete()
    effects = chief.on_broken(1, Broken(0, "its worker ended: SIGKILL"), 3.0)
    text = "rank 1 (n2): its worker ended: SIGKILL"
    assert effects == [Say(Over(1, text)), EndWorker(text)]
    assert chief.on_ready(1, WithoutWorker(1, "n2:6001"), 3.1) == []
    assert chief.on_ready(2, WithoutWorker(1, "n3:6002"), 3.2) == []
    begins = chief.ready("n1:6000", 3.3)
    assert begins == [BeginTraining(1, ALL, ("n1:6000", "n2:6001", "n3:6002"))]


def test_another_rank_ends_its_worker_and_says_so():
    other = view(1)
    other.begun(0, ALL, ADDRESSES, 1.0)
    assert other.on_over(Over(1, "why"), 2.0) == [EndWorker("why")]
    assert other.ready("n2:6001", 2.1) == [Say(WithoutWorker(1, "n2:6001"))]
    assert other.begun(1, ALL, ADDRESSES, 2.2) == [BeginTraining(1, ALL, ADDRESSES)]


def test_what_is_said_of_a_turn_before_changes_nothing():
    chief = complete()
    chief.on_broken(1, Broken(0, "x"), 3.0)
    chief.ready("n1:6000", 3.1)
    assert chief.on_broken(2, Broken(0, "x"), 3.2) == []
    assert chief.on_ready(2, WithoutWorker(0, "n3:5002"), 3.3) == []
    assert chief.turn == 1 and chief.phase is TurnPhase.GATHERING


def test_after_so_many_turns_the_batch_script_looks_at_it():
    chief = complete()
    for turn in range(MAX_TURNS - 1):
        assert chief.broken("x", 3.0)[0] == Say(Over(turn + 1, "rank 0 (n1): x"))
        for rank in (1, 2):
            chief.on_ready(rank, WithoutWorker(turn + 1, f"n{rank + 1}:1"), 3.0)
        chief.ready("n1:1", 3.0)
    (end,) = chief.broken("x", 3.0)
    assert end == EndGeneration(StepExit.AGAIN, "rank 0 (n1): x")


def test_a_spare_node_takes_the_rank_of_one_that_is_silent():
    chief = spared()
    for node in (1, 3):
        chief.heard(node, 5.0)
    drop, over, end = chief.expire(1.0 + SILENCE_S)
    text = f"nothing was heard of rank 2 (n3) for {SILENCE_S:g} s"
    assert (drop, over, end) == (Disconnect(2), Say(Over(1, text)), EndWorker(text))
    chief.ready("n1:1", 12.0)
    chief.on_ready(3, WithoutWorker(1, "n4:1"), 12.0)
    (begins,) = chief.on_ready(1, WithoutWorker(1, "n2:1"), 12.0)
    assert begins == BeginTraining(1, (0, 1, 3), ("n1:1", "n2:1", "n4:1"))


@pytest.mark.parametrize("is_spared", [False, True])
def test_who_is_lost_once_all_have_trained_to_the_end_takes_nothing_with_it(is_spared: bool):
    """Under load, a daemon that was just leaving too was taken for silent, and the spare node said that all failed."""
    chief = spared() if is_spared else complete()
    chief.is_done = True

    assert all(isinstance(effect, Disconnect) for effect in chief.expire(60.0))
    assert chief.lost(1, "closed", 61.0) == []
    assert chief.joined(1, 0, "n2:1", 62.0) == []
    assert chief.end is None and chief.turn == 0
    assert chief.left(2, StepExit.DONE, "done", 63.0) == []


def test_a_node_that_failed_is_the_spare_once_it_is_back():
    chief = spared()
    chief.lost(2, "closed", 3.0)
    chief.ready("n1:1", 3.0)
    chief.on_ready(1, WithoutWorker(1, "n2:1"), 3.0)
    chief.on_ready(3, WithoutWorker(1, "n4:1"), 3.0)
    assert join(chief, 2, 10.0) == [Say(Over(1, "another node has its rank"), 2)]
    assert chief.on_ready(2, WithoutWorker(1, "n3:1"), 10.1) == [TellCluster(2)]
    chief.lost(1, "closed", 11.0)
    chief.ready("n1:1", 11.0)
    chief.on_ready(3, WithoutWorker(2, "n4:1"), 11.0)
    (begins,) = chief.on_ready(2, WithoutWorker(2, "n3:2"), 11.0)
    assert begins == BeginTraining(2, (0, 2, 3), ("n1:1", "n3:2", "n4:1"))


def test_without_another_spare_node_the_generation_is_over():
    chief = spared()
    chief.lost(2, "closed", 3.0)
    (end,) = chief.lost(1, "closed", 3.1)
    assert end == EndGeneration(StepExit.AGAIN, "rank 1 (n2) was lost: closed")


def test_the_loss_of_a_spare_node_disturbs_nobody():
    chief = spared()
    assert chief.lost(3, "closed", 3.0) == []
    assert chief.left(3, StepExit.AGAIN, "x", 3.0) == []
    assert chief.phase is TurnPhase.TRAINING


def test_a_spare_node_that_does_not_come_is_waited_for_shortly_and_only_if_it_is_needed():
    chief = view(0, nodes=("n1", "n2", "n3", "n4"), wanted=3)
    join(chief, 1, 1.0)
    assert join(chief, 3, 2.0) == []
    assert chief.deadline() == 1.0 + SILENCE_S
    for node in (1, 3):
        chief.heard(node, 14.0)
    assert chief.deadline() == GRACE_S
    (begins,) = chief.expire(GRACE_S)
    assert begins == BeginTraining(0, (0, 1, 3), ("n1:5000", "n2:5001", "n4:5003"))
    chief = view(0, nodes=("n1", "n2", "n3", "n4"), wanted=3)
    join(chief, 1, 1.0)
    assert join(chief, 2, 2.0) == [BeginTraining(0, ALL, ADDRESSES)]


def test_a_spare_node_ends_well_when_the_chief_does():
    spare = view(3, nodes=("n1", "n2", "n3", "n4"), wanted=3)
    spare.begun(0, ALL, ADDRESSES, 1.0)
    assert not spare.trains
    (end,) = spare.left(0, StepExit.DONE, "done", 2.0)
    assert isinstance(end, EndGeneration) and end.status is StepExit.DONE


def test_a_node_that_failed_twice_is_told_that_the_others_go_on_without_it():
    chief = spared()
    for turn in (1, 2):
        chief.lost(2 if turn == 1 else 3, "closed", 3.0)
        join(chief, 2, 4.0, turn)
        chief.lost(2, "closed", 5.0)
    (refused,) = join(chief, 2, 6.0, chief.turn)
    assert isinstance(refused, Say) and isinstance(refused.message, Refused)
    assert refused.node == 2 and refused.message.is_out
    out = view(2)
    (end,) = out.refused(refused.message.reason, refused.message.is_out)
    assert end == EndGeneration(StepExit.DONE, "rank 2 (n3) has failed 2 times and is not taken again")


def test_a_daemon_that_is_refused_for_another_reason_begins_again():
    (end,) = view(1).refused("it belongs to generation 1", False)
    assert isinstance(end, EndGeneration) and end.status is StepExit.AGAIN


NOTICE = "its host goes away (file: rack 7)"
SAVED = Broken(0, "saved and stopped", saved=True)
LEFT = f"rank 2 (n3) left: {NOTICE}; a spare node takes its rank"


def leave_alone(chief: GangView, node: int, now: float) -> list[GangEffect]:
    return chief.left(node, StepExit.NODE_LEAVES, NOTICE, now, alone=True)


def test_a_spare_node_takes_the_rank_of_one_that_leaves_once_all_workers_have_stopped():
    chief = spared()
    assert chief.on_broken(1, SAVED, 3.0) == []
    assert leave_alone(chief, 2, 3.1) == []
    assert chief.left(2, StepExit.DONE, "done", 3.1) == chief.lost(2, "closed", 3.1) == []  # as its daemon exits
    assert chief.stopped(3.2) == [Say(Over(1, LEFT)), EndWorker(LEFT)]
    chief.heard(2, 3.3)
    chief.ready("n1:1", 3.4)
    chief.on_ready(1, WithoutWorker(1, "n2:1"), 3.4)
    begins = chief.on_ready(3, WithoutWorker(1, "n4:1"), 3.4)
    assert begins == [BeginTraining(1, (0, 1, 3), ("n1:1", "n2:1", "n4:1"))]
    assert chief.roster.failures == {}


def test_a_node_that_has_left_gets_no_rank_before_it_joins_again():
    chief = spared()
    leave_alone(chief, 2, 3.0)
    chief.stopped(3.1)
    chief.on_broken(1, SAVED, 3.1)
    chief.ready("n1:1", 3.2)
    chief.on_ready(1, WithoutWorker(1, "n2:1"), 3.2)
    assert chief.on_ready(2, WithoutWorker(1, "n3:1"), 3.2) == [], "its worker has ended, and its daemon has not"
    assert chief.on_ready(3, WithoutWorker(1, "n4:1"), 3.3) == [BeginTraining(1, (0, 1, 3), ("n1:1", "n2:1", "n4:1"))]


def test_workers_that_do_not_stop_although_a_node_has_left_are_ended():
    for chief_stops, within_s in ((False, SAVING_S), (True, STOPPED_S)):
        chief = spared()
        leave_alone(chief, 2, 3.0)
        if chief_stops:
            chief.stopped(3.0)
        for node in (1, 3):
            chief.heard(node, 2.0 + within_s)
        assert chief.deadline() == 3.0 + within_s
        assert chief.expire(3.0 + within_s) == [Say(Over(1, LEFT)), EndWorker(LEFT)]


def test_a_stop_that_is_no_nodes_ends_the_generation_in_order():
    chief = spared()
    assert chief.on_broken(1, SAVED, 3.0) == chief.stopped(3.1) == []
    assert chief.left(2, StepExit.SAVED, "saved and stopped", 3.2) == [
        EndGeneration(StepExit.SAVED, "rank 2 (n3) left: saved and stopped")
    ]
    chief = spared()
    chief.left(2, StepExit.SAVED, "saved and stopped", 3.0)
    assert chief.stopped(3.1) == [EndGeneration(StepExit.SAVED, "saved and stopped")]


def test_a_stop_of_which_nobody_says_why_ends_the_generation_in_order():
    chief = spared()
    chief.on_broken(1, SAVED, 3.0)
    for node in (1, 2, 3):
        chief.heard(node, 60.0)
    assert chief.expire(62.9) == []
    (end,) = chief.expire(3.0 + SAVING_S)
    assert isinstance(end, EndGeneration) and end.status is StepExit.SAVED
    chief = spared()
    chief.stopped(3.0)
    for node in (1, 2, 3):
        chief.heard(node, 12.0)
    (end,) = chief.expire(3.0 + STOPPED_S)
    assert isinstance(end, EndGeneration) and end.status is StepExit.SAVED


def test_two_nodes_that_leave_while_one_is_spare_end_the_generation_in_order():
    chief = spared()
    assert leave_alone(chief, 2, 3.0) == leave_alone(chief, 1, 3.1) == []
    assert chief.stopped(3.2) == [EndGeneration(StepExit.SAVED, "saved and stopped")]
    chief = spared()
    leave_alone(chief, 2, 3.0)
    chief.on_broken(1, SAVED, 3.1)
    chief.stopped(3.2)
    (end,) = leave_alone(chief, 1, 3.3)
    assert isinstance(end, EndGeneration) and end.status is StepExit.NODE_LEAVES
    assert end.text == f"rank 1 (n2) left: {NOTICE}; no spare node can take its rank"


def test_a_node_that_leaves_while_all_were_told_to_stop_leaves_with_them():
    chief = spared()
    chief.left(1, StepExit.SAVED, "saved and stopped", 3.0)
    assert leave_alone(chief, 2, 3.1) == []
    assert chief.has_left(2) and chief.deadline() == 1.0 + SILENCE_S
    assert chief.stopped(3.2) == [EndGeneration(StepExit.SAVED, "saved and stopped")]


def test_a_node_that_leaves_between_two_turns_is_no_failure():
    chief = spared()
    chief.lost(1, "closed", 3.0)
    (end,) = leave_alone(chief, 2, 3.1)
    assert isinstance(end, EndGeneration) and end.status is StepExit.NODE_LEAVES
    chief = spared(count=5)
    chief.lost(1, "closed", 3.0)
    chief.ready("n1:1", 3.1)
    chief.on_ready(3, WithoutWorker(1, "n4:1"), 3.1)
    chief.on_ready(4, WithoutWorker(1, "n5:1"), 3.1)
    assert leave_alone(chief, 2, 3.2) == [BeginTraining(1, (0, 3, 4), ("n1:1", "n4:1", "n5:1"))]
    assert chief.roster.failures == {1: 1}


def test_a_spare_node_that_leaves_disturbs_nobody_and_is_not_counted_on():
    chief = spared()
    assert leave_alone(chief, 3, 3.0) == []
    assert chief.phase is TurnPhase.TRAINING and chief.deadline() == 1.0 + SILENCE_S
    assert leave_alone(chief, 2, 3.1) == []
    assert chief.stopped(3.2) == [EndGeneration(StepExit.SAVED, "saved and stopped")]


def test_a_node_that_has_left_may_come_back_as_a_spare_one():
    chief = spared()
    leave_alone(chief, 2, 3.0)
    chief.on_broken(1, SAVED, 3.0)
    chief.stopped(3.0)
    chief.ready("n1:1", 3.1)
    chief.on_ready(1, WithoutWorker(1, "n2:1"), 3.1)
    chief.on_ready(3, WithoutWorker(1, "n4:1"), 3.1)
    assert join(chief, 2, 60.0) == [Say(Over(1, "another node has its rank"), 2)]
    assert chief.on_ready(2, WithoutWorker(1, "n3:1"), 60.1) == [TellCluster(2)]
    assert chief.lost(3, "closed", 61.0)[0] == Say(Over(2, "rank 3 (n4) was lost: closed"))


def test_a_worker_that_died_while_another_node_leaves_begins_the_next_turn_at_once():
    chief = spared()
    leave_alone(chief, 2, 3.0)
    over, _ = chief.on_broken(1, Broken(0, "its worker ended: SIGSEGV"), 3.1)
    assert over == Say(Over(1, "rank 1 (n2): its worker ended: SIGSEGV"))


def test_another_rank_that_has_stopped_begins_again_or_leaves_with_the_chief():
    nodes = ("n1", "n2", "n3", "n4")
    others = [view(1, nodes, wanted=3) for _ in range(3)]
    for other in others:
        other.begun(0, ALL, ADDRESSES, 1.0)
    first, second, third = others
    assert first.stopped(2.0) == [Say(SAVED)] and first.stopped(2.0) == []
    assert first.on_over(Over(1, LEFT), 2.1) == [EndWorker(LEFT)]
    assert first.ready("n2:1", 2.2) == [Say(WithoutWorker(1, "n2:1"))]
    first.begun(1, (0, 1, 3), ADDRESSES, 2.3)
    assert first.stopped(9.0) == [Say(Broken(1, "saved and stopped", saved=True))]
    second.stopped(2.0)
    (end,) = second.left(0, StepExit.NODE_LEAVES, "saved, because this node leaves", 2.1)
    assert isinstance(end, EndGeneration) and end.status is StepExit.SAVED
    third.left(0, StepExit.NODE_LEAVES, "saved, because this node leaves", 2.0)
    assert third.stopped(2.1) == [EndGeneration(StepExit.SAVED, "saved and stopped")]
