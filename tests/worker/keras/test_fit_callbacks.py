"""Keras' own callbacks go on over restarts, with their files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol.wire.launch import Launch
from tests.worker.keras.test_fit import StopsAt, same_weights
from tests.worker.keras.test_fit_state import small
from worker.keras import fit

pytestmark = pytest.mark.tensorflow
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=24).astype("float32")


@pytest.fixture(autouse=True)
def _new_attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def trained(folder: Path, make: Callable[[Path], list[Any]], *stops: Any, epochs: int = 4) -> Any:
    tf.keras.utils.set_random_seed(1)
    model = small()
    fit(model, X, Y, batch_size=4, validation_split=0.25, epochs=epochs, callbacks=[*make(folder), *stops], verbose=0,
        directory=folder / "checkpoints", interval="1 steps")  # fmt: skip
    return model


def disturbed(folder: Path, make: Callable[[Path], list[Any]], begin: Callable[[Launch], None]) -> Any:
    for step in (2, 8, 13):
        with pytest.raises(LookupError):
            trained(folder, make, StopsAt(step))
        begin(Launch())
    return trained(folder, make)


@pytest.mark.slow
def test_callbacks_and_their_files_end_like_those_of_an_undisturbed_run(
    tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    kept: list[Any] = []

    def make(folder: Path) -> list[Any]:
        folder.mkdir(exist_ok=True)
        callbacks = tf.keras.callbacks
        kept[:] = [
            callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
            callbacks.ModelCheckpoint(folder / "each-{epoch}.weights.h5", save_weights_only=True, save_freq=3),
            callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=0.01),
            callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
            callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ]
        return [
            *kept,
            callbacks.CSVLogger(str(folder / "log.csv")),
            callbacks.TensorBoard(str(folder / "board"), update_freq=1, write_steps_per_second=True),
        ]

    def files(folder: Path) -> dict[str, Any]:
        best = tf.keras.models.load_model(folder / "best.keras")
        return {
            "csv": (folder / "log.csv").read_text(),
            "best": [weights.tolist() for weights in best.get_weights()],
            "names": sorted(path.name for path in folder.glob("each-*")),
            "state": [kept[0].best, kept[2].best, kept[2].wait, kept[3].best, kept[3].wait],
        }

    calm = trained(tmp_path / "calm", make)
    of_calm = files(tmp_path / "calm")
    rough = disturbed(tmp_path / "rough", make, begin)

    assert files(tmp_path / "rough") == of_calm
    assert of_calm["csv"].count("\n") == 5, "the header and four epochs"
    assert rough.history.history == calm.history.history
    assert same_weights(rough, calm)


def test_backup_and_restore_is_refused(tmp_path: Path) -> None:
    backup = tf.keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(ValueError, match=r"cannot fit with BackupAndRestore: .* restores everything itself"):
        trained(tmp_path, lambda folder: [[backup]])


class SetsAtBegin(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets a rate and draws when training begins, as callbacks of cyclical rates do; the rate falls from there on."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.1)
        self.drawn = np.random.random()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.9)


def test_what_callbacks_change_when_training_begins_is_not_changed_again_by_a_restart(
    tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    calm = trained(tmp_path / "calm", lambda folder: [SetsAtBegin()], epochs=2)
    drawn = np.random.random()
    with pytest.raises(LookupError):
        trained(tmp_path / "rough", lambda folder: [SetsAtBegin()], StopsAt(3), epochs=2)
    begin(Launch())

    rough = trained(tmp_path / "rough", lambda folder: [SetsAtBegin()], epochs=2)

    assert same_weights(rough, calm)
    assert float(rough.optimizer.learning_rate) == float(calm.optimizer.learning_rate)
    assert np.random.random() == drawn
