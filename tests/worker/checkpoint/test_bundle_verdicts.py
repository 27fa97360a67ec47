"""What is called whole without TensorFlow is what TensorFlow's own reader reads, and nothing else is."""

import random
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from supervisor.protocol.damage import BundleError
from supervisor.protocol.tensorbundle import verify
from tests.places import BUNDLES

pytestmark = pytest.mark.tensorflow
NAMES = ["manager/ckpt-3", "saver/model.ckpt-100", "sharded/ckpt"]


def tensorflow_reads(prefix: Path) -> bool:
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError):
        return False
    return True


def is_whole(prefix: Path) -> bool:
    try:
        verify.verify_bundle(prefix)
    except BundleError:
        return False
    return True


@pytest.fixture(params=NAMES)
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree((BUNDLES / request.param).parent, tmp_path / "copy")
    return tmp_path / "copy" / Path(request.param).name


def changed(path: Path, content: bytes) -> None:
    """Other content in a new file: TensorFlow may have the old one mapped."""
    path.unlink()
    path.write_bytes(content)


def test_flipped_bits_anywhere_in_the_index_get_tensorflows_verdict(prefix: Path) -> None:
    index = prefix.with_name(prefix.name + ".index")
    original = index.read_bytes()
    accepted = 0
    for at in range(len(original)):
        changed(index, original[:at] + bytes([original[at] ^ 1 << at % 8]) + original[at + 1 :])
        ours = is_whole(prefix)
        assert ours == tensorflow_reads(prefix), f"byte {at}"
        accepted += ours

    assert 0 < accepted < 60  # what nobody reads: the metaindex, and padding


def test_flipped_bits_and_cuts_in_data_get_tensorflows_verdict(prefix: Path) -> None:
    chance = random.Random(3)
    for data in sorted(prefix.parent.glob(f"{prefix.name}.data-*")):
        original = data.read_bytes()
        for _ in range(20):
            at = chance.randrange(len(original))
            changed(data, original[:at] + bytes([original[at] ^ 1 << chance.randrange(8)]) + original[at + 1 :])
            assert (is_whole(prefix), tensorflow_reads(prefix)) == (False, False), f"{data.name}: bit in byte {at}"
            changed(data, original[:at])
            assert (is_whole(prefix), tensorflow_reads(prefix)) == (False, False), f"{data.name}: cut at {at}"
        changed(data, original)

    assert is_whole(prefix) and tensorflow_reads(prefix)


def test_bytes_behind_the_data_are_refused_here_only(prefix: Path) -> None:
    data = next(prefix.parent.glob(f"{prefix.name}.data-*"))
    changed(data, data.read_bytes() + b"xx")

    assert (is_whole(prefix), tensorflow_reads(prefix)) == (False, True)


def test_an_iterators_checkpoint_is_whole(tmp_path: Path) -> None:
    iterator = iter(tf.data.Dataset.range(100).shuffle(50).batch(3))
    next(iterator)
    prefix = Path(tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "ckpt")))

    assert is_whole(prefix)
