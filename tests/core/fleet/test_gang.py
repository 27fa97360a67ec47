"""One daemon's view of its gang: who is missing, what a loss leads to, and what is none."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet.gang import LEAVE_S, SILENCE_S, BeginTraining, EndGeneration, GangView
from supervisor.protocol.allocation import Allocation, StepExit

NODES = ("n1", "n2", "n3")


def view(rank: int) -> GangView:
    return GangView(Allocation(7, rank, NODES, 0, 1), f"{NODES[rank]}:500{rank}", began_at=0.0, rendezvous_s=120.0)


def complete() -> GangView:
    chief = view(0)
    chief.joined(1, "n2:5001", 1.0)
    chief.joined(2, "n3:5002", 2.0)
    return chief


def test_the_chief_begins_once_all_have_joined_and_orders_them_by_rank():
    chief = view(0)
    assert chief.joined(2, "n3:5002", 1.0) == []
    assert chief.joined(1, "n2:5001", 2.0) == [BeginTraining(("n1:5000", "n2:5001", "n3:5002"))]


def test_the_rendezvous_names_who_is_missing():
    chief = view(0)
    chief.joined(1, "n2:5001", 1.0)
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
    (end,) = chief.expire(2.0 + SILENCE_S)
    assert end == EndGeneration(StepExit.AGAIN, f"nothing was heard of rank 2 (n3) for {SILENCE_S:g} s")
    assert chief.deadline() is None
    assert chief.lost(1, "closed") == []  # the first reason counts


def test_a_lost_connection_ends_it_at_once():
    assert complete().lost(1, "closed") == [EndGeneration(StepExit.AGAIN, "rank 1 (n2) was lost: closed")]


def test_a_rank_that_failed_ends_it_with_its_reason():
    (end,) = complete().left(2, StepExit.AGAIN, "its worker ended: SIGKILL", 3.0)
    assert end == EndGeneration(StepExit.AGAIN, "rank 2 (n3) left: its worker ended: SIGKILL")


def test_a_rank_that_is_done_is_no_loss_but_the_others_have_to_follow():
    chief = complete()
    assert chief.left(1, StepExit.DONE, "done", 100.0) == []
    assert chief.lost(1, "closed") == []
    for second in range(3, 160):
        chief.heard(2, float(second))
    assert chief.deadline() == 100.0 + LEAVE_S
    assert chief.expire(159.0) == []
    (end,) = chief.expire(100.0 + LEAVE_S)
    assert isinstance(end, EndGeneration) and end.status is StepExit.AGAIN


def test_a_rank_that_leaves_before_the_beginning_is_a_loss():
    chief = view(0)
    chief.joined(1, "n2:5001", 1.0)
    (end,) = chief.left(1, StepExit.SAVED, "told to stop", 2.0)
    assert isinstance(end, EndGeneration)


def test_a_cluster_without_this_daemon_is_refused():
    (end,) = view(1).begun(("n1:5000", "n9:1", "n3:5002"), 1.0)
    assert isinstance(end, EndGeneration)
    assert view(1).begun(("n1:5000", "n2:5001", "n3:5002"), 1.0) == [BeginTraining(("n1:5000", "n2:5001", "n3:5002"))]


def many(size: int) -> GangView:
    nodes = tuple(f"n{rank}" for rank in range(size))
    return GangView(Allocation(7, 0, nodes, 0, 1), "n0:1", began_at=0.0, rendezvous_s=5.0)


def test_a_text_that_goes_to_every_rank_does_not_name_every_rank():
    (end,) = many(1000).expire(5.0)
    assert isinstance(end, EndGeneration)
    assert end.text.startswith("rank 1 (n1), rank 2 (n2), ") and ", and 991 more did not join" in end.text
    chief = many(1000)
    for rank in range(1, 1000):
        chief.joined(rank, f"n{rank}:1", 1.0)
    (end,) = chief.expire(1.0 + SILENCE_S)
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
            chief.joined(rank, f"n{rank}:1", now)
        elif event == "hear" and rank in heard:
            chief.heard(rank, now)
        elif event == "leave" and rank in heard and chief.has_begun:
            chief.heard(rank, now)
            chief.left(rank, StepExit.DONE, "done", now)
            left.add(rank)
            leave_by = leave_by or now + LEAVE_S
        else:
            continue
        heard[rank] = now
        limits = [at + SILENCE_S for other, at in heard.items() if other not in left]
        limits += [] if chief.has_begun else [5.0]
        assert chief.deadline() == min([*limits, *([leave_by] if leave_by is not None else [])])
