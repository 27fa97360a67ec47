"""Workers that write one checkpoint together divide it alike, evenly and completely; the files are TensorFlow's."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.tensorbundle import verify
from worker.checkpoint.bundle_writer import BundleCopy, data_name, encode_index, write_bundle
from worker.checkpoint.copy_memory import BufferPool
from worker.checkpoint.shares import Shares, divide

pytestmark = pytest.mark.tensorflow
SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)


def tensors_of(sizes: list[int]) -> list[tuple[str, tf.Tensor]]:
    numbers = np.random.default_rng(0)
    named = [(f"v{number}", tf.constant(numbers.normal(size=size), tf.float32)) for number, size in enumerate(sizes)]
    return [*named, ("text", tf.constant(["a", "bc"]))]


def weight(shares: Shares, rank: int) -> int:
    return sum(tensor.numpy().nbytes for name, tensor in shares.tensors[rank] if name != "text")


@given(sizes=SIZES, own=st.sets(st.integers(0, 11)), workers=st.integers(2, 5))
def test_each_tensor_is_written_once_and_only_common_ones_by_others(
    sizes: list[int], own: set[int], workers: int
) -> None:
    tensors = tensors_of(sizes)
    mirrored = frozenset(f"v{number}" for number in range(len(sizes)) if number not in own)
    shares = divide(tensors, mirrored, workers, 0)
    common = {name: tensor.numpy().nbytes for name, tensor in tensors if name in mirrored}

    assert (shares is None) == (sum(common.values()) == 0)
    if shares is None:
        return
    assert sorted(name for share in shares.tensors for name, _ in share) == sorted(name for name, _ in tensors)
    assert {name for share in shares.tensors[1:] for name, _ in share} <= mirrored
    lightest = min(range(workers), key=lambda rank: weight(shares, rank))
    for rank in range(1, workers):
        assert weight(shares, rank) <= weight(shares, lightest) + max(common.values())
        slots = shares.slots(rank)
        assert [slot.offset for slot in slots] == [0, *(slot.end for slot in slots)][:-1] if slots else True


@given(sizes=SIZES, workers=st.integers(2, 5))
def test_other_values_divide_alike_and_other_shapes_do_not_go_unnoticed(sizes: list[int], workers: int) -> None:
    tensors = tensors_of([size + 1 for size in sizes])
    names = frozenset(name for name, _ in tensors)
    zeros = [(name, tf.zeros_like(tensor)) for name, tensor in tensors]
    grown = [*tensors[:-2], (tensors[-2][0], tf.zeros([99])), tensors[-1]]
    one, other, third = (divide(version, names, workers, 0) for version in (tensors, zeros, grown))

    assert one is not None and other is not None and third is not None
    assert one.digest == other.digest != third.digest
    assert [[name for name, _ in share] for share in one.tensors] == [
        [name for name, _ in share] for share in other.tensors
    ]


def test_small_state_is_not_divided() -> None:
    tensors = tensors_of([1000])

    assert divide(tensors, frozenset({"v0"}), 2, 4001) is None
    assert divide(tensors, frozenset({"v0"}), 2, 4000) is not None


@pytest.mark.parametrize("workers", [2, 3, 14])
def test_files_of_all_are_those_of_tensorflows_own_sharded_writer(tmp_path: Path, workers: int) -> None:
    tensors = tensors_of([7, 0, 1, 30, 12, 300_000, 5])
    shares = divide(tensors, frozenset(name for name, _ in tensors), workers, 0)
    assert shares is not None
    prefixes = []
    for rank, share in enumerate(shares.tensors):  # as TensorFlow's saver does: a bundle of each, which it merges
        prefixes.append(str(tmp_path / f"part-{rank}"))
        with NewFolder(tmp_path / f"part-{rank}.folder") as folder:
            write_bundle(folder, "ckpt", share)
            folder.end()
        for path in (tmp_path / f"part-{rank}.folder").iterdir():
            path.rename(tmp_path / path.name.replace("ckpt", f"part-{rank}"))
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "theirs"))
    with NewFolder(tmp_path / "ours") as ours:
        written = []
        for rank, share in enumerate(shares.tensors):
            copy = BundleCopy(share, BufferPool())
            written.append(copy.write_data(ours.create(data_name("ckpt", rank, workers))))
        ours.add("ckpt.index", encode_index(written))
        ours.end()

    for rank in range(1, workers):
        assert [slot for slot, _ in written[rank]] == shares.slots(rank)
    for path in (tmp_path / "ours").iterdir():
        theirs = tmp_path / path.name.replace("ckpt", "theirs")
        if workers <= len(tensors):  # it leaves out empty files
            assert path.read_bytes() == theirs.read_bytes(), path.name
    assert verify.verify_bundle(tmp_path / "ours" / "ckpt").shards == workers
    for name, tensor in tensors:
        (read,) = tf.raw_ops.RestoreV2(
            prefix=str(tmp_path / "ours" / "ckpt"), tensor_names=[name], shape_and_slices=[""], dtypes=[tensor.dtype]
        )
        assert np.array_equal(read.numpy(), tensor.numpy())
