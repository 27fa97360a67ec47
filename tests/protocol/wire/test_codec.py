"""Messages survive the pipe; nothing else that comes through it does harm."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.codec import ProtocolError, fit_record
from supervisor.protocol.wire.limits import CheckpointNamed, FileNamed, Range, Text, TokenBucket
from supervisor.protocol.wire.lines import MAX_LINE_BYTES, Decoder, decode_message, encode_message
from supervisor.protocol.wire.messages import (
    TYPES,
    Committed,
    Failed,
    FromWorker,
    Go,
    Identify,
    Message,
    Progress,
    Restored,
    SaveFailed,
)
from tests.fuzzing import cases

SMALL_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def _limited(wanted: Any, limit: Any) -> st.SearchStrategy[Any]:
    """Values within the limit, the greatest among them."""
    match limit:
        case Range():
            kind = wanted.__origin__
            ends = st.sampled_from([kind(limit.least), kind(limit.most)])
            if kind is int:
                return ends | st.integers(int(limit.least), int(limit.most))
            return ends | st.floats(max(limit.least, limit.finest) or 0.0, limit.most)
        case CheckpointNamed():
            return st.builds(CheckpointName, st.integers(0, 10**12), st.integers(1, 999_999_999)).map(str)
        case FileNamed():
            return SMALL_TEXT.filter(lambda text: text not in ("", ".", "..") and "/" not in text and "\0" not in text)
        case Text():
            return _values(wanted.__origin__) | st.just("x" * min(limit.most, 200))
    return _values(wanted.__origin__)


def _values(wanted: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        return _limited(wanted, wanted.__metadata__[0])
    if type(None) in arguments:
        return st.none() | _values(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=5).map(tuple)
    if origin is Mapping:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=5)
    if issubclass(wanted, StrEnum):
        return st.sampled_from(list(wanted))
    if wanted is bool:
        return st.booleans()
    plain = {int: st.integers(0, 2**63 - 1), float: st.floats(allow_nan=False, allow_infinity=False), str: SMALL_TEXT}
    return plain[wanted]


def _messages_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: _values(hints[field.name]) for field in dataclasses.fields(kind)})


MESSAGES = st.one_of([_messages_of(kind) for kind in TYPES.values()])


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    line = encode_message(message)

    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode_message(line) == message


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
    longest = Restored(1, 5, None, 0.1, unmatched=("x" * 200,) * 100, changed=("x" * 200,) * 100)

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


NUMBER_FIELDS = [
    (name, field.name)
    for name, kind in TYPES.items()
    for field in dataclasses.fields(kind)
    if "float" in str(typing.get_type_hints(kind)[field.name]) or "int" in str(typing.get_type_hints(kind)[field.name])
]
VALID: dict[str, Any] = {
    "attempt": 1, "id": 1, "reason": "r", "then": "stop", "pipes": "/p", "protocol": 1, "pid": 7, "version": "1",
    "kind": "warm", "load_s": 1.0, "step": 5, "checkpoint": "step-0000000005.a1", "restore_s": 1.0, "size_bytes": 1,
    "save_s": 1.0, "stall_s": 0.0, "error": "e", "phase": "training", "restore": None,
    "steps": 3, "took_s": 0.1, "is_divided": True,
}  # fmt: skip


def _line(message: str, **values: Any) -> bytes:
    needed = {field.name: VALID[field.name] for field in dataclasses.fields(TYPES[message]) if field.name in VALID}
    return json.dumps({"type": message, **needed, **values}).encode()


@pytest.mark.parametrize(("kind", "field"), NUMBER_FIELDS)
@pytest.mark.parametrize("number", [-1, 10**18, 1e308, 1.7e308, float("inf"), float("nan"), 5e-324])
def test_a_number_that_cannot_be_meant_is_refused_in_every_field(kind: str, field: str, number: float) -> None:
    decode_message(_line(kind))
    wanted = str(typing.get_type_hints(TYPES[kind])[field])
    value: Any = [number] if "tuple" in wanted else {"loss": number} if "Mapping" in wanted else number
    if "Mapping" in wanted and number in (-1, 10**18, 5e-324):
        return  # a metric may be so
    if number == 5e-324 and field in ("deadline_s", "between_failures_s"):
        return  # an order of the daemon's

    with pytest.raises(ProtocolError, match=f"{kind}.{field}"):
        decode_message(_line(kind, **{field: value}))


TEXT_FIELDS = [
    (name, field.name)
    for name, kind in TYPES.items()
    for field in dataclasses.fields(kind)
    if "str" in str(typing.get_type_hints(kind)[field.name]) and "Mapping" not in str(field.type)
]


@pytest.mark.parametrize(("kind", "field"), TEXT_FIELDS)
def test_a_text_without_end_is_refused_in_every_field(kind: str, field: str) -> None:
    is_list = "tuple" in str(typing.get_type_hints(TYPES[kind])[field])

    with pytest.raises(ProtocolError, match=field):
        decode_message(_line(kind, **{field: ["x" * 60_000] if is_list else "x" * 60_000}))


@pytest.mark.parametrize("name", ["x", "../../etc", "step-5.a1", "step-0000000005.a1/..", "step-0000000005.a0", ""])
def test_a_checkpoint_has_the_name_of_one(name: str) -> None:
    with pytest.raises(ProtocolError, match=r"committed\.checkpoint is"):
        decode_message(_line("committed", checkpoint=name))


@pytest.mark.parametrize("name", ["/srv/model.ckpt-3", "..", "", "a\0b"])
def test_what_was_restored_has_the_name_of_a_file(name: str) -> None:
    assert isinstance(decode_message(_line("restored", checkpoint="model.ckpt-3")), Restored)
    with pytest.raises(ProtocolError, match=r"restored\.checkpoint is"):
        decode_message(_line("restored", checkpoint=name))


def test_lists_and_metrics_have_a_largest_length() -> None:
    for kind, field, value in (
        ("restored", "unmatched", ["x"] * 101),
        ("committed", "flushes", [1] * 1001),
        ("progress", "metrics", {f"m{number}": 1.0 for number in range(101)}),
        ("progress", "metrics", {"x" * 201: 1.0}),
    ):
        with pytest.raises(ProtocolError, match=field):
            decode_message(_line(kind, **{field: value}))


def _is_limited(wanted: Any) -> bool:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        inner = wanted.__origin__
        return typing.get_origin(inner) is None or all(map(_is_limited, _parts(inner)))
    if type(None) in arguments:
        return _is_limited(next(argument for argument in arguments if argument is not type(None)))
    return wanted is bool or (isinstance(wanted, type) and issubclass(wanted, StrEnum))


def _parts(wanted: Any) -> list[Any]:
    return [argument for argument in typing.get_args(wanted) if argument is not Ellipsis]


@pytest.mark.parametrize("kind", TYPES)
def test_every_field_of_every_message_has_a_limit(kind: str) -> None:
    hints = typing.get_type_hints(TYPES[kind], include_extras=True)

    assert [field.name for field in dataclasses.fields(TYPES[kind]) if not _is_limited(hints[field.name])] == []
    assert hasattr(TYPES[kind], "rate") == (TYPES[kind] in typing.get_args(FromWorker))


def _anything(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of the plain type, whatever the limits say."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if type(None) in arguments:
        return st.none() | _anything(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return st.lists(_anything(arguments[0]), max_size=3).map(lambda values: tuple(values * 1000))
    if origin is Mapping:
        return st.dictionaries(SMALL_TEXT | st.just("x" * 300), _anything(arguments[1]), max_size=5)
    if issubclass(wanted, StrEnum):
        return st.sampled_from(list(wanted))
    if wanted is bool:
        return st.booleans()
    return {int: st.integers(), float: st.floats(), str: SMALL_TEXT | st.just("x" * 20_000)}[wanted]


@given(st.sampled_from(sorted(name for name, kind in TYPES.items() if hasattr(kind, "rate"))), st.data())
def test_whatever_a_worker_would_send_fits_the_limits(name: str, data: st.DataObject) -> None:
    hints = typing.get_type_hints(TYPES[name])
    drawn = {field.name: data.draw(_anything(hints[field.name])) for field in dataclasses.fields(TYPES[name])}
    is_own = name in ("committed", "parts-written")
    drawn |= {"checkpoint": "step-0000000005.a1"} if is_own else {}
    drawn |= {key: "model.ckpt" for key in ("restored", "checkpoint") if key in drawn and not is_own}

    fitting = fit_record(TYPES[name](**drawn))

    body = {"type": name, **dataclasses.asdict(fitting)}
    assert decode_message(json.dumps(body, allow_nan=False).encode()) == fitting


def test_a_text_that_is_cut_says_so() -> None:
    failed = fit_record(Failed(1, 5, "x" * 5000, "y" * 20_000 + "end"))
    restored = fit_record(Restored(1, 5, None, 0.1, unmatched=tuple(f"v{number}" for number in range(150))))

    assert failed.error == "x" * 3999 + "…"
    assert failed.traceback == "…" + "y" * 15_996 + "end"
    assert restored.unmatched[-1] == "and 51 more"
    assert len(restored.unmatched) == 100
    assert fit_record(SaveFailed(1, 5, "short")) == SaveFailed(1, 5, "short")
    assert fit_record(Committed(1, 5, "step-0000000005.a1", 1, 1e99, -1.0)).save_s == 10 * 365 * 86400
    assert isinstance(decode_message(encode_message(Go(1, None))), Go)


def test_a_bucket_lets_through_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 5)

    assert [bucket.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert bucket.take(100.5) and not bucket.take(100.5)
    assert bucket.dropped == 3
    assert [bucket.take(1000.0) for _ in range(6)] == [True] * 5 + [False]


def test_what_can_only_be_delayed_is_delayed_until_the_rate_allows_it() -> None:
    bucket = TokenBucket(10.0, 20)

    assert bucket.spend(0.0, 20.0) == 0.0
    assert bucket.spend(0.0, 15.0) == pytest.approx(1.5)
    assert bucket.spend(1.0, 5.0) == pytest.approx(1.0)
