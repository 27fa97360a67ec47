"""Loops that would not resume, and calls that make no sense, are errors in the words of the script."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    """An attempt of its own for each test, because one reports only one failure."""
    begin(Launch())


def data() -> Any:
    return tf.data.Dataset.range(4).batch(2)


def run_in(folder: Path, **settings: Any) -> worker.Run:
    return worker.Run(tf.train.Checkpoint(count=tf.Variable(0)), directory=folder, **settings)


def ranged(run: worker.Run) -> None:
    for epoch in range(3):  # noqa: B007
        for _ in run.batches(data()):
            run.step_done()


def from_one(run: worker.Run) -> None:
    epochs = 3
    for number in range(1, epochs + 1):  # noqa: B007
        for _, _batch in enumerate(run.batches(data())):
            run.step_done()


def counted(run: worker.Run) -> None:
    epoch = 0
    while epoch < 3:
        for _ in run.batches(data()):
            run.step_done()
        epoch += 1


def in_a_function(run: worker.Run) -> None:
    def train_epoch() -> None:
        for _ in run.batches(data()):
            run.step_done()

    for epoch in range(3):  # noqa: B007
        train_epoch()


@pytest.mark.parametrize(
    ("loop", "line", "instead"),
    [
        (ranged, "for epoch in range(3):", "for epoch in run.epochs(3):"),
        (from_one, "for number in range(1, epochs + 1):", "for number in run.epochs(epochs): number += 1"),
        (counted, "while epoch < 3:", "for epoch in run.epochs(n):"),
        (in_a_function, "for epoch in range(3):", "for epoch in run.epochs(3):"),
    ],
)
@pytest.mark.parametrize("total_steps", [None, 6])
def test_loop_over_epochs_that_begins_again_is_refused_with_the_line_to_write(
    loop: Callable[[worker.Run], None], line: str, instead: str, total_steps: int | None, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError) as raised, run_in(tmp_path, total_steps=total_steps) as run:
        loop(run)

    assert line in str(raised.value)
    assert f'write "{instead}"' in str(raised.value)
    assert "test_misuse.py:" in str(raised.value)


def from_the_run(run: worker.Run) -> None:
    start = run.epoch
    for _epoch in range(start, 3):
        for _ in run.batches(data()):
            run.step_done()


def while_steps(run: worker.Run) -> None:
    while run.step < 6:
        for _ in run.batches(data()):
            run.step_done()


def until_break(run: worker.Run) -> None:
    while True:
        if run.epoch == 3:
            break
        for _ in run.batches(data()):
            run.step_done()


def made_before(run: worker.Run) -> None:
    epochs = run.epochs(3)
    for _epoch in epochs:
        for _ in run.batches(data()):
            run.step_done()


def given_a_start(run: worker.Run) -> None:
    def train(first: int, last: int) -> None:
        for _epoch in range(first, last):
            for _ in run.batches(data()):
                run.step_done()

    train(run.epoch, 3)


@pytest.mark.parametrize("loop", [from_the_run, while_steps, until_break, made_before, given_a_start])
def test_loop_that_asks_the_run_where_to_begin_is_not_refused(
    loop: Callable[[worker.Run], None], tmp_path: Path
) -> None:
    for _sweep in range(2):  # a loop around the `with` is not the run's
        with run_in(tmp_path / str(_sweep)) as run:
            loop(run)

        assert run.step == 6


def test_run_that_was_not_entered_says_so_at_its_first_use(tmp_path: Path) -> None:
    run = run_in(tmp_path)

    for use in (run.step_done, lambda: run.batches(data()), lambda: run.epochs(3), lambda: run.epoch):
        with pytest.raises(RuntimeError, match=r'write "with worker\.Run\(\.\.\.\) as run:"'):
            use()


def test_epoch_without_a_step_is_an_error_at_its_end(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"epoch 0 ended and run\.step_done was never called"),
        run_in(tmp_path) as run,
    ):
        for _ in run.batches(data()):
            pass


def break_behind_the_step(run: worker.Run) -> None:
    for _ in run.epochs(2):
        for batch in run.batches(data()):
            run.step_done()
            if int(batch[0]) == 0:
                break


def sliced(run: worker.Run) -> None:
    for _ in run.epochs(2):
        for _batch in itertools.islice(run.batches(data()), 1):
            run.step_done()


def zipped_with_a_range(run: worker.Run) -> None:
    for _ in run.epochs(2):
        for _, _batch in zip(range(1), run.batches(data()), strict=False):
            run.step_done()


@pytest.mark.parametrize(
    ("loop", "name"), [(break_behind_the_step, "break"), (sliced, "islice"), (zipped_with_a_range, "zip")]
)
def test_end_of_an_epoch_before_that_of_its_data_is_named(
    loop: Callable[[worker.Run], None], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as run:
        loop(run)

    assert f"cannot resume exactly: {name} (test_misuse.py:" in capsys.readouterr().err


def break_before_the_step(run: worker.Run) -> None:
    for _ in run.epochs(2):
        for batch in run.batches(data()):
            if int(batch[0]) == 2:
                break
            run.step_done()


def break_at_the_end(run: worker.Run) -> None:
    for _ in run.batches(data()):
        run.step_done()
        if run.reached:
            break


def numbered(run: worker.Run) -> None:
    for _, _batch in zip(range(run.batch, 9), run.batches(data()), strict=False):
        run.step_done()


@pytest.mark.parametrize("loop", [break_before_the_step, break_at_the_end, numbered])
def test_end_that_a_restart_comes_to_again_is_not_named(
    loop: Callable[[worker.Run], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as run:
        loop(run)

    assert "cannot resume exactly" not in capsys.readouterr().err


def test_two_loops_over_batches_side_by_side_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot read two run\.batches side by side"), run_in(tmp_path) as run:
        for _ in run.epochs(2):
            for _one, _other in zip(run.batches(data()), run.batches(data()), strict=True):
                run.step_done()


def test_second_dataset_in_an_epoch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot read a second time in epoch 0"), run_in(tmp_path) as run:
        for _ in run.epochs(2):
            for _ in run.batches(data()):
                run.step_done()
            for _ in run.batches(data()):
                run.step_done()


def test_early_end_of_an_epoch_leads_to_the_next_one(tmp_path: Path) -> None:
    seen = []
    with run_in(tmp_path) as run:
        for epoch in run.epochs(2):
            for batch in itertools.islice(run.batches(data()), 1):
                seen.append((epoch, batch.numpy().tolist()))
                run.step_done()

    assert seen == [(0, [0, 1]), (1, [0, 1])]


def test_total_steps_end_the_epochs(tmp_path: Path) -> None:
    seen = []
    with run_in(tmp_path, total_steps=3) as run:
        for epoch in run.epochs(9):
            for _ in run.batches(data()):
                run.step_done()
            seen.append((epoch, run.step))

    assert seen == [(0, 2), (1, 3)]


def test_value_that_the_loop_carries_ends_a_strict_training_at_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = 0.0
    with pytest.raises(SystemExit) as leaving, run_in(tmp_path, strict=True) as run:
        for batch in run.batches(data()):
            best = max(best, float(batch[0]))
            run.step_done()

    assert leaving.value.code == 70
    assert run.step == 1
    said = capsys.readouterr().err
    assert "cannot resume exactly: best (test_misuse.py:" in said
    assert 'keep it in run.state["best"]' in said


def test_container_that_a_function_of_the_script_changes_is_named_at_the_second_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[float] = []

    def remember(value: float) -> None:
        seen.append(value)

    with run_in(tmp_path) as run:
        for batch in run.batches(data()):
            remember(float(batch[0]))
            run.step_done()

    assert "cannot resume exactly: seen (changed by a step)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"total_steps": "10"}, "total_steps=10_000"),
        ({"total_steps": -1}, "finite number of steps"),
        ({"interval": 500}, '"500 steps"'),
        ({"generators": np.random.default_rng(1)}, r"generators=\[rng\]"),
        ({"leave_out": "best"}, "give a list"),
        ({"state": ["best"]}, 'give a dict such as {"best": 0.0}'),
        ({"state": {"best": object()}}, r"run\.state\['best'\] \(a object\)"),
    ],
)
def test_argument_of_a_wrong_type_is_named_with_what_to_write(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run_in(tmp_path, **given)


def test_numbers_without_names_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"run\.step_done\(loss=loss\)"), run_in(tmp_path) as run:
        run.step_done(0.5)


def test_value_that_cannot_be_kept_is_an_error_at_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"run\.state\['file'\]"), run_in(tmp_path) as run:
        run.state["file"] = iter(())
        run.step_done()


class Sampler:
    """An object that gives and takes its own state."""

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("assigned", ["before", "after"])
def test_object_with_a_state_of_its_own_is_restored(assigned: str, tmp_path: Path) -> None:
    for place in (0, 5):
        sampler = Sampler()
        with run_in(tmp_path, state={"sampler": sampler} if assigned == "before" else None) as run:
            if assigned == "after":
                run.state["sampler"] = sampler
            assert sampler.place == place
            sampler.place = 5
            run.step_done()


def model_of(strategy: Any) -> Any:
    with strategy.scope():
        return tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])


def test_strategy_left_out_is_an_error(two_replicas: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"made for 2 replicas.*strategy=strategy"):
        worker.Run(tf.train.Checkpoint(model=model_of(two_replicas)), directory=tmp_path).__enter__()


def test_model_made_outside_the_scope_is_an_error_whatever_its_optimizer(two_replicas: Any, tmp_path: Path) -> None:
    model = model_of(tf.distribute.get_strategy())
    with two_replicas.scope():
        optimizer = tf.keras.optimizers.SGD()
        optimizer.build(model_of(two_replicas).trainable_variables)

    with pytest.raises(ValueError, match=r"outside strategy\.scope\(\)"):
        worker.Run(
            tf.train.Checkpoint(model=model, optimizer=optimizer), strategy=two_replicas, directory=tmp_path
        ).__enter__()


def test_per_replica_variable_without_aggregation_is_an_error(two_replicas: Any, tmp_path: Path) -> None:
    with two_replicas.scope():
        counted = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ, name="counted")

    with pytest.raises(ValueError, match=r"cannot save counted:0: .*aggregation=tf\.VariableAggregation\.SUM"):
        worker.Run(tf.train.Checkpoint(counted=counted), strategy=two_replicas, directory=tmp_path).__enter__()


def test_variable_made_outside_the_scope_needs_no_aggregation(two_replicas: Any, tmp_path: Path) -> None:
    counted = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ)

    with worker.Run(tf.train.Checkpoint(counted=counted), strategy=two_replicas, directory=tmp_path) as run:
        run.step_done()

    assert list(tmp_path.glob("step-*"))


def test_empty_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model=model, optimizer=optimizer"):
        worker.Run(tf.train.Checkpoint(), directory=tmp_path).__enter__()


@pytest.mark.parametrize("compiled", [True, False])
def test_step_that_is_not_run_on_the_replicas_is_told_of_strategy_run(
    compiled: bool, two_replicas: Any, tmp_path: Path
) -> None:
    model = model_of(two_replicas)
    step = tf.function(model.__call__) if compiled else model
    tracked = tf.train.Checkpoint(model=model)

    with pytest.raises(ValueError) as raised, worker.Run(tracked, strategy=two_replicas, directory=tmp_path) as run:
        for batch in run.batches(tf.data.Dataset.from_tensors(np.ones((4, 3))).repeat(2)):
            run.step_done(loss=step(batch))

    assert "strategy.run(train_step, args=(batch,))" in raised.value.__notes__[0]


def test_generator_that_only_makes_the_data_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = np.random.default_rng(1)
    given = tf.data.Dataset.from_tensor_slices(numbers.normal(size=4)).batch(2)
    noise = np.random.default_rng(2)
    with run_in(tmp_path) as run:
        for batch in run.batches(given):
            run.step_done(loss=noise.normal() + batch[0])

    assert "numpy Generator (reached as noise)" in (said := capsys.readouterr().err)
    assert "numbers" not in said
