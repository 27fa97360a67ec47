"""What other programs wrote is a start: restored, accounted for, and followed by checkpoints of ours."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Failed, Go, Restored
from tests.places import BUNDLES
from tests.worker.daemon_end import DaemonEnd
from worker.checkpoint.foreign_restore import set_iterations

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


@pytest.fixture(autouse=True)
def _fresh_attempt(begin: Begin) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def build(strategy: Any, units: int = 3, layer: str = "head") -> tf.train.Checkpoint:
    """The model that the bundles are of."""
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(units, name=layer)])
        optimizer = tf.keras.optimizers.Adam()
    return tf.train.Checkpoint(model=model, optimizer=optimizer)


@pytest.fixture
def manager(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLES / "manager", tmp_path / "manager"))


@pytest.fixture
def saver(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLES / "saver", tmp_path / "saver"))


def stored(prefix: Path, name: str) -> np.ndarray:
    return np.asarray(tf.train.load_checkpoint(str(prefix)).get_tensor(name))


def test_checkpoint_managers_folder_is_gone_on_with(manager: Path, two_replicas: Any) -> None:
    tracked = build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, directory=manager, total_steps=121) as run:
        begun_at = run.step
        kernel = tracked.model.layers[-1].kernel.numpy()
        run.step_done()

    assert begun_at == 120
    same_shape = [name for name, shape in tf.train.list_variables(str(manager / "ckpt-3")) if shape == [4, 3]]
    assert any(np.array_equal(kernel, stored(manager / "ckpt-3", name)) for name in same_shape)
    assert [str(name) for name in selection.committed_checkpoints(manager)] == ["step-0000000121.a1"]
    assert (manager / "ckpt-3.index").exists()


def test_start_that_needs_no_further_step_is_saved_as_ours(manager: Path, two_replicas: Any) -> None:
    with worker.Run(build(two_replicas), strategy=two_replicas, directory=manager, total_steps=120):
        pass

    assert [str(name) for name in selection.committed_checkpoints(manager)] == ["step-0000000120.a1"]


def test_tf1_savers_weights_and_moments_are_taken_by_name(saver: Path, two_replicas: Any) -> None:
    tracked = build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, directory=saver) as run:
        begun_at = run.step

    assert begun_at == 100
    moments = {variable.path.rpartition("_head_")[2]: variable.numpy() for variable in tracked.optimizer.variables}
    assert np.array_equal(tracked.model.layers[-1].kernel, stored(saver / "model.ckpt-100", "head/kernel"))
    assert np.array_equal(moments["kernel_momentum"], stored(saver / "model.ckpt-100", "head/kernel/Adam"))
    assert np.array_equal(moments["bias_velocity"], stored(saver / "model.ckpt-100", "head/bias/Adam_1"))
    assert int(tracked.optimizer.iterations.numpy()) == 100


def test_damaged_newest_is_reported_and_the_one_before_restored(
    saver: Path, two_replicas: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (saver / "model.ckpt-100.data-00000-of-00001").write_bytes(b"")
    with worker.Run(build(two_replicas), strategy=two_replicas, directory=saver) as run:
        begun_at = run.step

    assert begun_at == 90
    assert "refused model.ckpt-100: model.ckpt-100.data-00000-of-00001 is 0 bytes" in capsys.readouterr().err


def test_nothing_whole_leaves_with_65_and_the_list(
    saver: Path, two_replicas: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in saver.glob("*.data-*"):
        data.write_bytes(b"")
    run = worker.Run(build(two_replicas), strategy=two_replicas, directory=saver)
    with pytest.raises(SystemExit) as leaving, run:
        pass

    assert leaving.value.code == 65
    said = capsys.readouterr().err
    assert "model.ckpt-100" in said and "model.ckpt-90" in said


def test_initial_checkpoint_is_the_start_of_an_empty_folder(
    manager: Path, tmp_path: Path, two_replicas: Any, begin: Begin
) -> None:
    begin(Launch(checkpoint_dir=tmp_path / "new", initial_checkpoint=manager / "ckpt-2"))
    with worker.Run(build(two_replicas), strategy=two_replicas) as run:
        begun_at = run.step

    assert begun_at == 80
    assert [checkpoint.step for checkpoint in selection.committed_checkpoints(tmp_path / "new")] == [80]


def test_daemon_hears_what_was_restored_and_what_was_not(
    saver: Path, tmp_path: Path, two_replicas: Any, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "new"))
    daemon.send(Go(1, restore=str(saver / "model.ckpt-90")))
    with two_replicas.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3, name="head")])
        optimizer = tf.keras.optimizers.Adagrad()
    with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer), strategy=two_replicas):
        pass
    restored = daemon.wait_for(Restored)

    assert (restored.checkpoint, restored.step) == ("model.ckpt-90", 90)
    assert [name for name in restored.unmatched if "accumulator (not in the checkpoint)" in name]
    assert "head/kernel/Adam (only in the checkpoint)" in restored.unmatched


@pytest.mark.parametrize("place", ["manager/ckpt-3", "saver/model.ckpt-100"])
@pytest.mark.parametrize("other", [{"units": 5}, {"layer": "tail", "units": 4}])
def test_model_it_does_not_fit_leaves_with_65_and_the_names(
    other: dict[str, Any], place: str, tmp_path: Path, two_replicas: Any, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "new"))
    daemon.send(Go(1, restore=str(BUNDLES / place)))
    run = worker.Run(build(two_replicas, **other), strategy=two_replicas)
    with pytest.raises(SystemExit) as leaving, run:
        pass

    assert leaving.value.code == 65
    assert "it does not fit this program" in daemon.wait_for(Failed).error
    assert "kernel" in daemon.wait_for(Failed).error


def test_objects_under_other_names_are_no_start(
    manager: Path, two_replicas: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked = build(two_replicas)
    run = worker.Run(tf.train.Checkpoint(net=tracked.model), strategy=two_replicas, directory=manager)
    with pytest.raises(SystemExit), run:
        pass

    assert "under the same names" in capsys.readouterr().err


@pytest.mark.parametrize("accumulated", [None, 4])
def test_optimizer_goes_on_from_the_number_of_its_updates(accumulated: int | None) -> None:
    optimizer = tf.keras.optimizers.Adam(gradient_accumulation_steps=accumulated)

    set_iterations(optimizer, 7)

    assert int(optimizer.iterations) == 7
