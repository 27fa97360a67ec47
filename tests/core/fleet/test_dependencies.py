"""What depends on what, and when it is there."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet import dependencies
from supervisor.core.program.facts import State

GROUPS = {"solo": "solo", "w:w0": "w", "w:w1": "w"}


def graph(**needs: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(words.split()) for name, words in needs.items()}


@pytest.mark.parametrize(
    ("name", "programs"),
    [
        ("solo", {"solo"}),
        ("solo:*", {"solo"}),
        ("w", {"w:w0", "w:w1"}),
        ("w:*", {"w:w0", "w:w1"}),
        ("w:", {"w:w0", "w:w1"}),
        ("w:w1", {"w:w1"}),
        ("x", set()),
    ],
)
def test_a_name_is_a_program_or_a_group(name: str, programs: set[str]):
    assert dependencies.resolve_name(name, GROUPS) == programs


def test_a_ring_is_told_in_the_order_of_need():
    assert dependencies.find_cycle(graph(a="b", b="c", c="", d="a")) is None
    ring = dependencies.find_cycle(graph(a="b", b="c", c="a", d="a"))

    assert ring is not None and ring[0] == ring[-1] and set(ring) == {"a", "b", "c"}
    assert all(then in graph(a="b", b="c", c="a")[first] for first, then in pairwise(ring))


def test_a_program_that_needs_itself_is_a_ring():
    assert dependencies.find_cycle(graph(a="a")) == ("a", "a")


def test_all_needed_goes_round_every_corner():
    assert dependencies.all_needed(graph(a="b", b="c d", c="d", d="", e="a"), "a") == {"b", "c", "d"}


@given(st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("abcdef")), max_size=6))
def test_dependents_are_the_same_edges_the_other_way(needs: dict[str, frozenset[str]]):
    turned = dependencies.dependents(needs)

    assert {(a, b) for a, names in needs.items() for b in names} == {
        (a, b) for b, names in turned.items() for a in names
    }


def test_running_training_or_finished_program_is_ready():
    ready = {state for state in State if dependencies.is_ready(state, was_done=False)}

    assert ready == {State.RUNNING, State.FLUSHING, State.SUCCEEDED}
    assert dependencies.is_ready(State.STOPPED, was_done=True)
    assert not dependencies.is_ready(State.FAILED, was_done=True)


def test_what_has_to_end_is_ready_once_it_has_ended_by_itself():
    ready = {state for state in State if dependencies.has_ended(state, was_done=False)}

    assert ready == {State.SUCCEEDED, State.EXITED}
    assert dependencies.has_ended(State.STOPPED, was_done=True)
    assert not dependencies.has_ended(State.RUNNING, was_done=True)


def test_only_what_is_over_and_will_not_start_is_hopeless():
    assert not dependencies.is_hopeless(State.STOPPED, will_start=True)
    assert dependencies.is_hopeless(State.STOPPED, will_start=False)
    assert dependencies.is_hopeless(State.FAILED, will_start=True)
    assert not dependencies.is_hopeless(State.BACKOFF, will_start=True)


def test_the_words_name_each_and_its_state():
    assert dependencies.describe_unready([("b", None), ("a", State.BACKOFF)]) == "waits for a (BACKOFF), b (not in use)"
