"""TensorFlow checkpoints are proven by the checksums inside them; the ones here were written by TensorFlow."""

import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as some

from supervisor.protocol.damage import BundleError, Damage
from supervisor.protocol.tensorbundle import entry, sstable, verify
from supervisor.protocol.tensorbundle.protowire import bytes_field, decode_fields, decode_varint, encode_varint
from tests.fuzzing import cases
from tests.places import BUNDLES

DATA = "ckpt-3.data-00000-of-00001"
INDEX = "ckpt-3.index"
OTHER = "ckpt-2.data-00000-of-00001"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(BUNDLES / "manager", tmp_path / "manager")
    return tmp_path / "manager" / "ckpt-3"


@pytest.mark.parametrize(
    ("name", "tensors", "size_bytes", "shards", "object_based"),
    [
        ("manager/ckpt-3", 10, 1727, 1, True),
        ("saver/model.ckpt-100", 9, 196, 1, False),
        ("kinds/ckpt", 8, 3031, 1, True),
        ("sharded/ckpt", 10, 3864, 4, True),
    ],
)
def test_bundles_written_by_tensorflow_verify(
    name: str, tensors: int, size_bytes: int, shards: int, object_based: bool
) -> None:
    proven, looked = verify.verify_bundle(BUNDLES / name), verify.read_counters(BUNDLES / name)

    assert (proven.tensors, proven.size_bytes, proven.shards) == (tensors, size_bytes, shards)
    assert proven.object_based == object_based
    assert looked == proven


def test_whole_numbers_in_it_can_be_read() -> None:
    counters = verify.verify_bundle(BUNDLES / "manager" / "ckpt-3").counters

    assert counters["optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"] == 120
    assert counters["save_counter/.ATTRIBUTES/VARIABLE_VALUE"] == 3


def flip(path: Path, at: int, bit: int = 4) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(bytes(content))


def truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


DAMAGES: dict[str, tuple[Damage, str, Callable[[Path], object]]] = {
    "bit in data": (Damage.CHECKSUM, r"'save_counter/.*' \(8 bytes at 0\) does not", lambda at: flip(at / DATA, 0)),
    "bit in a string": (Damage.CHECKSUM, "_CHECKPOINTABLE_OBJECT_GRAPH", lambda at: flip(at / DATA, 1000)),
    "bit in the index": (Damage.CHECKSUM, "the block at 0 does not match", lambda at: flip(at / INDEX, 100)),
    "short data": (Damage.TRUNCATED, "is 1700 bytes, its index says 1727", lambda at: truncate(at / DATA, 1700)),
    "empty data": (Damage.TRUNCATED, "is 0 bytes, its index says 1727", lambda at: truncate(at / DATA, 0)),
    "missing data": (Damage.MISSING, f"{DATA} is missing", lambda at: (at / DATA).unlink()),
    "longer data": (Damage.MALFORMED, "is 1800 bytes, its index says 1727", lambda at: truncate(at / DATA, 1800)),
    "short index": (Damage.TRUNCATED, "does not end as an index", lambda at: truncate(at / INDEX, 600)),
    "empty index": (Damage.TRUNCATED, "too short for an index", lambda at: truncate(at / INDEX, 0)),
    "missing index": (Damage.MISSING, f"{INDEX} is missing", lambda at: (at / INDEX).unlink()),
    "zeroed index": (Damage.TRUNCATED, "does not end as", lambda at: (at / INDEX).write_bytes(bytes(655))),
    "a folder": (Damage.UNREADABLE, "Is a directory|regular", lambda at: [(at / DATA).unlink(), (at / DATA).mkdir()]),
    "a pipe": (Damage.UNREADABLE, "Not a regular file", lambda at: [(at / DATA).unlink(), os.mkfifo(at / DATA)]),
    "other data": (Damage.CHECKSUM, "does not match", lambda at: (at / OTHER).replace(at / DATA)),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words", "act"), DAMAGES.values(), ids=DAMAGES.keys())
def test_each_damage_is_named(damage: Damage, words: str, act: Callable[[Path], object], prefix: Path) -> None:
    act(prefix.parent)

    with pytest.raises(BundleError, match=words) as refused:
        verify.verify_bundle(prefix)
    assert refused.value.damage is damage


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["manager/ckpt-3", "saver/model.ckpt-100", "kinds/ckpt", "sharded/ckpt"])
def test_no_flipped_bit_of_any_data_file_passes(name: str, tmp_path: Path) -> None:
    prefix = tmp_path / name
    shutil.copytree((BUNDLES / name).parent, prefix.parent)
    data = sorted(prefix.parent.glob(f"{prefix.name}.data-*"))
    for path in data:
        for at in range(0, path.stat().st_size, 7):
            flip(path, at, at % 8)
            with pytest.raises(BundleError):
                verify.verify_bundle(prefix)
            flip(path, at, at % 8)

    assert verify.verify_bundle(prefix).tensors


def test_error_that_says_nothing_about_the_files_is_no_damage(tmp_path: Path) -> None:
    impossible = tmp_path / ("f" * 300)

    with pytest.raises(OSError, match="File name too long"):
        verify.verify_bundle(impossible)


def test_memory_is_bounded_by_the_index_and_not_by_the_tensors(tmp_path: Path) -> None:
    size = 64 << 20
    write_bundle(tmp_path / "big", {b"w": (4, [size], bytes(size))})  # 4: uint8
    tracemalloc.start()
    verify.verify_bundle(tmp_path / "big")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 << 20


def test_a_great_many_strings_claimed_by_a_shape_cost_nothing(tmp_path: Path) -> None:
    write_bundle(tmp_path / "huge", {b"w": (7, [1 << 62], b"\x00\x00")})

    with pytest.raises(BundleError, match="4611686018427387904 elements in 2 bytes"):
        verify.verify_bundle(tmp_path / "huge")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({b"w": (1, [2], b"1234")}, "2 elements of 4 bytes but is 4 bytes long"),
        ({b"w": (1, [-1], b"1234")}, "impossible shape"),
        ({b"w": (1, [1], b"1234", 3)}, "lies in shard 3 of 1"),
        ({b"w": (1, [1], b"1234", -1)}, "lies in shard -1 of 1"),
    ],
)
def test_records_that_contradict_themselves_are_refused(
    entries: dict[bytes, tuple[int, list[int], bytes]], words: str, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "odd", entries)

    with pytest.raises(BundleError, match=words) as refused:
        verify.verify_bundle(tmp_path / "odd")
    assert refused.value.damage is Damage.MALFORMED


def test_gaps_and_overlaps_are_refused(tmp_path: Path) -> None:
    header, value = bytes([8, 1]), record(1, [1], 4, 4, b"1234")
    write_table(tmp_path / "gap.index", [(b"", header), (b"w", value)])
    (tmp_path / "gap.data-00000-of-00001").write_bytes(b"00001234")

    with pytest.raises(BundleError, match="'w' at 4 leaves a gap"):
        verify.verify_bundle(tmp_path / "gap")


@pytest.mark.fuzz
@cases(100)
@given(some.binary(max_size=300))
@example(b"\xff" * 20)
def test_any_bytes_are_a_number_or_a_value_error(content: bytes) -> None:
    for parse in (lambda: decode_varint(content, 0), lambda: list(decode_fields(content))):
        try:
            parse()
        except ValueError:
            continue


@pytest.mark.fuzz
@cases(100)
@given(some.integers(0, (1 << 64) - 1))
@example((1 << 64) - 1)
def test_any_number_is_read_as_it_was_encoded(value: int) -> None:
    content = encode_varint(value)

    assert decode_varint(content, 0) == (value, len(content))


ROOM = cases(150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.fuzz
@ROOM
@given(
    block=some.binary(max_size=400), records=some.lists(some.tuples(some.binary(max_size=9), some.binary()), max_size=5)
)
def test_any_table_is_read_or_refused_in_its_own_words(
    block: bytes, records: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    """Blocks of any content with right checksums: what only a forger, or a writer's defect, can make."""
    for entries, raw in (([(b"", bytes([8, 1])), *records], None), ([], block)):
        write_table(tmp_path / "any.index", entries, raw)
        (tmp_path / "any.data-00000-of-00001").write_bytes(block)
        tracemalloc.start()
        try:
            verify.verify_bundle(tmp_path / "any")
        except BundleError:
            continue
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 4 << 20


@pytest.mark.fuzz
@ROOM
@given(
    pairs=some.dictionaries(
        some.binary(max_size=9) | some.binary(max_size=3).map(lambda end: b"layer/kernel/" + end),
        some.binary(max_size=9) | some.integers(0, 200_000).map(bytes),
    )
)
def test_any_table_made_here_is_read_back(pairs: dict[bytes, bytes], tmp_path: Path) -> None:
    (tmp_path / "made.index").write_bytes(sstable.encode_table(sorted(pairs.items())))

    assert list(sstable.read_table(tmp_path / "made.index")) == sorted(pairs.items())


@pytest.mark.parametrize("name", ["manager/ckpt-3", "saver/model.ckpt-100", "kinds/ckpt", "sharded/ckpt"])
def test_a_table_made_here_is_tensorflows_byte_for_byte(name: str) -> None:
    theirs = BUNDLES / f"{name}.index"

    assert sstable.encode_table(sstable.read_table(theirs)) == theirs.read_bytes()


# --- a writer of tables and bundles, for what TensorFlow would not write ----------------------------------------------


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def with_trailer(block: bytes) -> bytes:
    return block + b"\0" + struct.pack("<I", sstable.masked_crc(block + b"\0"))


def block_of(entries: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(b"\0" + number(len(key)) + number(len(value)) + key + value for key, value in entries)
    return body + struct.pack("<II", 0, 1)


def write_table(path: Path, entries: list[tuple[bytes, bytes]], raw: bytes | None = None) -> None:
    """A table of one data block: of these entries, or of these bytes."""
    data = block_of(sorted(entries)) if raw is None else raw
    meta_at = len(data) + 5
    index_at = meta_at + 8 + 5
    index = block_of([(b"~", number(0) + number(len(data)))])
    footer = number(meta_at) + number(8) + number(index_at) + number(len(index))
    body = with_trailer(data) + with_trailer(struct.pack("<II", 0, 1)) + with_trailer(index)
    path.write_bytes(body + footer.ljust(40, b"\0") + sstable.MAGIC)


def record(dtype: int, shape: list[int], offset: int, size: int, content: bytes, shard: int = 0) -> bytes:
    inner = b"".join(b"\x12" + number(len(one)) + one for size_ in shape for one in [b"\x08" + number(size_)])
    crc = struct.pack("<I", sstable.masked_crc(content))
    shape_field = b"\x12" + number(len(inner)) + inner
    places = b"\x18" + number(shard) + b"\x20" + number(offset) + b"\x28" + number(size)
    return b"\x08" + number(dtype) + shape_field + places + b"\x35" + crc


def write_bundle(prefix: Path, tensors: dict[bytes, tuple[object, ...]]) -> None:
    """A checkpoint of one shard: by name the dtype, shape, bytes and, if not 0, the shard it claims."""
    entries, body = [(b"", bytes([8, 1]))], b""
    for name, (dtype, shape, content, *shard) in tensors.items():
        entries.append((name, record(dtype, shape, len(body), len(content), content, *shard)))  # type: ignore[arg-type]
        body += content  # type: ignore[operator]
    write_table(prefix.with_name(prefix.name + ".index"), entries)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(body)


def test_a_long_shape_is_refused_before_its_product(tmp_path: Path) -> None:
    record = entry.encode_tensor(1, [(1 << 63) - 1] * 50_000, 0, 4, 0)
    (tmp_path / "x.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), (b"v", record)]))
    began = time.thread_time()

    with pytest.raises(BundleError, match="impossible shape"):
        verify.verify_bundle(tmp_path / "x")

    assert time.thread_time() - began < 1.0


def test_a_shape_in_many_pieces_is_refused_before_its_product(tmp_path: Path) -> None:
    piece = bytes_field(2, bytes_field(2, b"\x08\x7f") * 200)
    (tmp_path / "x.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), (b"v", piece * 500)]))

    with pytest.raises(BundleError, match="over 254 dimensions"):
        verify.verify_bundle(tmp_path / "x")


def test_records_of_partitioned_tensors_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MAX_ENTRIES", 10)
    records = [(b"%03d" % key, bytes_field(7, b"")) for key in range(11)]
    (tmp_path / "x.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), *records]))

    with pytest.raises(BundleError, match="names over 10 tensors"):
        verify.verify_bundle(tmp_path / "x")
