"""Values of a script are the same after they were saved and restored, of whatever size."""

import enum
import json
import queue
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.checks.watch import digests
from worker.state.plain_values import SavedValue
from worker.state.run_state import RunState
from worker.state.value_restorer import NotRestorable, ValueRestorer

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


class Phase(enum.Enum):
    """Of a training."""

    FIRST = 1


Seen = namedtuple("Seen", "state reward")  # as in many a replay memory
EAST = timezone(timedelta(hours=2))
KEPT = [
    True, 1, 0.5, complex(-0.0, float("inf")), 1 - 2j, "a", b"a", None, np.float32(0.5), Path("a"), Phase.FIRST,
    datetime(2026, 11, 1, 2, 3, 4, 5), datetime(2026, 11, 1, tzinfo=EAST), date(2026, 11, 1), time(2, 3),
    timedelta(-1, 5, 7), Decimal("0.10"), Decimal("-Infinity"), Fraction(-2, 3 * 10**5000), UUID(int=1),
    range(9, 1, -2), slice(None, 3), [1], (1, [2]), {1: 2}, {1}, frozenset([1]), deque([1], 4), bytearray(b"a"),
    Seen(1, [0.5]), Counter("aab"), OrderedDict(b=1, a=2), defaultdict(list, a=[1]), defaultdict(Counter),
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_a_value_of_each_kind_comes_back_as_it_was(value: Any) -> None:
    again = restored([value], [value])[0]

    assert again == value
    assert isinstance(value, Fraction) or repr(again) == repr(value)
    assert type(again) is type(value)
    assert SavedValue(value).digest() != SavedValue(2).digest()


def test_each_kind_that_is_said_to_be_kept_in_the_state_can_be() -> None:
    """What the watch compares as plain, it tells people to keep there."""
    views = {types.MappingProxyType}  # of something that can be kept
    kinds: tuple[Any, ...] = digests.PLAIN + digests.CONTAINERS

    assert {kind for kind in kinds if not any(isinstance(value, kind) for value in KEPT)} == views


def test_a_bytearray_is_filled_in_place() -> None:
    buffer = bytearray(b"before")

    assert restored(bytearray(b"now"), buffer) is buffer
    assert buffer == b"now"


def test_a_bytearray_that_something_views_is_another_one_then():
    buffer = bytearray(b"before")

    with memoryview(buffer):
        assert restored(bytearray(b"now"), buffer) == b"now"

    assert buffer == b"before"


def test_a_number_that_an_earlier_version_saved_is_restored() -> None:
    assert ValueRestorer({}).restore_value({"kind": "Decimal", "number": "0.10"}, None) == Decimal("0.10")


def local_classes() -> tuple[Any, Any]:
    """An enum and a named tuple that no name of a module leads to."""
    return enum.Enum("Mode", "FIRST"), namedtuple("Local", "state reward")


_enum, _tuple = local_classes()
WITHOUT_NAME = [_enum.FIRST, _tuple(1, 2), defaultdict(lambda: 0, a=1)]


@pytest.mark.parametrize(
    "value",
    [Seen(1, 2), [Seen(1, [Phase.FIRST])], {Phase.FIRST: Counter("aab")}, defaultdict(set, a={1}), OrderedDict(b=1)],
)
def test_what_has_a_class_that_a_restart_finds_needs_no_example(value: Any) -> None:
    again = restored(value)

    assert again == value
    assert type(again) is type(value)


def test_a_tuple_with_names_that_a_function_made_needs_an_initial_value() -> None:
    with pytest.raises(NotRestorable, match="it was a Local and is now nothing"):
        restored([WITHOUT_NAME[1]])


def test_a_tuple_whose_class_has_other_names_now_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedValue([Seen(1, 2)])
    monkeypatch.setitem(globals(), "Seen", namedtuple("Seen", "state"))

    with pytest.raises(NotRestorable, match="it was a Seen of 2 values and is now one of 1"):
        ValueRestorer(saved.arrays).restore_value(saved.json, None)


NO_ZONE = datetime(2026, 11, 1, tzinfo=timezone(timedelta(hours=2), "here"))


@pytest.mark.parametrize("value", [*WITHOUT_NAME, [WITHOUT_NAME[0]], queue.Queue(), NO_ZONE])
def test_what_no_restart_could_make_again_is_refused_when_it_is_first_assigned(value: Any) -> None:
    state = RunState({"losses": []})

    with pytest.raises(TypeError, match=r"cannot keep run.state\['seen'\]"):
        state["seen"] = value

    assert "seen" not in state


@pytest.mark.parametrize(
    ("initial", "change"),
    [
        ([], lambda seen: seen.append(WITHOUT_NAME[1])),
        ([WITHOUT_NAME[1]], lambda seen: seen.append(WITHOUT_NAME[1])),
        (deque(maxlen=9), lambda seen: seen.append([WITHOUT_NAME[0]])),
        ({}, lambda seen: seen.update(a=WITHOUT_NAME[2])),
        ({"a": 1}, lambda seen: seen.update(a=WITHOUT_NAME[0])),
        (set(), lambda seen: seen.add(WITHOUT_NAME[0])),
    ],
)
def test_what_no_restart_could_make_again_is_refused_when_it_comes_into_a_container(
    initial: Any, change: Callable[[Any], None]
) -> None:
    """A replay memory that is empty in a new process has no example for what is in the saved one."""
    state = RunState({"seen": initial})

    change(state["seen"])

    with pytest.raises(TypeError, match=r"cannot keep run.state\['seen'\].*only the script can make"):
        state.check()


class Memory:
    """A replay memory."""

    def __init__(self) -> None:
        self.memory: deque[Any] = deque(maxlen=9)

    def state_dict(self) -> Any:
        return {"memory": self.memory}

    def load_state_dict(self, state: Any) -> None:
        self.memory = state["memory"]


def test_named_tuples_that_an_object_gives_come_back() -> None:
    state, again = RunState({"replay": Memory()}), RunState({"replay": Memory()})
    state["replay"].memory.append(Seen(1, 2))
    again.restore(state.to_bytes())

    assert again["replay"].memory == deque([Seen(1, 2)], maxlen=9)
    assert type(again["replay"].memory[0]) is Seen


def test_what_an_object_gives_and_no_restart_could_make_again_is_refused() -> None:
    state = RunState({"replay": Memory()})
    state["replay"].memory.append(WITHOUT_NAME[1])

    with pytest.raises(TypeError, match=r"cannot keep run.state\['replay'\].*only the script can make a Local"):
        state.check()


def test_what_has_an_initial_value_in_its_place_is_kept() -> None:
    def begun() -> RunState:
        return RunState({"seen": [WITHOUT_NAME[1]], "by": {("a", 1): defaultdict(lambda: 0)}})

    state, again = begun(), begun()
    state["seen"][:] = [WITHOUT_NAME[1]._replace(state=[3]), (2, [3])]
    state["by"]["a", 1]["b"] += 1
    again.restore(state.to_bytes())

    assert dict(again) == dict(state)


def test_what_has_an_initial_value_of_its_kind_is_kept() -> None:
    def begun() -> RunState:
        return RunState({"seen": Counter(), "phase": Phase.FIRST, "budget": Decimal(1)})

    state, again = begun(), begun()
    state["seen"], state["budget"] = Counter("aab"), Decimal("0.7")
    again.restore(state.to_bytes())

    assert dict(again) == dict(state)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("make", [np.asarray, np.ma.asarray])
def test_an_array_lies_in_memory_as_before(axes: tuple[int, ...], make: Callable[[Any], Any]) -> None:
    """Libraries add in another order where it lies in another one."""
    array = make(np.arange(24.0).reshape(2, 3, 4)).transpose(axes)
    other = make(np.zeros(array.shape))

    again = restored(array)

    assert np.array_equal(again, array)
    assert again.strides == array.strides
    assert restored(array, again) is again
    assert (restored(array, other) is other) == (axes == (0, 1, 2))
    assert restored(np.zeros((3, 1, 1)).T).shape == (1, 1, 3)
    assert restored(np.asmatrix(np.asfortranarray(np.ones((2, 3))))).strides == (8, 16)
