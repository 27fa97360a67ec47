"""`fit` takes what `model.fit` takes: interrupted anywhere, it ends with the bits of an undisturbed run."""

import itertools
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol.wire.launch import Interval, Launch
from tests.worker.keras.test_fit import StopsAt, same_weights, untuned
from tests.worker.run.test_multiworker import CHILDREN, Start, read_until, start
from worker.keras import fit
from worker.keras.data.arrays import ArrayData
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow
NIGHTLY = pytest.mark.nightly  # the same with more data, or at more places
__all__ = ["start"]
COUNT = 22  # examples: the last of 6 batches has 2
X = np.random.default_rng(0).normal(size=(COUNT, 3)).astype("float32")
Y = np.arange(COUNT, dtype="float32")


@pytest.fixture(autouse=True)
def _new_attempt(begin: Callable[[Launch], None]) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def regression(**options: Any) -> Any:
    """A model whose weights depend on the order of its examples."""
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(1e-2), **{"loss": "mse", "metrics": ["mae"], **options})
    return model


class Sequence(tf.keras.utils.PyDataset):  # type: ignore[misc]
    """As in tutorials: shuffles its rows at the end of each epoch, with NumPy's global generator."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows = np.arange(COUNT)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = self.rows[index * 4 : index * 4 + 4]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.rows)


class Augmenting(Sequence):
    """Draws random numbers for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape).astype("float32"), y + self.generator.random(y.shape, "float32")

    def on_epoch_end(self) -> None:
        pass


def noisy() -> Iterator[Any]:
    """A finite generator of one epoch, with noise of the global generator."""
    for first in range(0, COUNT, 4):
        yield X[first : first + 4] + np.random.normal(size=3).astype("float32"), Y[first : first + 4]


def endless() -> Iterator[Any]:
    numbers = np.random.default_rng(3)
    while True:
        rows = numbers.integers(0, COUNT, 4)
        yield X[rows], Y[rows]


def pairs() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 4},
    "arrays in order": lambda: {"x": X, "y": Y, "batch_size": 4, "shuffle": False},
    "tensors and weights": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "sample_weight": Y / 9, "batch_size": 4},
    "arrays split": lambda: {"x": X, "y": Y, "batch_size": 3, "validation_split": 0.3},
    "class weights": lambda: {"x": X, "y": Y % 2, "batch_size": 4, "class_weight": {0: 1.0, 1: 3.0}},
    "arrays in steps": lambda: {"x": X, "y": Y, "batch_size": 4, "steps_per_epoch": 4},
    "endless": lambda: {"x": pairs().shuffle(9).repeat().batch(4).with_options(untuned()), "steps_per_epoch": 6},
    "dataset in steps": lambda: {"x": pairs().shuffle(9).batch(4).with_options(untuned()), "steps_per_epoch": 3},
    "shuffled": lambda: {"x": pairs().shuffle(9).batch(4).with_options(untuned())},
    "weighed dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y % 2)).shuffle(9).batch(4).with_options(untuned()),
        "class_weight": {0: 1.0, 1: 3.0},
    },
    "PyDataset": lambda: {"x": Sequence()},
    "PyDataset with workers": lambda: {"x": Sequence(workers=2, max_queue_size=3)},
    "PyDataset with noise": lambda: {"x": Augmenting(), "shuffle": False},
    "validated on a shuffled dataset": lambda: {
        **{"x": X, "y": Y, "batch_size": 4, "validation_steps": 2},
        "validation_data": pairs().shuffle(22).batch(4).with_options(untuned()),
    },
    "validated on a PyDataset": lambda: {
        **{"x": X, "y": Y, "batch_size": 4, "validation_steps": 2},
        "validation_data": Sequence(),
    },
    "generator": lambda: {"x": noisy},
    "endless generator": lambda: {"x": endless, "steps_per_epoch": 6},
    "generator object": lambda: {"x": endless(), "steps_per_epoch": 6},
}


class Staged(Sequence):
    """Changes what can't be saved, and what no restart could make again."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = itertools.cycle([0.0, 0.5, 1.0])
        self.stages: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x, y + len(self.stages)

    def on_epoch_end(self) -> None:
        next(self.levels)
        self.stages.append(defaultdict(lambda: 0.0))


def test_attributes_of_a_dataset_that_would_not_come_back_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, lambda: {"x": Staged()})

    said = capsys.readouterr().err
    assert "cannot resume exactly: Staged.levels (" in said
    assert said.count("do not include Staged.stages[0] (only the script can make a defaultdict,") == 1


class FailsAfter(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Fails in the tail of an epoch: in its validation, or at its end."""

    def __init__(self, epoch: int, where: str) -> None:
        super().__init__()
        self.epoch = epoch
        self.where = where
        self.now = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.now = epoch

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.where == "validation" and self.now == self.epoch:
            raise LookupError("on purpose")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.where == "end" and epoch == self.epoch:
            raise LookupError("on purpose")


def trained(folder: Path, make: Callable[[], dict[str, Any]], *stops: Any, **options: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    np.random.seed(1)
    model = regression()
    given = {"validation_data": (X[:9], Y[:9]), **make(), **options}
    if "validation_split" in given:
        del given["validation_data"]
    fit(
        model,
        **{"epochs": 3, "callbacks": list(stops), "verbose": 0, "directory": folder, "interval": "1 steps", **given},
    )
    return model


SELDOM = "1000 steps"  # saves at the end alone
MIDDLE = (lambda steps: StopsAt(steps // 2),)  # in the second of three epochs
ALL_PLACES: tuple[Callable[[int], Any], ...] = (
    lambda steps: StopsAt(1), lambda steps: FailsAfter(0, "validation"), lambda steps: FailsAfter(1, "end"),
    lambda steps: StopsAt(steps - 1),
)  # fmt: skip
OFTEN = ("arrays", "PyDataset")
"""Interrupted at all places in each run of `make test`."""
ONCE = (
    "arrays split", "class weights", "endless", "PyDataset with noise", "generator", "generator object",
    "validated on a shuffled dataset",
)  # fmt: skip
"""Interrupted in their middle in each run of `make test`, without a validation unless they bring one. Each night: those
that differ from one of these in an argument, and the shuffled dataset, on which a fit is killed at other places."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "places"),
    [
        *(pytest.param(name, ALL_PLACES, id=name) for name in OFTEN),
        *(pytest.param(name, MIDDLE, id=name) for name in ONCE),
        *(pytest.param(name, ALL_PLACES, id=f"{name}, often", marks=NIGHTLY) for name in SOURCES if name not in OFTEN),
    ],
)
def test_fit_interrupted_anywhere_ends_like_an_undisturbed_one(
    name: str, places: tuple[Callable[[int], Any], ...], tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    make = SOURCES[name]
    own = {} if places is ALL_PLACES or "validation_data" in make() else {"validation_data": None}
    undisturbed = trained(tmp_path / "calm", make, interval=SELDOM, **own)
    for stop in [place(int(undisturbed.optimizer.iterations)) for place in places]:
        with pytest.raises(LookupError):
            trained(tmp_path / "rough", make, stop, **own)
        begin(Launch())
    disturbed = trained(tmp_path / "rough", make, **own)

    assert disturbed.history.history == undisturbed.history.history
    assert same_weights(disturbed, undisturbed)
    assert disturbed.history.epoch == [0, 1, 2]


class Endless(Sequence):
    """Has no end."""

    num_batches = None


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "endless dataset": (
        lambda: {"x": pairs().batch(4).repeat()},
        "without end: .* remove .repeat.., or give steps_per",
    ),
    "endless dataset of an epoch": (lambda: {"x": lambda epoch: pairs().batch(4).repeat()}, "without end"),
    "endless PyDataset": (lambda: {"x": Endless()}, "Endless without end; give steps_per_epoch="),
    "generator object": (lambda: {"x": noisy()}, "generator object noisy: it can be read only once; give the function"),
    "generator for validation": (
        lambda: {"x": X, "y": Y, "validation_data": noisy()},
        "cannot validate with a generator",
    ),
    "initial_epoch": (lambda: {"x": X, "y": Y, "initial_epoch": 1}, "initial_epoch: fit continues .* remove it"),
    "batch size of a dataset": (lambda: {"x": pairs().batch(4), "batch_size": 4}, "batch_size and a _BatchDataset"),
    "shuffle in batches": (lambda: {"x": X, "y": Y, "shuffle": "batch"}, "use shuffle=True or shuffle=False"),
    "no steps": (lambda: {"x": X, "y": Y, "steps_per_epoch": 0}, "steps_per_epoch=0; use 1 or more"),
    "no data": (dict, "without data"),
    "steps that executions do not divide": (
        lambda: {"x": pairs().batch(4).repeat(), "steps_per_epoch": 3, "steps_per_execution": 2},
        "3 steps left in the epoch and steps_per_execution=2",
    ),
    "data that end within an epoch": (
        lambda: {"x": pairs().batch(4).filter(lambda x, y: True), "steps_per_epoch": 4},
        "data ended after 2 of the 4 batches that were left of epoch 1",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_arguments_that_can_not_be_resumed_are_refused_with_a_remedy(
    make: Callable[[], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    given = make()
    model = regression(steps_per_execution=given.pop("steps_per_execution", 1))

    with pytest.raises(ValueError, match=words):
        fit(model, **{"epochs": 3, "verbose": 0, "directory": tmp_path, **given})


class DrawsInThreads(Augmenting):
    """Several threads draw random numbers, in an order that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = 2


class Unseeded(Sequence):
    """Draws from a generator that has another seed in each process."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.default_rng().normal(size=x.shape).astype("float32"), y


class Counts(Sequence):
    """Changes an attribute ahead of the step."""

    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def unseeded() -> Iterator[Any]:
    numbers = np.random.default_rng()
    while True:
        yield X[:4] + numbers.normal(size=3).astype("float32"), Y[:4]


class Harder(tf.keras.callbacks.Callback):
    """Changes with the epochs."""

    level = 1.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.level += 1.0


def scaled_by(harder: Harder) -> Iterator[Any]:
    while True:
        yield X[:4] * harder.level, Y[:4]


NAMED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "workers that draw": (
        lambda: {"x": DrawsInThreads()},
        r"random numbers of DrawsInThreads.__getitem__.*use workers=1",
    ),
    "unseeded PyDataset": (
        lambda: {"x": Unseeded()},
        r"generator without a seed in Unseeded.__getitem__; give it a seed",
    ),
    "attribute": (lambda: {"x": Counts()}, r"Counts.reads, changed by Counts.__getitem__ ahead .* Counts.on_epoch_end"),
    "unseeded generator": (
        lambda: {"x": unseeded, "steps_per_epoch": 3},
        r"batches of unseeded, which yields others when",
    ),
    "unseeded generator object": (
        lambda: {"x": unseeded(), "steps_per_epoch": 3},
        r"generator without a seed in unseeded",
    ),
    "unseeded generator expression": (
        lambda: {"x": ((X[:4] + np.random.default_rng().random(), Y[:4]) for _ in range(99)), "steps_per_epoch": 3},
        r"generator without a seed in .*<genexpr>",
    ),
    "generator that a generator expression reads": (
        lambda: {"x": ((x + 1.0, y) for x, y in unseeded()), "steps_per_epoch": 3},
        r"generator without a seed in .*<genexpr>",
    ),
    "generator object that reads a callback": (
        lambda: {"x": scaled_by(harder := Harder()), "callbacks": [harder], "steps_per_epoch": 3},
        r"what the generator scaled_by reads of harder, which training changes.*a function that makes the generator",
    ),
}


@pytest.mark.slow  # Keras' thread that reads ahead of a generator may take long to end
@pytest.mark.parametrize(("make", "words"), NAMED.values(), ids=NAMED.keys())
def test_randomness_that_does_not_come_back_is_named_at_the_first_step(
    make: Callable[[], dict[str, Any]], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        trained(tmp_path, make, strict=True, validation_data=None)

    assert leaving.value.code == 70
    assert re.search(words, capsys.readouterr().err)


def test_a_generator_object_whose_later_batches_differ_after_a_restart_is_refused(
    tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    def numbered(second: float) -> Any:
        return ((X[:4] + (second if number == 1 else 0.0), Y[:4]) for number in range(99))

    def make(second: float) -> Callable[[], dict[str, Any]]:
        return lambda: {"x": numbered(second), "steps_per_epoch": 6}

    with pytest.raises(LookupError):
        trained(tmp_path, make(1.0), StopsAt(4), validation_data=None)
    begin(Launch())

    with pytest.raises(ValueError, match=r"cannot resume in the middle of .*not all of its first 4 batches"):
        trained(tmp_path, make(2.0), validation_data=None)


@pytest.mark.parametrize("name", ["arrays", "PyDataset with noise", "generator", "endless generator"])
def test_data_that_come_back_are_not_named(name: str, tmp_path: Path) -> None:
    trained(tmp_path, SOURCES[name], strict=True, epochs=1)


class Kept(Sequence):
    """Gives batches that it keeps."""

    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self.batches = batches

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


@pytest.mark.parametrize("kind", ["generator", "PyDataset"])
def test_arrays_that_python_code_yields_and_keeps_stay_as_they_are(kind: str, two_replicas: Any) -> None:
    """TensorFlow would write results of replicas into them."""
    batches = [(X[first : first + 4].copy(), Y[first : first + 4].copy()) for first in range(0, COUNT, 4)]
    before = [(x.copy(), y.copy()) for x, y in batches]
    data = Kept(batches) if kind == "PyDataset" else lambda: iter(batches)
    with two_replicas.scope():
        model = regression()
    fit(model, data, epochs=3, verbose=0)

    for batch, kept in zip(before, batches, strict=True):
        for one, other in zip(batch, kept, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param("shuffled", (8,), id="shuffled, once"),
        *(
            pytest.param(name, (2, 8), marks=NIGHTLY, id=name)
            for name in ("arrays", "shuffled", "endless", "PyDataset", "endless generator")
        ),
    ],
)
def test_fit_on_two_replicas_ends_like_an_undisturbed_one(
    name: str, steps: tuple[int, ...], tmp_path: Path, two_replicas: Any, begin: Callable[[Launch], None]
) -> None:
    def on_replicas(folder: str, *stops: Any, **options: Any) -> Any:
        with two_replicas.scope():
            return trained(tmp_path / folder, SOURCES[name], *stops, epochs=2, **options)

    undisturbed = on_replicas("calm", interval=SELDOM)
    for step in steps:
        with pytest.raises(LookupError):
            on_replicas("rough", StopsAt(step))
        begin(Launch())
    disturbed = on_replicas("rough")

    assert disturbed.history.history == undisturbed.history.history
    assert same_weights(disturbed, undisturbed)


def test_arrays_continue_at_the_next_example_with_another_batch_size(tmp_path: Path) -> None:
    def counted(batch_size: int, *stops: Any) -> np.ndarray[Any, Any]:
        """Trains a weight for each example, which decreases by one each time that it is trained on."""
        model = tf.keras.Sequential([tf.keras.Input((COUNT,)), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(tf.keras.optimizers.SGD(1.0), loss=lambda labels, found: tf.reduce_sum(found))
        model.set_weights([np.zeros((COUNT, 1), "float32")])
        fit(model, np.eye(COUNT, dtype="float32"), Y, batch_size=batch_size, epochs=2, callbacks=list(stops), verbose=0,
            directory=tmp_path, interval="1 steps")  # fmt: skip
        return np.asarray(-model.get_weights()[0][:, 0])

    with pytest.raises(LookupError):
        counted(4, StopsAt(8))

    assert counted(7).tolist() == [2.0] * COUNT


def test_order_of_arrays_differs_by_epoch_and_seed() -> None:
    orders = []
    for seed in (1, 2):
        data = ArrayData((np.arange(COUNT), None, None), 4, None, True, seed)
        for epoch in (0, 1):
            batches = data._batches(Position(epoch))
            orders.append([int(number) for batch in batches for number in batch])

    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(COUNT)) for order in orders)


def test_dataset_is_iterated_once_for_each_epoch(two_replicas: Any) -> None:
    """Keras would make an iterator more to build the model, and one more at the end of an epoch."""
    begun: list[int] = []

    def numbers() -> Iterator[Any]:
        begun.append(len(begun))
        yield from zip(X, Y, strict=True)

    signature = tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.float32)
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=signature).batch(4)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(6)).with_options(untuned())
    with two_replicas.scope():
        model = regression()
    fit(model, dataset, epochs=3, verbose=0)

    assert begun == [0, 1, 2]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("data", "places"),
    [
        pytest.param("shuffled", ("batch 4", "validation 0", "end 1"), id="shuffled, some"),
        *(
            pytest.param(data, ("batch 1", "batch 4", "validation 0", "end 1", "batch 10"), marks=NIGHTLY, id=data)
            for data in ("arrays", "pydataset", "shuffled")
        ),
    ],
)
def test_fit_killed_at_the_edges_ends_like_an_undisturbed_one(
    data: str, places: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    def fitting(folder: str, *hold_at: str) -> subprocess.Popen[str]:
        launch = Launch(deterministic=True, checkpoint_dir=tmp_path / folder, checkpoint_interval=Interval(steps=1))
        return start(CHILDREN / "fit_tutorial.py", data, *hold_at, launch=launch)

    undisturbed = read_until(fitting("calm"), "hash")
    for place in places:
        process = fitting("rough", *place.split())
        read_until(process, place)
        process.send_signal(signal.SIGKILL)
        process.wait()
    disturbed = read_until(fitting("rough"), "hash")

    assert disturbed == undisturbed


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "batch size": ({"x": X, "y": Y, "batch_size": 6}, "batch size of the data is 6, was 4"),
    "fewer arrays": ({"x": X[:20], "y": Y[:20], "batch_size": 4}, "number of examples of the data is 20, was 22"),
}


@pytest.mark.parametrize(("then", "words"), CHANGED.values(), ids=CHANGED.keys())
def test_other_arrays_than_before_are_said(
    then: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, SOURCES["arrays"], epochs=1)
    assert "other data" not in capsys.readouterr().err

    trained(tmp_path, lambda: then, epochs=2)

    assert words in capsys.readouterr().err


def test_other_steps_per_epoch_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps in (4, 3):
        trained(
            tmp_path, lambda steps=steps: {"x": pairs().batch(4).repeat(), "steps_per_epoch": steps}, epochs=7 - steps
        )

    assert "steps_per_epoch of the data is 3, was 4" in capsys.readouterr().err
