"""Every instant of a save: what a kill there leaves, and what an error there leaves, is a whole checkpoint.

Of each kind of job that writes checkpoints, and of an export.
"""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, removal
from supervisor.protocol.checkpoints import selection as checkpoints
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, Go, SaveFailed
from tests.worker import power_calls
from tests.worker.daemon_end import DaemonEnd
from tests.worker.power_jobs import KINDS, Kind
from worker.export import ExportError, export, verify

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
OF_A_SAVE = 11  # at least: folder, two files made and written, the manifest's too, three syncs, the rename and its sync


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


class Operations:
    """Calls `before` with the step that is saved and n = 1, 2, 3, ... before the n-th operation of its save."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path, before: Callable[[int, int], None]) -> None:
        self.of_step: dict[int, int] = {}
        self._step = 0
        self._before = before
        power_calls.watch(patch, directory, self._told)

    def _told(self, name: str, path: Path) -> None:
        if name == "mkdir" and (saved := layout.checkpoint_name_in(path.name)) is not None:
            self._step = saved.step  # a save begins with its folder
        self.of_step[self._step] = self.of_step.get(self._step, 0) + 1
        self._before(self._step, self.of_step[self._step])


def newest(directory: Path, kind: Kind) -> tuple[int, int]:
    """Step of the newest whole checkpoint, and that whose values it holds."""
    selection = checkpoints.select_checkpoint(directory)
    path = selection.path
    assert path is not None and not selection.rejected
    return manifest.verify_checkpoint(path).step, kind.held(path)


def test_kill_before_any_operation_of_a_save_leaves_the_old_or_the_new_whole(
    kind: Kind, daemon: DaemonEnd, begin: Begin, tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    directory, images = tmp_path / "checkpoints", tmp_path / "images"
    launch = Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_keep=1)
    begin(launch)
    daemon.send(Go(1, restore=None))
    numbers = itertools.count()

    def image(step: int, n: int) -> None:  # what the page cache holds survives a kill, and nothing else does
        shutil.copytree(directory, images / f"{next(numbers):03d}")

    with kind.begin(daemon, launch) as job:
        job.save()
        job.save()
        Operations(patch, directory, image)
        assert job.save() is Committed

    left = [newest(folder, kind) for folder in sorted(images.iterdir())]
    assert set(left) == {(2, 2), (3, 3)}
    assert left == sorted(left), "the old one until the commit, the new one from there on"
    assert left.count((2, 2)) >= OF_A_SAVE
    for folder in images.iterdir():
        removal.delete_partials(folder)
        assert not list(folder.glob("*.partial")) and not list(folder.glob(".checkpoint.*"))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_error_in_any_operation_of_a_save_leaves_the_old_or_the_new_whole_and_training_goes_on(
    number: int, kind: Kind, daemon: DaemonEnd, begin: Begin, tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "checkpoints"
    launch = Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_keep=2)
    begin(launch)
    daemon.send(Go(1, restore=None))

    def fail(step: int, n: int) -> None:  # steps 4, 6, 8, ...: at operation 1, 2, 3, ...; the others not
        if step == 2 * n + 2:
            raise OSError(number, os.strerror(number), "disk")

    outcomes = []
    with kind.begin(daemon, launch) as job:
        job.save()
        job.save()
        job.save()
        operations = Operations(patch, directory, fail)
        while not outcomes or operations.of_step[job.step - 1] >= len(outcomes):
            outcomes.append(job.save())
            expected = job.step if outcomes[-1] is Committed else job.step - 1
            assert newest(directory, kind) == (expected, expected)
            assert not (directory / f"step-{job.step:010d}.a1.partial").exists()
            assert job.save() is Committed, "what failed is not in the way of the next save"

    before_commit = outcomes.count(SaveFailed)
    assert before_commit >= OF_A_SAVE
    assert outcomes == [SaveFailed] * before_commit + [Committed] * (len(outcomes) - before_commit)
    assert len(outcomes) > before_commit + 1, "there are operations after the commit, and they can't undo it"


# --- an export -----------------------------------------------------------------------------------------------------


def weighted(weight: float) -> tf.Module:
    module = tf.Module()
    module.weight = tf.Variable(weight)
    module.serve = tf.function(lambda x: x * module.weight, input_signature=[tf.TensorSpec([], tf.float32)])
    return module


def weight_in(folder: Path) -> float:
    """Of an export whose every byte is proven."""
    verify(folder)
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    return float(reader.get_tensor("weight/.ATTRIBUTES/VARIABLE_VALUE"))


def test_kill_before_any_operation_of_an_export_leaves_the_old_or_the_new_whole(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    directory, images = tmp_path / "export", tmp_path / "images"
    export(weighted(1.0), directory, 7)
    numbers = itertools.count()
    power_calls.watch(patch, directory, lambda name, path: shutil.copytree(directory, images / f"{next(numbers):03d}"))
    export(weighted(2.0), directory, 7)
    patch.undo()

    folders = sorted(images.iterdir())
    left = [weight_in(folder / "7") for folder in folders]
    assert set(left) == {1.0, 2.0} and left == sorted(left)
    half_done = max(folders, key=lambda folder: len(list(folder.rglob("*"))))
    assert weight_in(export(weighted(3.0), half_done, 7)) == 3.0
    assert [each.name for each in half_done.iterdir()] == ["7"], "what was left goes with the next export"


@pytest.mark.slow
def test_error_in_any_operation_of_an_export_leaves_the_old_or_the_new_whole(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "export"
    export(weighted(0.0), directory, 7)
    done = fails_at = 0

    def fail(name: str, path: Path) -> None:
        nonlocal done
        done += 1
        if done == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    power_calls.watch(patch, directory, fail)
    held, failed = 0.0, 0
    while done >= fails_at:
        done, fails_at = 0, fails_at + 1
        try:
            export(weighted(float(fails_at)), directory, 7)
        except ExportError:
            failed += 1
            assert weight_in(directory / "7") in (held, float(fails_at))
        else:
            assert weight_in(directory / "7") == float(fails_at)
        held = weight_in(directory / "7")

    assert failed >= 8
    assert [each.name for each in directory.iterdir()] == ["7"]


@pytest.mark.integration
def test_export_that_meets_a_full_disk_in_what_tensorflow_writes_leaves_the_old_one(small_disk: Path) -> None:
    def large(value: float) -> tf.Module:
        module = weighted(value)
        module.rest = tf.Variable(tf.zeros([30_000]))
        return module

    export(large(1.0), small_disk / "export", 7)
    with pytest.raises(ExportError, match="export step 7"):
        export(large(2.0), small_disk / "export", 7)

    assert weight_in(small_disk / "export" / "7") == 1.0
    assert [path.name for path in (small_disk / "export").iterdir()] == ["7"]
