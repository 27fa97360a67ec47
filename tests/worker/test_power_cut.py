"""A power cut at any instant leaves the old checkpoint or the new one, whole; once it is committed, the new one."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf

import worker
from supervisor.protocol import checkpoints, manifest
from supervisor.protocol.launch import Interval, Launch
from supervisor.protocol.retention import RetentionPolicy
from tests.worker.power import Cut, Disk, Tree, write

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    made = Disk(root)
    yield made
    made.close()


def newest(tree: Tree, folder: Path) -> int:
    """The step of the checkpoint that a start after the cut would restore, with its value proven; 0 for none."""
    directory = write(tree, folder) / "jobs" / "count"
    selection = checkpoints.select(directory)
    assert not selection.refused, "a name without its content is no loss, but it would look like one"
    if selection.path is None:
        return 0
    step = manifest.verify(selection.path).step
    value = tf.train.load_checkpoint(str(selection.path / "ckpt")).get_tensor("count/.ATTRIBUTES/VARIABLE_VALUE")
    assert value == step
    checkpoints.sweep_partials(directory)
    return step


@pytest.fixture
def cuts(begin: Begin, disk: Disk) -> list[Cut]:
    """What cuts during three saves, the folder's making and two deletions would leave; the last is after the end."""
    directory = disk.root / "jobs" / "count"
    begin(Launch(checkpoint_dir=directory, interval=Interval(steps=1), retention=RetentionPolicy(newest=1)))
    with pytest.MonkeyPatch.context() as patch:
        disk.watch(patch)
        count = tf.Variable(0, dtype=tf.int64)
        with worker.Run(tf.train.Checkpoint(count=count)) as run:
            for _ in range(3):
                count.assign_add(1)
                run.step_done()
        disk.cuts.append(disk.cut("end"))
    return disk.cuts


@pytest.mark.parametrize("kind", ["synced", "names", "torn"])
def test_power_cut_before_any_system_call_leaves_the_old_or_the_new_whole(
    kind: str, cuts: list[Cut], tmp_path: Path
) -> None:
    left = [newest(getattr(cut, kind), tmp_path / "after") for cut in cuts]

    assert [step for step, _ in itertools.groupby(left)] == [0, 1, 2, 3]
    assert len(left) > 40


def test_committed_checkpoint_survives_whatever_follows(cuts: list[Cut], tmp_path: Path) -> None:
    """Committed is what is said once its folder's name is synced: from the sync of the parent on."""
    of_parent = [number for number, cut in enumerate(cuts) if cut.before.startswith("rename") and "step-" in cut.before]
    committing = [number for number in of_parent if ".partial" in cuts[number].before]

    for step, number in enumerate(committing, 1):
        assert newest(cuts[number].synced, tmp_path / "after") == step - 1
        assert newest(cuts[number + 2].synced, tmp_path / "after") == step, "after the rename, then the parent's sync"
