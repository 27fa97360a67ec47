"""A script that was edited between two starts: the start says which values are used now, and how to have the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Done, Go, Restored
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
Make = Callable[[], Any]
keras = tf.keras
OTHER = "the script sets other values than the one that this checkpoint was trained with"


def train(folder: Path, make: Make, steps: int, *lines: Callable[[worker.Run, Any], None], **given: Any) -> float:
    """Trains so many steps more with the optimizer that `make` makes; `lines`: at the beginning of the with block.

    Returns the learning rate at the end, if there is one.
    """
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = make()
    optimizer.build(model.trainable_variables)
    with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer), directory=folder, interval="1000 steps",
                    **given) as run:  # fmt: skip
        for line in lines:
            line(run, optimizer)
        for _ in range(steps):
            optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
            run.step_done()
    return round(float(np.asarray(optimizer.learning_rate)), 7)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if OTHER in line]
    assert len(lines) <= 1, "said once"
    return lines[0] if lines else ""


def test_learning_rate_of_the_checkpoint_is_used_and_said_until_the_script_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, lambda: keras.optimizers.Adam(3e-3), 2)
    assert not said(capsys)

    used = train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 1)
    first = said(capsys)
    train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 1)
    again = said(capsys)
    train(tmp_path, lambda: keras.optimizers.Adam(3e-3), 1)

    assert used == 3e-3
    assert "optimizer.learning_rate is 0.003, from the checkpoint; the script says 0.0001, which is not used" in first
    assert "write `if run.step == 2: optimizer.learning_rate = 0.0001` at the beginning of the with block" in first
    assert "optimizer.learning_rate is 0.003" in again, "it is still so"
    assert not said(capsys), "the script has the checkpoint's value again"


def test_line_that_the_message_names_works_and_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, lambda: keras.optimizers.Adam(3e-3), 2)
    train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 0)
    line = said(capsys).partition("write `")[2].partition("`")[0]

    def obey(run: worker.Run, optimizer: Any) -> None:
        exec(line, {"run": run, "optimizer": optimizer})

    used = train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 2, obey)
    said(capsys)
    later = train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 2, obey)

    assert used == later == 1e-4
    assert not said(capsys)


def test_rate_that_the_script_changes_while_it_trains_is_no_edit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def halve(run: worker.Run, optimizer: Any) -> None:
        optimizer.learning_rate = optimizer.learning_rate * 0.5

    for _ in range(3):
        train(tmp_path, lambda: keras.optimizers.Adam(8e-3), 1, halve)

    assert not said(capsys)

    train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 1)

    assert "is 0.001, from the checkpoint, where it began as 0.008; the script says 0.0001" in said(capsys)


CosineDecay = keras.optimizers.schedules.CosineDecay
EDITS: dict[str, tuple[Make, Make, str]] = {
    "hyperparameter": (
        lambda: keras.optimizers.Adam(1e-3, beta_1=0.9),
        lambda: keras.optimizers.Adam(1e-3, beta_1=0.8),
        "optimizer.beta_1 is 0.8, the script's; the checkpoint was trained with 0.9; to go on as before, set 0.9",
    ),
    "class": (
        lambda: keras.optimizers.Adam(1e-3),
        lambda: keras.optimizers.AdamW(1e-3),
        "the class of optimizer is AdamW, the script's; the checkpoint was trained with Adam",
    ),
    "class with fewer slots": (
        lambda: keras.optimizers.Adam(1e-3),
        lambda: keras.optimizers.SGD(1e-3),
        "the class of optimizer is SGD, the script's; the checkpoint was trained with Adam",
    ),
    "schedule": (
        lambda: keras.optimizers.SGD(CosineDecay(0.01, 200)),
        lambda: keras.optimizers.SGD(CosineDecay(0.01, 100)),
        "optimizer.learning_rate.decay_steps is 100, the script's; the checkpoint was trained with 200",
    ),
    "schedule for a number": (
        lambda: keras.optimizers.SGD(0.01),
        lambda: keras.optimizers.SGD(CosineDecay(0.01, 100)),
        "optimizer.learning_rate is CosineDecay, the script's; the checkpoint was trained with 0.01",
    ),
    "clipping": (
        lambda: keras.optimizers.SGD(0.01),
        lambda: keras.optimizers.SGD(0.01, clipnorm=1.0),
        "optimizer.clipnorm is 1.0, the script's; the checkpoint was trained with None",
    ),
    "rate inside of loss scaling": (
        lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.01)),
        lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.02)),
        "optimizer.inner_optimizer.learning_rate is 0.01, from the checkpoint; the script says 0.02",
    ),
}


@pytest.mark.parametrize(("before", "now", "expected"), EDITS.values(), ids=EDITS.keys())
def test_edit_of_an_optimizer_is_said(
    before: Make, now: Make, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, before, 1)
    train(tmp_path, before, 1)
    assert not said(capsys)

    train(tmp_path, now, 1)

    assert expected in said(capsys)


def test_other_precision_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("float32", "float32", "mixed_bfloat16"):
        assert not said(capsys)
        keras.config.set_dtype_policy(policy)
        try:
            train(tmp_path, lambda: keras.optimizers.SGD(0.01), 1)
        finally:
            keras.config.set_dtype_policy("float32")

    assert "the dtype policy is mixed_bfloat16, the script's; the checkpoint was trained with float32" in said(capsys)


def test_other_seeds_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seeded(seed: int) -> None:
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        train(tmp_path, lambda: keras.optimizers.SGD(0.01), 1, generators=[rng])

    seeded(1)
    seeded(1)
    assert not said(capsys)
    seeded(2)
    line = said(capsys)
    seeded(2)

    assert "the global seed is 2, was 1: random numbers go on from the checkpoint's state" in line
    assert "keras.utils.set_random_seed(2)" in line
    assert "the seed of generators[0] is 2, was 1" in line
    assert not said(capsys), "the checkpoint was written with the new ones"


def test_seeds_that_nobody_set_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        tf.random.set_seed(5)
        train(tmp_path, lambda: keras.optimizers.SGD(0.01), 1, generators=[np.random.default_rng()])

    assert not said(capsys)


def test_daemon_hears_of_it_at_the_restore_and_of_the_scripts_value_after_a_step(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path
) -> None:
    train(tmp_path, lambda: keras.optimizers.Adam(3e-3), 2)
    (newest,) = tmp_path.glob("step-*")
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(newest)))

    def obey(run: worker.Run, optimizer: Any) -> None:
        optimizer.learning_rate = 1e-4

    train(tmp_path, lambda: keras.optimizers.Adam(1e-4), 1, obey)
    daemon.wait_for(Done)

    first, again = daemon.all_of(Restored)
    assert len(first.changed) == 1 and "is 0.003, from the checkpoint" in first.changed[0]
    assert again.changed == ("optimizer.learning_rate is now 0.0001, the script's",)


def test_fit_says_what_to_write_into_a_callback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fitted(rate: float, epochs: int, *callbacks: Any) -> float:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(rate), "mse")
        given = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
        worker.keras.fit(model, *given, batch_size=4, epochs=epochs, directory=tmp_path, verbose=0,
                         callbacks=[callback(model) for callback in callbacks])  # fmt: skip
        return round(float(model.optimizer.learning_rate.numpy()), 7)

    def reducing(model: Any) -> Any:
        return keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=1e9)

    fitted(8e-3, 2, reducing)
    fitted(8e-3, 3, reducing)
    assert not said(capsys), "what a callback changed is no edit"
    fitted(1e-4, 3)
    line = said(capsys)
    code = line.partition("write `")[2].partition("`")[0]

    def obeying(model: Any) -> Any:
        scope = {"model": model, "optimizer": model.optimizer}
        return keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: exec(code, scope))

    used = fitted(1e-4, 4, obeying)

    assert "where it began as 0.008; the script says 0.0001" in line
    assert "into on_train_batch_begin of a callback" in line
    assert used == 1e-4
