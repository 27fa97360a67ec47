"""A TF1-style loop resumes its counter with the same bits, also from a folder that only TF1's Saver wrote."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.wire.launch import Launch
from tests.places import BUNDLES
from worker.tf1 import Run, _SaverFiles

pytestmark = pytest.mark.tensorflow
tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _fresh_attempt(begin: Any) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def train(directory: Path, total_steps: int, fails_at: int | None = None, scope: str = "head") -> tuple[int, list[Any]]:
    """The loop whose checkpoints are tested. Returns its first step and all variables at the end."""
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
    assert len(selection.committed_checkpoints(tmp_path / "b")) == 5


@pytest.mark.parametrize("fails_at", [3, "tail", 8])
def test_epochs_of_a_session_end_with_the_same_bits(fails_at: int | str, tmp_path: Path) -> None:
    def train_epochs(folder: Path, fails_at: int | str | None = None) -> list[Any]:
        with tf1.Graph().as_default(), tf1.Session() as session:
            value, rate = tf1.get_variable("value", initializer=0.0), tf1.get_variable("rate", initializer=1.0)
            step_op, decay = tf1.assign_add(value, rate), tf1.assign(rate, rate * 0.5)
            session.run(tf1.global_variables_initializer())
            with Run(session, directory=folder, interval="1 steps") as run:
                for epoch in run.epochs(3):
                    for step in run.steps(5):
                        if step == fails_at:
                            raise LookupError("on purpose")
                        session.run(step_op)
                        run.step_done()
                    if fails_at == "tail" and epoch == 1:
                        raise LookupError("on purpose")
                    session.run(decay)
            return [run.step, *session.run([value, rate])]

    with pytest.raises(LookupError):
        train_epochs(tmp_path, fails_at)

    assert train_epochs(tmp_path) == [15, 5 + 2.5 + 1.25, 0.125]


@pytest.mark.parametrize("fails_at", [1, 2, "tail"])
def test_episodes_of_a_session_end_with_the_same_bits(fails_at: int | str, tmp_path: Path) -> None:
    def train_episodes(folder: Path, fails_at: int | str | None = None) -> list[Any]:
        with tf1.Graph().as_default(), tf1.Session() as session:
            value = tf1.get_variable("value", initializer=1.0)
            double, increase = tf1.assign(value, value * 2.0), tf1.assign_add(value, 1.0)
            session.run(tf1.global_variables_initializer())
            with Run(session, directory=folder, interval="1 steps") as run:
                for episode in run.epochs(4):
                    session.run(double)
                    run.step_done()
                    if run.step == fails_at:
                        raise LookupError("on purpose")
                    session.run(increase)
                    if fails_at == "tail" and episode == 2:
                        raise LookupError("on purpose")
            return [run.step, session.run(value)]

    with pytest.raises(LookupError):
        train_episodes(tmp_path, fails_at)

    assert train_episodes(tmp_path) == [4, 31.0]


def test_steps_without_an_end_are_refused(tmp_path: Path) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("value", initializer=0.0)
        session.run(tf1.global_variables_initializer())
        with Run(session, directory=tmp_path) as run:
            with pytest.raises(TypeError, match=r"total_steps=, or write run\.steps\(n\)"):
                run.steps()
            for _ in run.epochs(1):
                with pytest.raises(RuntimeError, match=r"inside of run\.epochs write run\.steps\(n\)"):
                    run.steps()


def test_training_continues_from_a_folder_of_the_saver(tmp_path: Path) -> None:
    shutil.copytree(BUNDLES / "saver", tmp_path / "old")
    first, values = train(tmp_path / "old", 101)

    assert first == 100
    assert int(next(value for value in values if np.ndim(value) == 0 and np.issubdtype(value.dtype, np.integer))) == 101
    assert (tmp_path / "old" / "model.ckpt-100.index").exists()
    assert [name.step for name in selection.committed_checkpoints(tmp_path / "old")] == [101]


def test_checkpoint_of_another_graph_exits_with_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BUNDLES / "saver", tmp_path / "old")

    with pytest.raises(SystemExit) as leaving:
        train(tmp_path / "old", 101, scope="tail")
    assert leaving.value.code == 65
    assert "tail/" in capsys.readouterr().err


def test_variable_of_another_dtype_is_named_and_exits_with_65(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dtype in (tf.float32, tf.float64):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.get_variable("weight", [2], dtype)
            session.run(tf.compat.v1.global_variables_initializer())
            try:
                with Run(session, total_steps=1, directory=tmp_path) as run:
                    for _ in run.steps():
                        run.step_done()
            except SystemExit as left:
                assert (dtype, left.code) == (tf.float64, 65)

    assert "weight is float32 [2] in the checkpoint and float64 [2] in the program" in capsys.readouterr().err


@pytest.mark.parametrize("resource", [True, False])
def test_copy_for_a_background_save_equals_what_the_saver_writes(resource: bool, tmp_path: Path) -> None:
    now, copied = tmp_path / "now", tmp_path / "copied"
    now.mkdir()
    copied.mkdir()
    with tf1.Graph().as_default(), tf1.Session() as session:
        for name, shape in (("b/kernel", [300, 300]), ("a", []), ("c", [3])):
            tf1.get_variable(name, initializer=tf1.random_normal(shape, seed=1), use_resource=resource)
        tf1.get_variable("words", initializer=tf.constant(["one", "two"]), use_resource=resource)
        numbers = [variable for variable in tf1.global_variables() if variable.dtype.base_dtype == tf.float32]
        step = tf.group(*(tf1.assign_add(number, tf.ones_like(number)) for number in numbers))
        session.run(tf1.global_variables_initializer())
        files = _SaverFiles(session)
        files.write(now)
        later = files.copied()
        session.run(step)
        trained = session.run(numbers)
        later(copied)

    for file in now.iterdir():
        assert (copied / file.name).read_bytes() == file.read_bytes()
    kept = tf.train.load_checkpoint(str(copied / layout.PREFIX))
    assert not np.array_equal(kept.get_tensor("b/kernel"), trained[0]), "else the comparison would prove nothing"


def test_partitioned_variables_are_saved_while_training_waits(tmp_path: Path) -> None:
    def run(steps: int) -> list[Any]:
        with tf1.Graph().as_default(), tf1.Session() as session:
            halves = tf1.fixed_size_partitioner(2)
            tf1.get_variable("table", [6, 2], initializer=tf1.zeros_initializer(), partitioner=halves)
            step = tf.group(*(tf1.assign_add(variable, tf.ones_like(variable)) for variable in tf1.global_variables()))
            session.run(tf1.global_variables_initializer())
            assert _SaverFiles(session).copied() is None
            with Run(session, total_steps=steps, directory=tmp_path, interval="1 steps") as run:
                for _ in run.steps():
                    session.run(step)
                    run.step_done()
            return session.run(tf1.global_variables())

    run(2)

    assert [each.tolist() for each in run(3)] == [[[3.0, 3.0]] * 3] * 2


def test_manifest_says_whether_operations_are_deterministic_and_on_how_many_threads(
    begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a call of `prepare`; tests/system/test_killing.py tests that `prepare` works."""
    begin(Launch(checkpoint_dir=tmp_path, deterministic=True))
    with (
        tf1.Graph().as_default(),
        tf1.Session(config=tf1.ConfigProto(intra_op_parallelism_threads=3)) as session,
    ):
        tf1.get_variable("a", [])
        session.run(tf1.global_variables_initializer())
        with Run(session, total_steps=1) as run:
            run.step_done()
    found = manifest.read_manifest(tmp_path / str(selection.committed_checkpoints(tmp_path)[0])).topology

    assert (found["deterministic"], found["intra_op_threads"]) == (False, 3)
    assert "call prepare() of worker.tf1 before it builds anything" in capsys.readouterr().err


def test_variable_that_became_not_finite_is_never_saved(tmp_path: Path) -> None:
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
    assert [name.step for name in selection.committed_checkpoints(tmp_path)] == [2, 1]


@pytest.fixture
def failing() -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """A session, its files, and operations that fail in different ways.

    Of the two for which there is no memory TensorFlow tries one again for ten seconds, and the other not.
    """
    with tf1.Graph().as_default(), tf1.Session() as session:
        size = tf1.get_variable("size", [], tf.int64, tf1.constant_initializer(1 << 48, tf.int64))
        unset = tf1.get_variable("unset", [3], use_resource=True)
        session.run(size.initializer)
        yield (
            session,
            _SaverFiles(session),
            {
                "memory": tf1.fill([size], 1.0),
                "memory at once": tf1.py_func(_raise_memory_error, [], tf.float32),
                "other": unset.read_value(),
            },
        )


def _raise_memory_error() -> None:
    raise MemoryError("told to")


@pytest.mark.parametrize(
    ("of", "what", "expected"),
    [
        ("check", "memory at once", MemoryError),
        ("check", "other", OSError),
        pytest.param("copy", "memory", MemoryError, marks=pytest.mark.slow),  # TensorFlow tries for ten seconds
        ("copy", "other", OSError),
    ],
)
def test_other_errors_are_not_reported_as_a_full_disk(
    of: str, what: str, expected: type[Exception], failing: Any, tmp_path: Path
) -> None:
    _, files, ways = failing
    files._finite = {"weight": ways[what]} if of == "check" else {}
    files._copier._variables = [ways[what]]

    with pytest.raises(expected) as refused:
        files.copied()
    assert getattr(refused.value, "errno", None) is None
    if of == "check":
        with pytest.raises(expected) as refused:
            files.write(tmp_path)
        assert getattr(refused.value, "errno", None) is None


@pytest.mark.integration
def test_full_disk_is_reported_as_one(small_disk: Path) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("large", [1 << 18])
        session.run(tf1.global_variables_initializer())
        with pytest.raises(OSError, match="No space left") as refused:
            _SaverFiles(session).write(small_disk)

    assert refused.value.errno == errno.ENOSPC


def test_a_run_that_was_not_entered_is_called_as_scripts_call_it(failing: Any, tmp_path: Path) -> None:
    session, _, _ = failing
    run = Run(session, total_steps=1, directory=tmp_path)

    with pytest.raises(RuntimeError, match=r'write "with worker\.tf1\.Run\(\.\.\.\) as run:"'):
        run.step_done()


def test_a_run_that_can_not_begin_leaves_the_directory_free(failing: Any, tmp_path: Path) -> None:
    session, _, _ = failing
    run = Run(session, total_steps=1, directory=tmp_path)
    with pytest.raises(tf.errors.FailedPreconditionError), run:
        pass
    session.run(tf1.global_variables_initializer())

    with Run(session, total_steps=1, directory=tmp_path) as run:
        run.step_done()
