"""Values of a script are the same after they were saved and restored, of whatever size."""

import json
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.state.plain_values import SavedValue, ValueRestorer

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
