"""Whenever a worker dies, and whatever is done to the memory that it leaves, what is proven is one step's state."""

from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import BundlePlace, Description, FilePlace, NoCopy, TensorPlace
from tests.fuzzing import cases

SIZES = (700, 0, 5000)
HALF = layout.half_bytes(2 * 4096 + 5700 + 3000)


class Writer:
    """A worker that can die: only the first `left` bytes that it writes get into the memory."""

    def __init__(self, left: int) -> None:
        self.memory = bytearray(2 * HALF)
        self.left = left
        self.sealed = 0
        """The step of the newest copy that it had completed when it died."""

    def write(self, at: int, content: bytes) -> None:
        content = content[: self.left]
        self.memory[at : at + len(content)] = content
        self.left -= len(content)

    def copy(self, step: int) -> None:
        """In the order of the writes of `worker/saving`; what `layout.seal` writes is taken from a whole copy."""
        at = step % 2 * HALF
        whole = bytearray(HALF)
        whole[:5700] = content_of(step)
        layout.seal(memoryview(whole), step, 5700, describe(step))
        trailer = layout.trailer_at(HALF)
        self.write(at + trailer, layout.NO_TRAILER)
        for begin in range(0, trailer, 512):
            self.write(at + begin, bytes(whole[begin : min(begin + 512, trailer)]))
        self.write(at + trailer, bytes(whole[trailer : trailer + len(layout.NO_TRAILER)]))
        if self.left:
            self.sealed = step


def content_of(step: int) -> bytes:
    return bytes([step % 251]) * 5700


def describe(step: int) -> Description:
    offset, tensors = 0, []
    for number, size in enumerate(SIZES[:2]):
        tensors.append(TensorPlace(f"t{number}", 1, (size // 4,), offset, size))
        offset += size
    bundle = BundlePlace("ckpt", 0, 700, tuple(tensors))
    return Description("job", 3, step, 1.5, (bundle,), (FilePlace("state.json", 700, 5000),), {"a": "b"}, {"n": 1})


def proven(memory: bytes | bytearray) -> list[tuple[int, bytes]]:
    """The steps that are proven whole, newest first, with their content."""
    steps = []
    for half in layout.newest_first(memoryview(memory)):
        try:
            description = layout.prove(half)
        except NoCopy:
            continue
        steps.append((description.step, bytes(half[:5700])))
    return steps


@cases(300)
@given(left=st.integers(0, 8 * HALF))
def test_a_worker_that_dies_after_any_byte_leaves_the_last_state_that_it_completed(left: int) -> None:
    writer = Writer(left)
    for step in range(1, 8):
        writer.copy(step)

    steps = proven(writer.memory)

    assert [step for step, _ in steps][:1] == ([writer.sealed] if writer.sealed else [])
    assert all(content == content_of(step) for step, content in steps)


@cases(300)
@given(at=st.integers(0, 2 * HALF - 1), bit=st.integers(0, 7))
def test_a_bit_that_flips_anywhere_costs_at_most_the_copy_that_it_is_in(at: int, bit: int) -> None:
    writer = Writer(1 << 40)
    writer.copy(1)
    writer.copy(2)
    writer.memory[at] ^= 1 << bit

    steps = proven(writer.memory)

    assert steps
    assert all(content == content_of(step) for step, content in steps)
    hit = 2 if at < HALF else 1
    if at % HALF < 5700:
        assert hit not in [step for step, _ in steps]


@cases(300)
@given(content=st.binary(max_size=3 * 4096))
def test_what_is_no_copy_is_refused_in_words(content: bytes) -> None:
    assert proven(content) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_each_piece_of_a_large_copy_is_proven_whoever_reads_it(threads: int) -> None:
    parts = 3 * layout.PIECE_BYTES
    half = memoryview(bytearray(layout.half_bytes(parts + 3000)))
    layout.seal(half, 1, parts, describe(1))
    assert layout.prove(half, threads) == describe(1)

    for at in range(layout.PIECE_BYTES // 2, parts, layout.PIECE_BYTES):
        half[at] = 1
        with pytest.raises(NoCopy, match="do not have the hash"):
            layout.prove(half, threads)
        half[at] = 0


def test_pieces_that_changed_places_are_no_copy() -> None:
    parts = 2 * layout.PIECE_BYTES
    half = memoryview(bytearray(layout.half_bytes(parts + 3000)))
    half[0] = 1
    layout.seal(half, 1, parts, describe(1))
    half[0], half[layout.PIECE_BYTES] = 0, 1

    with pytest.raises(NoCopy, match="do not have the hash"):
        layout.prove(half)


def test_a_copy_of_an_earlier_version_is_proven_by_its_one_hash() -> None:
    half = memoryview(bytearray(HALF))
    half[:5700] = content_of(1)
    layout.seal(half, 1, 5700, describe(1))
    written = layout.read_trailer(half)
    hashed = bytes(half[: written.parts_bytes + written.description_bytes])
    trailer = replace(written, hash=xxhash.xxh3_128_digest(hashed), is_of_one_hash=True).to_bytes()
    half[layout.trailer_at(HALF) :][: len(trailer)] = trailer
    assert layout.prove(half) == describe(1)

    half[0] ^= 1
    assert proven(half.tobytes() + bytes(HALF)) == []


def test_a_copy_of_a_later_version_is_said_to_be_that() -> None:
    half = forged()
    trailer = half[layout.trailer_at(HALF) :]
    trailer[7] = ord("9")
    content = trailer.tobytes()[: len(layout.NO_TRAILER) - 16]
    trailer[len(content) : len(content) + 16] = xxhash.xxh3_128_digest(content)

    with pytest.raises(NoCopy, match="another version of stepkeeper"):
        layout.prove(half)


def forged(**changes: object) -> memoryview:
    half = memoryview(bytearray(HALF))
    layout.seal(half, 1, 5700, replace(describe(1), **changes))
    return half


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"files": (FilePlace("../up", 0, 1),)}, "names files that no checkpoint has"),
        ({"files": (FilePlace("MANIFEST.json", 0, 1),)}, "names files that no checkpoint has"),
        ({"files": (FilePlace("ckpt.index", 0, 1),)}, "names files that no checkpoint has"),
        ({"files": (FilePlace("state.json", 0, 1 << 40),)}, "lies outside"),
        ({"bundles": (BundlePlace("ckpt", 1 << 40, 1, ()),)}, "lies outside"),
        ({"bundles": (BundlePlace("a/b", 0, 0, ()),)}, "names files that no checkpoint has"),
        ({"bundles": (BundlePlace("ckpt", 0, 8, (TensorPlace("t", 1, (1,), 4, 4),)),)}, "does not lie behind"),
        ({"bundles": (BundlePlace("ckpt", 0, 8, (TensorPlace("t", 1, (1,), 0, 4),)),)}, "have 4 bytes"),
        ({"format": 99}, "a newer stepkeeper"),
        ({"step": 1 << 60}, "step"),
    ],
)
def test_a_copy_with_right_hashes_that_no_worker_of_ours_wrote_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(NoCopy, match=why):
        layout.prove(forged(**changes))


def test_a_copy_that_is_larger_than_its_half_is_not_sealed() -> None:
    half = memoryview(bytearray(2 * layout.PAGE_BYTES))

    with pytest.raises(ValueError, match="in a half of"):
        layout.seal(half, 1, layout.PAGE_BYTES, describe(1))
    with pytest.raises(NoCopy):
        layout.prove(half)
