"""What daemon and logger say to each other arrives, and nothing else is understood."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from supervisor.host.logs.messages import (
    CapturePipe,
    ClearFile,
    EndCapture,
    LogProtocolError,
    decode,
    encode,
)
from tests.fuzzing import JSON, cases, written


@given(some.integers(0, 2**63), some.text(some.characters(codec=None), max_size=100), some.integers(0, 2**40))
def test_message_survives_encoding(number: int, path: str, size: int):
    message = CapturePipe(number, path, size, 10)

    assert decode(encode(message)) == message


def test_path_that_is_not_utf8_survives_encoding():
    path = b"/log/\xff\xfe".decode("utf-8", "surrogateescape")

    assert decode(encode(ClearFile(1, path))) == ClearFile(1, path)


def test_unknown_field_is_ignored():
    assert decode(b'{"type": "endcapture", "drain": true, "because": "upgrade"}') == EndCapture(drain=True)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"type": ["capturepipe"]}',
        b'{"type": "runner"}',
        b'{"type": "endcapture"}',
        b'{"type": "endcapture", "drain": 1}',
        b'{"type": "capturepipe", "id": true, "path": "/x", "maxbytes": 0, "backups": 0}',
        b'{"type": "capturepipe", "id": 1, "path": "/x", "maxbytes": -1, "backups": 0}',
        b'{"type": "capturepipe", "id": 1, "path": null, "maxbytes": 1, "backups": 0}',
    ],
)
def test_invalid_message_is_refused(packet: bytes):
    with pytest.raises(LogProtocolError):
        decode(packet)


@pytest.mark.fuzz
@cases(100)
@given(some.binary() | JSON.map(written))
def test_nothing_from_outside_breaks_the_reader(packet: bytes):
    with pytest.raises(LogProtocolError):
        decode(packet)
