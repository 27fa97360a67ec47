"""Values of `run.state` that have one object in several places, or more than their entries, come back as they were."""

import enum
from collections import deque
from typing import Any

import numpy as np
import pytest

from worker.state.plain_values import NotSaveable, SavedValue
from worker.state.run_state import RunState


class Ring(list[int]):
    """A memory that is overwritten in a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0


class Done(enum.Flag):
    """What is done."""

    WARM = enum.auto()
    DECAYED = enum.auto()


class Positions(np.ndarray[Any, Any]):
    """An array of a class of the script's."""


def again(before: RunState, **initial: Any) -> RunState:
    """A run.state with these initial values, restored from another."""
    after = RunState(initial)
    after.restore(before.to_bytes())
    return after


def test_places_that_were_one_array_at_first_get_each_its_own_content() -> None:
    before = RunState({"frames": deque([np.zeros(2)] * 3, maxlen=3)})
    for number in (1.0, 2.0, 3.0):
        before["frames"].append(np.full(2, number))

    after = again(before, frames=deque([np.zeros(2)] * 3, maxlen=3))

    assert [list(frame) for frame in after["frames"]] == [[1, 1], [2, 2], [3, 3]]


def test_two_names_for_one_initial_array_get_each_its_own_content() -> None:
    weights = np.zeros(2)
    before = RunState({"best": weights, "present": weights})
    before["best"] = np.ones(2)
    first = np.zeros(2)

    after = again(before, best=first, present=first)

    assert (list(after["best"]), list(after["present"])) == ([1, 1], [0, 0])


def test_one_object_in_several_places_stays_one() -> None:
    row = [0]
    before = RunState({"rows": [row, row, [0]], "last": None})
    before["last"] = row

    after = again(before, rows=[], last=None)
    after["rows"][0].append(1)

    assert after["rows"] == [[0, 1], [0, 1], [0]]
    assert after["last"] is after["rows"][0]


def test_names_that_became_one_fill_both_objects_that_the_script_has() -> None:
    before = RunState({"best": [0], "present": [0]})
    before["best"] = before["present"]
    before["present"].append(7)
    best, present = [0], [0]

    again(before, best=best, present=present)

    assert (best, present) == ([0, 7], [0, 7])


def test_attributes_of_a_list_come_back() -> None:
    before = RunState({"ring": Ring()})
    before["ring"].append(5)
    before["ring"].position = 3

    ring = again(before, ring=Ring())["ring"]

    assert (list(ring), ring.position) == ([5], 3)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("initial", [np.ma.MaskedArray(np.zeros(3), True), None])
def test_mask_of_an_array_comes_back(hard: bool, initial: Any) -> None:
    seen = np.ma.MaskedArray([1.0, 2.0, 3.0], [True, False, True], hard_mask=hard)
    before = RunState({"seen": initial})
    before["seen"] = seen

    after = again(before, seen=initial)["seen"]

    assert after.tolist() == [None, 2.0, None]
    assert (after.data.tolist(), after.hardmask) == ([1.0, 2.0, 3.0], hard)


def test_matrix_stays_one() -> None:
    before = RunState({"gain": None})
    before["gain"] = np.asmatrix(np.eye(2))

    assert type(again(before, gain=None)["gain"]) is np.matrix


def test_array_of_another_class_is_refused() -> None:
    with pytest.raises(NotSaveable, match="a Positions"):
        SavedValue(np.zeros(2).view(Positions))


@pytest.mark.parametrize("done", [Done.WARM | Done.DECAYED, Done(0), Done.WARM])
def test_combined_flags_come_back(done: Done) -> None:
    before = RunState({"done": Done.WARM})
    before["done"] = done

    assert again(before, done=Done.WARM)["done"] is done


def test_initial_value_that_was_deleted_stays_deleted_and_one_that_is_new_in_the_script_does_not() -> None:
    before = RunState({"warmup": 3, "rate": 0.1})
    del before["warmup"]

    assert dict(again(before, warmup=3, rate=0.2, decay=0.9)) == {"rate": 0.1, "decay": 0.9}


def test_names_come_back_in_their_order() -> None:
    before = RunState({"first": 1})
    before["z"], before["a"] = 2, 3

    assert list(again(before, first=1)) == ["first", "z", "a"]
