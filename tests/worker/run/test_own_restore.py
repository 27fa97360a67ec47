"""A script that keeps its own CheckpointManager beside worker.Run: harmless for our bits, named where it restores."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch

pytestmark = pytest.mark.tensorflow


def built() -> tuple[Any, tf.train.Checkpoint]:
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    return model, tf.train.Checkpoint(model=model, optimizer=optimizer)


def train(model: Any, optimizer: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((1, 2))))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )


def test_restore_by_the_scripts_own_manager_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], begin: Any
) -> None:
    begin(Launch())
    model, own = built()
    train(model, own.optimizer)
    tf.train.CheckpointManager(own, str(tmp_path / "own"), 2).save()

    again, tracked = built()
    tracked.restore(tf.train.latest_checkpoint(str(tmp_path / "own")))
    with worker.Run(tracked, directory=tmp_path / "ours") as run:
        train(again, tracked.optimizer)
        run.step_done()

    said = capsys.readouterr().err
    assert "1 step had been made before" in said
    assert "initial_checkpoint" in said


def test_saves_of_the_scripts_own_manager_leave_ours_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_to(end: int, folder: str, manages: bool) -> list[float]:
        model, tracked = built()
        own = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path / f"own-{folder}"), 2)
        with worker.Run(tracked, directory=tmp_path / folder, interval="1 steps", total_steps=end) as run:
            while not run.reached:
                train(model, tracked.optimizer)
                if manages:
                    own.save()
                run.step_done()
        return [*model.get_weights()[0].ravel().tolist(), int(tracked.save_counter.numpy())]

    alone = run_to(4, "alone", manages=False)
    run_to(2, "beside", manages=True)
    beside = run_to(4, "beside", manages=True)

    assert beside == alone
    assert "made before" not in capsys.readouterr().err


def test_second_run_of_a_script_is_no_restore_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], begin: Any
) -> None:
    begin(Launch())
    model, tracked = built()
    for phase in ("first", "second"):
        with worker.Run(tracked, directory=tmp_path / phase, total_steps=2, strict=True) as run:
            while not run.reached:
                train(model, tracked.optimizer)
                run.step_done()

    assert "made before" not in capsys.readouterr().err
