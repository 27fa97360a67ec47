"""Messages survive the pipe; nothing else that comes through it does harm."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.wire.codec import MAX_LINE_BYTES, Decoder, ProtocolError, decode_message, encode_message
from supervisor.protocol.wire.messages import TYPES, Failed, Identify, Message, Progress
from tests.fuzzing import cases

SMALL_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def _values(wanted: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if type(None) in arguments:
        return st.none() | _values(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=5).map(tuple)
    if origin is Mapping:
        return st.dictionaries(SMALL_TEXT, _values(arguments[1]), max_size=5)
    if issubclass(wanted, StrEnum):
        return st.sampled_from(list(wanted))
    if wanted is bool:
        return st.booleans()
    plain = {int: st.integers(0, 2**63 - 1), float: st.floats(allow_nan=False, allow_infinity=False), str: SMALL_TEXT}
    return plain[wanted]


def _messages_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: _values(hints[field.name]) for field in dataclasses.fields(kind)})


MESSAGES = st.one_of([_messages_of(kind) for kind in TYPES.values()])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    line = encode_message(message)

    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode_message(line) == message


@pytest.mark.fuzz
@cases(100)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_raise_protocol_error_only(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(line)


@pytest.mark.fuzz
@cases(100)
@given(st.sampled_from(sorted(TYPES)), st.data())
def test_fields_of_the_wrong_kind_raise_protocol_error_only(name: str, data: st.DataObject) -> None:
    fields = [field.name for field in dataclasses.fields(TYPES[name])]
    body = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(fields, JSON)))

    try:
        decoded = decode_message(json.dumps({"type": name, **body}).encode())
    except ProtocolError:
        return
    assert decode_message(encode_message(decoded)) == decoded


@pytest.mark.parametrize("line", [b"[" * 100_000, b"1" * 10_000, b'{"type":["go"]}', b"\xff\xfe", b"null", b"NaN"])
def test_hostile_json_raises_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(line)


def test_unknown_fields_are_ignored() -> None:
    assert decode_message(b'{"type":"identify","attempt":3,"of the future":[1]}') == Identify(3)


def test_text_that_no_file_or_database_takes_is_made_harmless() -> None:
    decoded = decode_message(b'{"type":"failed","attempt":1,"step":null,"error":"no file caf\\udce9"}')

    assert isinstance(decoded, Failed)
    assert decoded.error == "no file caf?"
    assert decoded.error.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_json_does_not_know_are_not_sent(number: float) -> None:
    with pytest.raises(ProtocolError):
        encode_message(Progress(1, 5, metrics={"loss": number}))


def test_a_message_longer_than_a_line_may_be_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="the limit is 65536"):
        encode_message(Failed(1, None, "x" * MAX_LINE_BYTES))


def test_the_longest_message_that_is_sent_is_also_heard() -> None:
    empty = len(encode_message(Failed(1, None, "")))
    longest = Failed(1, None, "x" * (MAX_LINE_BYTES - empty))

    assert list(Decoder().feed(encode_message(longest))) == [longest]


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_messages_arrive_however_the_stream_is_cut(messages: list[Message], cuts: list[int]) -> None:
    stream, decoder, heard = b"".join(map(encode_message, messages)), Decoder(), list[Message | ProtocolError]()
    while stream:
        for cut in cuts:
            heard += decoder.feed(stream[:cut])
            stream = stream[cut:]

    assert heard == messages


@pytest.mark.fuzz
@cases(100)
@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line), max_size=5), MESSAGES)
def test_bad_lines_cost_themselves_only(garbage: list[bytes], message: Message) -> None:
    decoder = Decoder()

    heard = [item for line in garbage for item in decoder.feed(line + b"\n" + encode_message(message))]

    assert [item for item in heard if not isinstance(item, ProtocolError)] == [message] * len(garbage)


def test_an_endless_line_is_skipped_once_and_not_kept() -> None:
    decoder = Decoder()

    heard = [item for _ in range(10) for item in decoder.feed(b"x" * MAX_LINE_BYTES)]
    heard += decoder.feed(b"the end of it\n" + encode_message(Identify(1)))

    assert [type(item) for item in heard] == [ProtocolError, Identify]
    assert len(decoder._rest) == 0
