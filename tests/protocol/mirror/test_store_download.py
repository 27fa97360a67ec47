"""A large object comes in pieces, several at a time: in order, no byte twice, and never a part for the whole."""

import random
import threading
from pathlib import Path
from typing import Any

import obstore
import pytest

from supervisor.protocol.mirror.store import PARALLEL_PIECES, PART_BYTES, Store, StoreError


def store_with(folder: Path, content: bytes) -> Store:
    (folder / "key").write_bytes(content)
    return Store(f"file://{folder}")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 9 * PART_BYTES + 5])
def test_the_pieces_are_the_object(tmp_path: Path, size: int):
    content = random.Random(size).randbytes(size)

    assert b"".join(store_with(tmp_path, content).download("key")) == content


def test_several_pieces_are_on_their_way_at_a_time_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pieces = 2 * PARALLEL_PIECES
    content = random.Random(1).randbytes(PART_BYTES) * (pieces - 1) + b"last"
    store, get_range, starts = store_with(tmp_path, content), obstore.get_range, list[int]()
    all_asked = threading.Barrier(PARALLEL_PIECES)

    def counted(*where: Any, start: int, end: int) -> obstore.Bytes:
        all_asked.wait(10)  # breaks if fewer are asked for at a time
        starts.append(start)
        return get_range(*where, start=start, end=end)

    monkeypatch.setattr(obstore, "get_range", counted)

    assert b"".join(store.download("key")) == content
    assert sorted(starts) == [PART_BYTES * piece for piece in range(pieces)]


def test_an_object_that_is_gone_midway_is_an_error_and_no_short_one(tmp_path: Path):
    store = store_with(tmp_path, bytes(3 * PARALLEL_PIECES * PART_BYTES))
    pieces = store.download("key")
    next(pieces)
    (tmp_path / "key").unlink()

    with pytest.raises((StoreError, FileNotFoundError)):
        for _ in pieces:
            pass
