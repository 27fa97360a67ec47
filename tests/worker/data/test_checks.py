"""What of data and random operations would not resume exactly is named at the first step, and nothing else is."""

import gc
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.random import permutation

import worker
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, Go
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.state import dataset_parts, random_operations

pytestmark = pytest.mark.tensorflow
Dataset = tf.data.Dataset
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    tf.random.set_seed(1)
    dataset_parts._made.clear()


@pytest.fixture
def fresh_operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random operations that are exact, as in a process that has begun no loop yet."""
    monkeypatch.setattr(random_operations, "_with_own_seeds", None)
    random_operations.make_exact(None)
    yield
    random_operations._generators = None


def messages(
    loop: Callable[[worker.Run], None],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Any = None,
    **settings: Any,
) -> list[str]:
    """What is named at the first step of a run around `loop`."""
    capsys.readouterr()
    with worker.Run(checkpoint or tf.train.Checkpoint(count=tf.Variable(0)), directory=folder, **settings) as run:
        loop(run)
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("stepkeeper: ") for line in lines if "cannot" in line or "do not include" in line]


def reading(data: Any) -> Callable[[worker.Run], None]:
    def loop(run: worker.Run) -> None:
        for _ in run.batches(data):
            run.step_done()

    return loop


def unseeded(make: Callable[[], Any]) -> Any:
    """The dataset as a process makes it that sets no global seed."""
    tf.random.set_seed(None)
    found = make()
    tf.random.set_seed(1)
    return found


def numbers() -> Any:
    return Dataset.range(6)


def global_numpy() -> Any:
    for _ in range(3):
        yield np.random.rand()


def global_python() -> Any:
    for _ in range(3):
        yield random.random()


def imported() -> Any:
    yield from permutation(3).astype(float)


def seeded_itself() -> Any:
    np.random.seed(3)
    yield np.random.rand()


def generator_inside() -> Any:
    yield np.random.default_rng(1).random()


def generated(function: Callable[[], Any]) -> Any:
    return Dataset.from_generator(function, output_signature=tf.TensorSpec([], tf.float64))


def flat_map_of_shuffled() -> Any:
    part = numbers().shuffle(6)
    return numbers().flat_map(lambda number: part)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "shuffle without seed": (
        lambda: unseeded(lambda: numbers().shuffle(5)),
        r"the order of Dataset\.shuffle\(5\), which has no seed",
    ),
    "fixed shuffle without seed": (
        lambda: unseeded(lambda: numbers().shuffle(5, reshuffle_each_iteration=False).batch(2)),
        r"which has no seed; set determ",
    ),
    "random without seed": (
        lambda: unseeded(lambda: Dataset.random().take(3)),
        r"Dataset\.random\(\), which has no seed",
    ),
    "function without seed": (
        lambda: unseeded(lambda: lambda epoch: unseeded(lambda: numbers().shuffle(5))),
        "no seed",
    ),
    "distributed": (
        lambda: tf.distribute.get_strategy().experimental_distribute_dataset(unseeded(lambda: numbers().shuffle(5))),
        "no seed",
    ),
    "NumPy's generator": (
        lambda: generated(global_numpy),
        rf"global_numpy \(.*{HERE}:\d+\) draws from numpy\.random\.rand",
    ),
    "Python's generator": (lambda: generated(global_python), r"draws from random\.random,"),
    "imported by name": (lambda: generated(imported), r"draws from numpy\.random\.permutation"),
    "in a map": (
        lambda: numbers().map(lambda number: tf.numpy_function(np.random.rand, [], tf.float64)),
        r"numpy\.random\.rand",
    ),
    "in a load function": (
        lambda: worker.Examples(
            count=6, load=lambda index: tf.numpy_function(np.random.rand, [], tf.float64), batch_size=1
        ),
        r"numpy\.random\.rand",
    ),
    "shuffle in a function": (flat_map_of_shuffled, r"Dataset\.shuffle\(6\), which a function of the dataset reads"),
    "part of a repeated shuffle that is read ahead": (
        lambda: numbers().shuffle(6).repeat().prefetch(2).take(8),
        "in later passes",
    ),
}
GOOD: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: numbers().shuffle(6).batch(2),
    "shuffle with a seed": lambda: unseeded(lambda: numbers().shuffle(6, seed=1)),
    "a cache before the shuffle": lambda: numbers().cache().shuffle(2).prefetch(2),
    "noise in a map": lambda: numbers().map(lambda number: tf.random.uniform([])).batch(2),
    "repeat": lambda: numbers().shuffle(6).repeat(2).batch(2),
    "part of a repeated shuffle": lambda: numbers().shuffle(6).repeat().batch(2).take(4),
    "seeded generators": lambda: generated(seeded_itself).concatenate(generated(generator_inside)),
    "examples": training.data,
}


@pytest.mark.parametrize(("make", "expected"), BAD.values(), ids=BAD.keys())
def test_randomness_that_can_not_be_repeated_is_named(
    make: Callable[[], Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = messages(reading(make()), tmp_path, capsys)

    assert found.startswith("cannot resume exactly: ")
    assert re.search(expected, found)


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_data_that_resume_exactly_are_not_named(
    make: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert messages(reading(make()), tmp_path, capsys) == []


def test_single_pass_over_part_of_a_repeated_shuffle_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert messages(reading(numbers().shuffle(6).repeat().take(8)), tmp_path, capsys, total_steps=8) == []


def epochs_of_three(data: Any, count: int) -> Callable[[worker.Run], None]:
    """A loop whose epochs take the first batches of an endless dataset."""

    def loop(run: worker.Run) -> None:
        for _epoch in run.epochs(count):
            batches = iter(run.batches(data))
            for _ in range(run.batch, 3):
                next(batches)
                run.step_done()

    return loop


@pytest.mark.parametrize(
    ("make", "count", "expected"),
    [
        (lambda: numbers().shuffle(6).repeat(), 2, ["the order of Dataset.shuffle(6) in later passes"]),
        (lambda: numbers().shuffle(6).repeat(), 1, []),
        (lambda: numbers().repeat().shuffle(6), 2, []),
    ],
    ids=["in several epochs", "in one epoch", "shuffled after the repeat"],
)
def test_passes_over_endless_data_that_epochs_begin_anew_are_named(
    make: Callable[[], Any], count: int, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = messages(epochs_of_three(make(), count), tmp_path, capsys)

    assert [text.partition("exactly: ")[2].partition(":")[0] for text in found] == expected


def test_loop_over_the_dataset_itself_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def loop(run: worker.Run) -> None:
        for _ in numbers():
            run.step_done()

    found, own = messages(loop, tmp_path, capsys)

    line = loop.__code__.co_firstlineno + 1
    assert f"from the iterator of {__file__}:{line}; read through run.batches(dataset)" in found
    assert 'write "for _ in run.batches(data):"' in own


def test_loop_over_a_distributed_dataset_is_named(
    two_replicas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def loop(run: worker.Run) -> None:
        for number, _ in enumerate(two_replicas.experimental_distribute_dataset(numbers().batch(2))):
            run.step_done(number=number)

    (found,) = messages(loop, tmp_path, capsys)

    assert f"{HERE}:{loop.__code__.co_firstlineno + 1}" in found


def test_second_iterator_of_the_loop_is_named_unless_it_is_saved_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    iterator = iter(numbers())

    def loop(run: worker.Run) -> None:
        for _ in run.batches(numbers()):
            next(iterator)
            run.step_done()

    (found,) = messages(loop, tmp_path / "named", capsys)
    assert "cannot resume exactly: what the loop reads from the iterator" in found
    del loop
    iterator = iter(numbers())
    assert messages(reading(numbers()), tmp_path / "out", capsys, leave_out=[iterator]) == []
    saved = tf.train.Checkpoint(iterator=iterator)
    assert messages(reading(numbers()), tmp_path / "saved", capsys, checkpoint=saved) == []


def test_an_iterator_that_only_itself_holds_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one that is left in the frames of an exception, until Python next collects what nobody reaches."""
    gc.disable()
    try:
        held: list[Any] = [iter(numbers())]
        held.append(held)
        del held
        assert len(dataset_parts.open_iterators()) == 1

        assert messages(reading(numbers()), tmp_path, capsys) == []
    finally:
        gc.enable()


def test_evaluation_and_a_look_at_the_data_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = numbers().shuffle(6).batch(2)

    def loop(run: worker.Run) -> None:
        next(iter(data))
        for _ in data.take(1):
            pass
        for _ in run.batches(data):
            run.step_done()

    assert messages(loop, tmp_path, capsys) == []


@tf.function
def noisy() -> Any:
    return tf.random.normal([2])


@tf.function
def outer() -> Any:
    return noisy() + tf.nn.dropout(tf.ones([2]), 0.5)


@tf.function
def sampler() -> Any:
    return tf.random.uniform([], seed=3)


def test_stateful_random_operations_are_named_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def loop(run: worker.Run) -> None:
        outer()
        run.step_done()

    (found,) = messages(loop, tmp_path, capsys)

    line = noisy.python_function.__code__.co_firstlineno + 2
    assert f"RandomStandardNormal at {__file__}:{line}" in found
    assert f"RandomUniform at {__file__}:{line + 5}" in found
    assert "set deterministic = true" in found


def test_random_operations_that_draw_from_saved_generators_are_not_named(
    two_replicas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_operations.make_exact(two_replicas)
    tf.random.set_seed(1)
    step = tf.function(lambda: two_replicas.run(lambda: tf.random.normal([2])) or tf.random.uniform([]))

    def loop(run: worker.Run) -> None:
        step()
        run.step_done()

    def with_seed(run: worker.Run) -> None:
        sampler()
        run.step_done()

    try:
        assert messages(loop, tmp_path / "one", capsys) == []
        (found,) = messages(with_seed, tmp_path / "other", capsys)
        assert "operations of tf.random without seed= are exact already" in found
    finally:
        random_operations._generators = None


@pytest.mark.parametrize("where", ["in the step", "behind an epoch", "before the loop"])
def test_draws_with_a_seed_of_their_own_are_named_where_a_restart_begins_them_anew(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], fresh_operations: None
) -> None:
    def draw() -> Any:
        return tf.random.uniform([], seed=3)

    def loop(run: worker.Run) -> None:
        if where == "before the loop":
            draw()
        for _epoch in run.epochs(2):
            for _ in run.range(2):
                tf.random.uniform([])
                if where == "in the step":
                    draw()
                run.step_done()
            if where == "behind an epoch":
                draw()

    found = messages(loop, tmp_path, capsys)

    place = f"random_uniform at {__file__}:{draw.__code__.co_firstlineno + 1}, which has a seed of its own"
    assert [place in text for text in found] == ([] if where == "before the loop" else [True])


def test_attribute_with_the_name_of_a_dataset_of_the_module_is_no_use_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = numbers().shuffle(6, seed=1).map(lambda number: number + tf.constant(1, tf.int64).shape.rank)
    monkeypatch.setitem(globals(), "shape", found)

    assert messages(reading(found), tmp_path, capsys) == []


def test_strict_ends_training_at_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        messages(reading(unseeded(lambda: numbers().shuffle(5))), tmp_path, capsys, strict=True)

    assert leaving.value.code == 70


def test_deterministic_job_that_never_asks_for_its_strategy_is_named(
    daemon: DaemonEnd, begin: Callable[[Launch], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path, deterministic=True))
    daemon.send(Go(1, restore=None))

    with worker.Run(tf.train.Checkpoint(count=tf.Variable(0))) as run:
        run.step_done()

    assert "has no effect before worker.strategy()" in " ".join(daemon.wait_for(Committed).left_out)


def test_noise_in_a_model_of_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Noisy(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = tf.keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs) + tf.random.normal([1])

    model = Noisy()
    model(tf.zeros([1, 2]))
    model.compile("sgd", "mse")
    data = worker.Examples(tf.zeros([4, 2]), tf.zeros([4, 1]), batch_size=2)
    worker.keras.fit(model, data, epochs=1, directory=tmp_path, verbose=0)

    assert f"RandomStandardNormal at {__file__}" in capsys.readouterr().err


def anew_in_each_epoch(make: Callable[[int], Any], given: Callable[[Any, int], Any]) -> Callable[[worker.Run], None]:
    def loop(run: worker.Run) -> None:
        for epoch in run.epochs(2):
            for _ in run.batches(given(make, epoch)):
                run.step_done()

    return loop


def test_dataset_that_each_epoch_makes_anew_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shuffled(epoch: int) -> Any:
        return Dataset.range(6).shuffle(5).batch(2)

    def seeded(epoch: int) -> Any:
        return Dataset.range(6).shuffle(5, seed=epoch).batch(2)

    def ordered(epoch: int) -> Any:
        return Dataset.range(6).batch(2)

    once = shuffled(0)
    [text] = messages(anew_in_each_epoch(shuffled, lambda make, epoch: make(epoch)), tmp_path / "anew", capsys)
    assert "the order of Dataset.shuffle(5), which each epoch makes anew; give run.batches the function" in text
    for number, (make, given) in enumerate(
        (
            (shuffled, lambda make, epoch: make),
            (shuffled, lambda make, epoch: once),
            (seeded, lambda make, epoch: make(epoch)),
            (ordered, lambda make, epoch: make(epoch)),
        )
    ):
        assert messages(anew_in_each_epoch(make, given), tmp_path / str(number), capsys) == [], number


def while_epochs(make: Callable[[int], Any], given: Callable[[Any, int], Any]) -> Callable[[worker.Run], None]:
    def loop(run: worker.Run) -> None:
        while run.epoch < 3:
            for _ in run.batches(given(make, run.epoch)):
                run.step_done()

    return loop


def test_dataset_that_each_pass_of_a_while_loop_makes_anew_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shuffled(epoch: int) -> Any:
        return Dataset.range(6).shuffle(5).batch(2)

    once = shuffled(0)
    [text] = messages(while_epochs(shuffled, lambda make, epoch: make(epoch)), tmp_path / "anew", capsys)
    assert "the order of Dataset.shuffle(5), which each epoch makes anew; give run.batches the function" in text
    assert messages(while_epochs(shuffled, lambda make, epoch: once), tmp_path / "once", capsys) == []
    assert messages(while_epochs(shuffled, lambda make, epoch: make), tmp_path / "function", capsys) == []


def test_order_that_a_compiled_loop_over_a_shuffled_dataset_reads_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shuffled, ordered = numbers().shuffle(6), numbers()

    @tf.function
    def total(data: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for number in data:
            result += number
        return result

    def loop_over(data: Any) -> Callable[[worker.Run], None]:
        def loop(run: worker.Run) -> None:
            for _ in run.epochs(1):
                run.step_done(total=total(data))

        return loop

    named = messages(loop_over(shuffled), tmp_path / "shuffled", capsys)

    assert len(named) == 1
    assert f"the order of Dataset.shuffle(6) in later passes, which {__file__}" in named[0]
    assert messages(loop_over(ordered), tmp_path / "ordered", capsys) == []
    assert messages(loop_over(shuffled), tmp_path / "out", capsys, leave_out=[shuffled]) == []


def test_generator_that_each_step_makes_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of_the_step(run: worker.Run) -> None:
        for step in run.range(2):
            generator = np.random.default_rng(step)
            run.step_done(drawn=generator.random())

    def of_the_epoch(run: worker.Run) -> None:
        for epoch in run.epochs(1):
            generator = np.random.default_rng(epoch)
            for _ in run.range(2):
                run.step_done(drawn=generator.random())

    assert messages(of_the_step, tmp_path / "step", capsys) == []
    assert "numpy Generator (reached as generator)" in messages(of_the_epoch, tmp_path / "epoch", capsys)[0]
