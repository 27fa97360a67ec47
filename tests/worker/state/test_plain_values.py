"""Values of a script are the same after they were saved and restored, of whatever size."""

import enum
import json
import queue
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.state.plain_values import SavedValue, ValueRestorer
from worker.state.run_state import RunState

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), st.binary(max_size=9),
    st.builds(lambda exponent, sign: sign * 10**exponent, st.integers(2000, 6000), st.sampled_from((-1, 1))),
)  # fmt: skip
keys = st.one_of(st.integers(), st.text(max_size=5), st.tuples(st.integers(), st.booleans()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
    ),
    max_leaves=10,
)


def restored(value: Any, present: Any = None) -> Any:
    saved = SavedValue(value)
    return ValueRestorer(saved.arrays).restore_value(json.loads(json.dumps(saved.json)), present)


@given(values)
@example({"visited": 1 << 20_000})
def test_a_value_is_the_same_after_it_was_saved_and_restored(value: Any) -> None:
    again = restored(value)

    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(("sign", "zeros"), [(1, 4299), (1, 4300), (-1, 5000)])
def test_an_integer_may_have_any_number_of_digits(sign: int, zeros: int) -> None:
    number = sign * 10**zeros

    assert restored(number) == number
    assert restored([number, np.arange(3)], [0, np.zeros(3, int)])[0] == number
    assert SavedValue(number).digest() != SavedValue(number + 1).digest()


@pytest.mark.parametrize(
    "number", [Decimal("0.10"), Decimal("-Infinity"), Fraction(-2, 3 * 10**5000), complex(-0.0, float("inf")), 1 - 2j]
)
def test_exact_and_complex_numbers_come_back_as_they_were(number: Any) -> None:
    again = restored([number])[0]

    assert again == number
    assert isinstance(number, Fraction) or str(again) == str(number)
    assert type(again) is type(number)
    assert SavedValue(number).digest() != SavedValue(1).digest()


class Phase(enum.Enum):
    """Of a training."""

    FIRST = 1


@pytest.mark.parametrize("value", [Counter("aab"), Phase.FIRST, [Phase.FIRST], queue.Queue()])
def test_what_no_restart_could_make_again_is_refused_when_it_is_first_assigned(value: Any) -> None:
    state = RunState({"losses": []})

    with pytest.raises(TypeError, match=r"cannot keep run.state\['seen'\]"):
        state["seen"] = value

    assert "seen" not in state


def test_what_has_an_initial_value_of_its_kind_is_kept() -> None:
    def begun() -> RunState:
        return RunState({"seen": Counter(), "phase": Phase.FIRST, "budget": Decimal(1)})

    state, again = begun(), begun()
    state["seen"], state["budget"] = Counter("aab"), Decimal("0.7")
    again.restore(state.to_bytes())

    assert dict(again) == dict(state)
