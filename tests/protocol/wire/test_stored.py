"""Records that are kept on a disk: encoded and read back, and what damage to them costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.wire.codec import ProtocolError, decode_record, decode_stored, encode_record, parse_object
from supervisor.protocol.wire.limits import Items, Range
from tests.fuzzing import cases


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    name: str
    at: float | None
    place: Path | None = None


@dataclass(frozen=True)
class Outer:
    id: int
    after: float | None
    names: Annotated[frozenset[str], Items(3)] = frozenset()
    counts: Annotated[Mapping[Colour, int], Items(2)] = field(default_factory=dict)
    inner: tuple[Inner, ...] = ()
    least: Annotated[int, Range(2, 9)] | None = 5
    pair: tuple[Colour, str | None] | None = None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INNERS = st.builds(Inner, TEXTS, st.none() | NUMBERS, st.none() | TEXTS.filter(lambda t: t and "\0" not in t).map(Path))
OUTERS = st.builds(
    Outer,
    st.integers(0, 1 << 60),
    st.none() | NUMBERS,
    st.frozensets(TEXTS, max_size=3),
    st.dictionaries(st.sampled_from(Colour), st.integers(0, 9)),
    st.lists(INNERS, max_size=2).map(tuple),
    st.none() | st.integers(2, 9),
    st.none() | st.tuples(st.sampled_from(Colour), st.none() | TEXTS),
)


@cases(200)
@given(OUTERS)
def test_what_is_encoded_is_read_back(record: Outer):
    text = encode_record(record)

    assert decode_record(parse_object(text), Outer, "x") == record
    assert decode_stored(parse_object(text), Outer, "x") == (record, ())
    assert text.isascii() and "\n" not in text


def test_the_order_of_a_set_does_not_change_the_text():
    texts = {encode_record(Outer(1, None, frozenset(names))) for names in (("a", "b", "c"), ("c", "b", "a"))}

    assert texts == {'{"id":1,"after":null,"names":["a","b","c"],"counts":{},"inner":[],"least":5}'}


def test_a_mapping_that_can_not_change_is_encoded():
    assert '"counts":{"red":2}' in encode_record(Outer(1, None, counts=MappingProxyType({Colour.RED: 2})))


WHOLE = Outer(1, 2.0, frozenset({"a"}), {Colour.RED: 1}, (Inner("x", None),), 4, (Colour.BLUE, None))


@pytest.mark.parametrize(
    ("name", "value", "expected", "said"),
    [
        ("names", "abc", frozenset(), "x.names is 'abc', not a list"),
        ("names", ["a", "b", "c", "d"], frozenset(), "x.names has 4 items, at most 3 are allowed"),
        ("names", ["a", 1], frozenset(), "x.names is 1, not str"),
        ("counts", {"red": 1, "green": 2}, {Colour.RED: 1}, "x.counts's green is 'green', not Colour"),
        ("counts", {"red": 1, "blue": -2}, {Colour.RED: 1}, "x.counts.blue is -2, not int"),
        ("counts", [], {}, "x.counts is [], not a JSON object"),
        ("inner", [{"at": 1.0}], (), "x.inner lacks 'name'"),
        ("least", 1, 5, "x.least is 1, not 2 to 9"),
        ("pair", ["red"], None, "x.pair is ['red'], not a list of 2"),
    ],
)
def test_a_damaged_part_costs_that_part_and_is_said(name: str, value: object, expected: object, said: str):
    body = parse_object(encode_record(WHOLE)) | {name: value}

    stored, damaged = decode_stored(body, Outer, "x")

    assert stored == replace(WHOLE, **{name: expected})  # type: ignore[arg-type]
    assert damaged == (said,)
    with pytest.raises(ProtocolError):
        decode_record(body, Outer, "x")


@pytest.mark.parametrize("body", [{"after": 1.0}, {"id": "x", "after": 1.0}, {"id": -1, "after": None}, {}])
def test_a_field_without_a_default_has_to_be_whole(body: dict[str, object]):
    with pytest.raises(ProtocolError, match=r"x lacks 'id'|x.id is"):
        decode_stored(body, Outer, "x")
