"""Checkpoints written from memory are TensorFlow's, byte for byte, and hold no second copy of the state."""

import mmap
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from supervisor.host.memory_tier import salvage
from supervisor.protocol import durable
from supervisor.protocol.available_memory import available_memory, resident_bytes
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.tensorbundle import verify
from tests.waiting import wait_until
from worker.checkpoint import bundle_writer, copy_memory
from worker.checkpoint.copy_memory import ROOM_BYTES, BufferPool, HostCopy, RoomInFile
from worker.saving.memory_file import CopyRoom

pytestmark = pytest.mark.tensorflow
SHAPES = ((), (0,), (3,), (2, 0, 5), (30, 7))
PLAIN = [
    kind
    for number in types_pb2.DataType.values()  # the oldest TensorFlow has fewer
    if 0 < number < 29 and number not in (7, 20, 21) and not (kind := tf.dtypes.as_dtype(number)).is_quantized
]
STATE_MB = 200


def some(kind: tf.DType, shape: tuple[int, ...]) -> Any:
    """Any bits; a bool has two values."""
    count = int(np.prod(shape))
    raw = np.random.default_rng(0).integers(0, 2 if kind == tf.bool else 256, count * kind.size, dtype=np.uint8)
    return tf.constant(raw.view(kind.as_numpy_dtype).reshape(shape), dtype=kind)


def same(tensors: dict[str, Any], folder: Path) -> dict[str, tuple[int, str]]:
    """Writes them as TensorFlow does and in both of our ways, and compares; gives the hashes taken while writing."""
    theirs, names = folder / "theirs", list(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(theirs / "ckpt"), tensor_names=names, shape_and_slices=[""] * len(names), tensors=[*tensors.values()]
    )
    with NewFolder(folder / "ours") as ours:
        bundle_writer.write_bundle(ours, "ckpt", tensors.items())
        hashes = ours.end()
    reserve = BufferPool()
    bundle_writer.BundleCopy((("other", tf.fill([10_000], 7)),), reserve).release()
    with NewFolder(folder / "copied") as ours:
        bundle_writer.BundleCopy(tuple(tensors.items()), reserve).write(ours, "ckpt")
        assert ours.end() == hashes
    with NewFolder(folder / "left in memory") as ours:
        half = memoryview(bytearray(1 << 25))
        place = RoomInFile(CopyRoom(half, 1))
        left = bundle_writer.BundleCopy(tuple(tensors.items()), place).place("ckpt", place.offset)
        salvage.write_bundle(ours, left, half[left.offset : left.offset + left.size])
        assert ours.end() == hashes

    assert {path.name for path in theirs.iterdir()} == set(hashes)
    for name, of_content in hashes.items():
        assert (folder / "ours" / name).read_bytes() == (theirs / name).read_bytes()
        assert (folder / "copied" / name).read_bytes() == (theirs / name).read_bytes()
        assert (folder / "left in memory" / name).read_bytes() == (theirs / name).read_bytes()
        assert of_content == durable.hash_file(theirs / name)
    return hashes


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: str(kind.name))
def test_numbers_of_every_type_and_shape_lie_as_tensorflow_lays_them(kind: tf.DType, tmp_path: Path) -> None:
    same({f"{number}": some(kind, shape) for number, shape in enumerate(SHAPES)}, tmp_path)


def test_quantized_numbers_too(tmp_path: Path) -> None:
    bits = {1: tf.int8, 2: tf.int16, 4: tf.int32}
    kinds = (tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32)
    same({kind.name: tf.bitcast(tf.constant([1, 2, 3], bits[kind.size]), kind) for kind in kinds}, tmp_path)


def test_texts_too(tmp_path: Path) -> None:
    texts = {"one": "x" * 300, "none": [], "many": [["a", "", "b\0c"], ["é", "z" * (5 << 20), "y"]]}
    same({name: tf.constant(text, tf.string) for name, text in texts.items()}, tmp_path)


def test_a_text_that_ends_with_zeros_keeps_them(tmp_path: Path) -> None:
    text = b"PK\x05\x06\x00\x00"  # as every archive does that np.savez writes, and so the state of a `fit`
    same({"one": tf.constant(text), "two": tf.constant([text, b"\x00"])}, tmp_path)


def test_an_index_of_many_blocks_and_tensors_larger_than_a_piece_too(tmp_path: Path) -> None:
    order = [number * 7919 % 6000 for number in range(6000)]  # data lie in the order of writing, keys in their own
    small = {f"layer\xff{number}/kernel/.OPTIMIZER_SLOT/{number}": tf.constant(float(number)) for number in order}
    large = {"large": some(tf.float32, (3_000_000,)), "odd": some(tf.uint8, (5_000_001,))}
    hashes = same({**large, **small}, tmp_path)

    assert hashes["ckpt.index"][0] > 256 << 10, "one block would prove little"
    assert verify.verify_bundle(tmp_path / "ours" / "ckpt").tensors == 6002


def test_types_only_tensorflow_can_write_are_recognised() -> None:
    assert bundle_writer.is_writable(tf.bfloat16) and bundle_writer.is_writable(tf.string)
    assert (
        not bundle_writer.is_writable(tf.variant)
        and not bundle_writer.is_writable(tf.resource)
        and not bundle_writer.is_writable(tf.dtypes.experimental.int4)
    )


MEASURE = """
import sys
from pathlib import Path
import tensorflow as tf
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
from worker.saving.commit import CheckpointOrigin
from worker.state.state_file import Position

def memory(field):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024

variables = [tf.Variable(tf.ones([int(sys.argv[2]) * 25_000])) for _ in range(10)]
tracked = tf.train.Checkpoint(variables=variables)
origin = CheckpointOrigin("job", 1, {}, {})
writer = TensorFlowWriter(tracked, Path(sys.argv[1]), origin, RetentionPolicy(checkpoint_keep=1), 1)
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
for step, copied in enumerate((False, False, True, True)):
    writer.commit(writer.capture(StepBoundary(step, Position(), {}, {}), copied))
    print((memory("VmHWM") - before) / int(sys.argv[2]))
"""


def test_memory_of_a_copy_is_had_again_also_for_a_state_that_grows_a_little() -> None:
    reserve, size = BufferPool(), 4 * ROOM_BYTES
    first = reserve.allocate(size)
    first.append(b"old")
    assert reserve.allocate(size) is not first, "it is in use"
    reserve.reuse(first)

    assert (again := reserve.allocate(size + 1000)) is first and again.content.size == 0
    for other in (2 * size, size // 4):
        reserve.reuse(first)
        assert reserve.allocate(other) is not first


def test_a_copy_that_would_take_nearly_all_memory_is_not_made() -> None:
    with pytest.raises(MemoryError, match="of memory are left"):
        BufferPool().allocate(int(0.95 * available_memory()[0]))


def test_memory_that_is_too_small_is_gone_before_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = BufferPool()
    first = reserve.allocate(1)
    kept = weakref.ref(first)
    reserve.reuse(first)
    del first
    mapped = copy_memory.mmap.mmap

    def mapping(*arguments: Any, **named: Any) -> mmap.mmap:
        assert kept() is None
        return mapped(*arguments, **named)

    monkeypatch.setattr(copy_memory.mmap, "mmap", mapping)
    assert reserve.allocate(4 * ROOM_BYTES).capacity == 5 * ROOM_BYTES


@pytest.mark.integration
def test_forked_child_holds_no_copy() -> None:
    """Else a data loader's process doubles it at the next save."""
    copy = BufferPool().allocate(100_000)
    copy.append(b"x" * 100_000)
    child = os.fork()
    if child == 0:
        os._exit(int(copy.content.any()))

    assert os.waitpid(child, 0)[1] == 0
    assert bytes(copy.content) == b"x" * 100_000


@pytest.mark.integration
@pytest.mark.slow
def test_a_save_holds_one_copy_of_the_state_beside_training_and_none_while_it_waits(tmp_path: Path) -> None:
    """What the peak of memory rises by from its first save on, as a share of the state."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", MEASURE, tmp_path, str(STATE_MB)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    _, waiting, _, beside = map(float, ran.stdout.split())

    assert waiting < 0.15
    assert 0.7 < beside < 1.15, "the copy, and nothing else of its size"


def test_memory_of_the_first_copy_is_there_before_it_is_made() -> None:
    pool, size, before = BufferPool(), 64 << 20, resident_bytes()
    pool.prepare(size)
    wait_until(lambda: resident_bytes() - before > size, "the kernel has given it")

    image = pool.allocate(size)
    assert image.capacity >= size
    assert resident_bytes() - before < 2 * size


def test_memory_that_is_prepared_keeps_what_is_written_meanwhile() -> None:
    image, content = HostCopy.allocate(64 << 20), bytes(range(256)) * 1024
    preparing = threading.Thread(target=image.populate)
    preparing.start()
    while preparing.is_alive() and image.size < image.capacity:
        image.append(content)
    preparing.join()

    assert image.size
    assert bytes(image.content) == content * (image.size // len(content))


def test_a_copy_that_memory_is_too_short_for_is_not_prepared() -> None:
    pool = BufferPool()
    pool.prepare(1 << 60)

    with pytest.raises(MemoryError):
        pool.allocate(1 << 60)


def test_memory_is_left_for_what_a_script_has_yet_to_read() -> None:
    left, before = available_memory()[0], resident_bytes()
    pool = BufferPool()
    pool.prepare(int(0.3 * left))

    assert "stepkeeper-memory" not in {thread.name for thread in threading.enumerate()}
    assert resident_bytes() - before < 64 << 20
