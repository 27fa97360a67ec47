"""A TF1-style loop goes on with its counter and the same bits, also from a folder that only TF1's Saver wrote."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol import checkpoints
from supervisor.protocol.launch import Launch
from worker.tf1 import Run

pytestmark = pytest.mark.tensorflow
BUNDLES = Path(__file__).parents[1] / "protocol" / "bundles"
tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _fresh_attempt(begin: Any) -> None:
    """An attempt says once why it fails; each test is one of its own."""
    begin(Launch())


def train(directory: Path, total_steps: int, fails_at: int | None = None, scope: str = "head") -> tuple[int, list[Any]]:
    """The loop that the bundles are of; gives the first step and all variables at the end."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        inputs = tf1.placeholder(tf.float32, [None, 4])
        with tf1.variable_scope(scope):
            kernel, bias = tf1.get_variable("kernel", [4, 3]), tf1.get_variable("bias", [3])
        loss = tf1.reduce_mean(tf1.square(tf1.matmul(inputs, kernel) + bias))
        optimizer = tf1.train.AdamOptimizer()
        step_op = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
        session.run(tf1.global_variables_initializer())
        with Run(session, total_steps=total_steps, directory=directory, interval="5 steps") as run:
            first = run.step
            for step in run.steps():
                if step == fails_at:
                    raise LookupError("on purpose")
                fed = {inputs: np.random.default_rng(step).normal(size=(2, 4))}
                run.step_done(loss=session.run([step_op, loss], fed)[1])
        return first, session.run(tf1.global_variables())


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_interrupted_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    _, undisturbed = train(tmp_path / "a", 30)
    with pytest.raises(LookupError):
        train(tmp_path / "b", 30, fails_at=13)
    first, disturbed = train(tmp_path / "b", 30)

    assert first == 10
    assert same(disturbed, undisturbed)
    assert len(checkpoints.committed(tmp_path / "b")) == 5


def test_folder_of_the_saver_is_gone_on_with(tmp_path: Path) -> None:
    shutil.copytree(BUNDLES / "saver", tmp_path / "old")
    first, values = train(tmp_path / "old", 101)

    assert first == 100
    assert int(next(value for value in values if np.ndim(value) == 0 and np.issubdtype(value.dtype, np.integer))) == 101
    assert (tmp_path / "old" / "model.ckpt-100.index").exists()
    assert [name.step for name in checkpoints.committed(tmp_path / "old")] == [101]


def test_graph_it_does_not_fit_leaves_with_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BUNDLES / "saver", tmp_path / "old")

    with pytest.raises(SystemExit) as leaving:
        train(tmp_path / "old", 101, scope="tail")
    assert leaving.value.code == 65
    assert "tail/" in capsys.readouterr().err


def test_a_variable_that_is_not_finite_is_never_saved_unless_it_was_so_from_the_beginning(tmp_path: Path) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        weight, _mask = tf1.get_variable("weight", [3]), tf1.Variable([float("-inf"), 0.0], name="mask")
        spoil = weight.assign(weight * float("nan"))
        session.run(tf1.global_variables_initializer())
        run = Run(session, total_steps=9, directory=tmp_path, interval="1 steps")
        with pytest.raises(SystemExit) as leaving, run:
            for step in run.steps():
                if step == 2:
                    session.run(spoil)
                run.step_done(loss=1.0)

    assert leaving.value.code == 80
    assert [name.step for name in checkpoints.committed(tmp_path)] == [2, 1]
