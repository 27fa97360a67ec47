"""The state of callbacks of `fit` is restored, and what no checkpoint would hold is named."""

import enum
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from tests.worker.keras.test_fit import StopsAt, same_weights
from worker.keras import fit
from worker.state.object_values import (
    NotRestorable,
    NotSaveable,
    ObjectRestorer,
    SavedObject,
)
from worker.state.replica_values import assign_copies, replica_copies

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _new_attempt(begin: Callable[[Launch], None]) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def small(**options: Any) -> Any:
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(1e-2), **{"loss": "mse", **options})
    return model


def data() -> worker.Examples:
    numbers = np.random.default_rng(0)
    return worker.Examples(numbers.normal(size=(24, 4)).astype("float32"), np.zeros(24, "float32"), batch_size=4)


def fitted(directory: Path, *callbacks: Any, model: Any = None, epochs: int = 2, **options: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    model = model or small()
    fit(model, data(), epochs=epochs, callbacks=callbacks, verbose=0, directory=directory, **options)
    return model


class Tracker:
    """An object of a script's class, in a callback."""

    def __init__(self) -> None:
        self.best = {"loss": float("inf")}


class Keeps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Has state of every kind that is saved, and changes it in each step."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.losses: dict[str, list[Any]] = defaultdict(list)
        self.last = deque(maxlen=3)
        self.pair: tuple[Any, ...] = (None, "none")
        self.names: set[str] = set()
        self.sums = np.zeros(3)
        self.small = np.float32(0)
        self.path = Path("none")
        self.numbers = np.random.default_rng(seed)
        self.old = np.random.RandomState(seed)
        self.python = random.Random(seed)
        self.seeds = tf.keras.random.SeedGenerator(seed)
        self.noise = tf.random.Generator.from_seed(seed)
        self.count = tf.Variable(0.5)
        self.mean = tf.keras.metrics.Mean()
        self.tracker = Tracker()
        self.alias = self.losses

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        drawn = [self.numbers.random(), self.old.rand(), self.python.random(), float(self.noise.uniform([]))]
        drawn += [float(tf.keras.random.uniform([], seed=self.seeds))]
        self.losses[f"step {batch % 2}"].append(drawn)
        self.last.append(batch)
        self.pair = (batch, logs["loss"])
        self.names.add(f"batch {batch}")
        self.sums[batch % 3] += drawn[0]
        self.small = np.float32(self.small * np.float32(0.9) + drawn[1])
        self.path = Path(f"batch-{batch}")
        self.count.assign_add(drawn[2])
        self.mean.update_state(drawn[3])
        self.tracker.best["loss"] = min(self.tracker.best["loss"], logs["loss"])

    def held(self) -> list[Any]:
        return [
            dict(self.losses), list(self.last), self.last.maxlen, self.pair, self.names, self.sums.tolist(), self.small,
            self.path, self.numbers.random(), self.old.rand(), self.python.random(), self.seeds.next().numpy().tolist(),
            float(self.noise.uniform([])), float(self.count.numpy()), float(self.mean.result()), self.tracker.best,
        ]  # fmt: skip


def test_attributes_of_callbacks_end_like_those_of_an_undisturbed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, rough, second = Keeps(1), Keeps(1), Keeps(2)
    undisturbed = fitted(tmp_path / "calm", calm, interval="4 steps", strict=True)
    with pytest.raises(LookupError):
        fitted(tmp_path / "rough", rough, StopsAt(10), interval="4 steps")
    disturbed = fitted(tmp_path / "rough", second, StopsAt(-1), interval="4 steps")

    assert second.held() == calm.held()
    assert type(second.small) is np.float32
    assert isinstance(second.losses, defaultdict)
    assert second.alias is second.losses
    assert same_weights(disturbed, undisturbed)
    assert "do not include" not in capsys.readouterr().err


def test_unchanged_setting_of_a_callback_takes_the_value_of_the_script(tmp_path: Path) -> None:
    class Patient(Keeps):
        def __init__(self, patience: dict[str, int]) -> None:
            super().__init__(1)
            self.patience = patience

    fitted(tmp_path, Patient({"epochs": 3}), epochs=1)
    second = Patient({"epochs": 9})
    fitted(tmp_path, second, epochs=1)

    assert second.patience == {"epochs": 9}
    assert second.path == Path("batch-5")


class Holds(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """A callback with something in an attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


def test_metric_with_a_value_for_each_class_is_restored_in_the_history(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    examples = numbers.normal(size=(24, 4)).astype("float32"), np.eye(2, dtype="float32")[numbers.integers(0, 2, 24)]

    def history(folder: str, *stops_at: int) -> Any:
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
        model.compile(tf.keras.optimizers.Adam(1e-2), "mse", metrics=[tf.keras.metrics.F1Score()])
        fit(model, worker.Examples(*examples, batch_size=4), epochs=3, callbacks=[*map(StopsAt, stops_at)], verbose=0,
            directory=tmp_path / folder, interval="4 steps")  # fmt: skip
        return model.history.history

    calm = history("calm")
    with pytest.raises(LookupError):
        history("rough", 10)
    rough = history("rough")

    assert [figures.shape for figures in calm["f1_score"]] == [(2,)] * 3
    assert repr(rough) == repr(calm)


def test_callback_attribute_that_cannot_be_saved_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(tmp_path, Holds({"jobs": [iter([1])]}), interval="1 steps")

    assert capsys.readouterr().err.count("do not include Holds.held['jobs'][0] (a list_iterator)") == 1


def test_callback_attribute_that_cannot_be_saved_ends_strict_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small()
    with pytest.raises(SystemExit) as leaving:
        fitted(tmp_path, Holds(iter([1])), model=model, strict=True)

    assert leaving.value.code == 70
    assert int(model.optimizer.iterations.numpy()) == 1
    assert (
        "cannot train, as strict is set: checkpoints do not include Holds.held (a list_iterator)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "held",
    [threading.Lock(), print, Path, lambda: None, SimpleNamespace],
    ids=["lock", "function", "class", "lambda", "class of values"],
)
def test_attribute_that_is_not_state_is_not_named(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(tmp_path, Holds(held), epochs=1, strict=True)

    assert "do not include" not in capsys.readouterr().err


def test_state_without_its_callback_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(tmp_path, Keeps(1), epochs=1)
    fitted(tmp_path, Holds(0), epochs=1)

    assert (
        "cannot restore some state of callbacks: callback 0 was a Keeps and is now a Holds" in capsys.readouterr().err
    )


@dataclass(frozen=True)
class Best:
    """A value of a script's class."""

    loss: float


class Phase(enum.Enum):
    """The enum at the first start of the script."""

    WARM = 1
    COLD = 2


class OtherPhase(enum.Enum):
    """The enum at the second start."""

    WARM = 1


OtherPhase.__name__ = OtherPhase.__qualname__ = "Phase"


class Changes(Holds):
    """A callback whose attribute changes at the first batch."""

    def __init__(self, held: Any, later: Any = None) -> None:
        super().__init__(held)
        self.batches = 0
        self._later = lambda: later

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self._later() is not None:
            self.held = self._later()


def test_frozen_object_of_the_script_is_restored(tmp_path: Path) -> None:
    fitted(tmp_path, Changes(Best(9.0), Best(1.0)), epochs=1)
    second = Changes(Best(9.0))
    fitted(tmp_path, second, epochs=1)

    assert second.held == Best(1.0)


def test_array_replaces_one_that_is_read_only(tmp_path: Path) -> None:
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    fitted(tmp_path, Changes(fixed, np.ones(3)), epochs=1)
    second = Changes(fixed)
    fitted(tmp_path, second, epochs=1)

    assert second.held.tolist() == [1.0, 1.0, 1.0]
    assert fixed.tolist() == [0.0, 0.0, 0.0]


class Lists(list[int]):
    """A list class of the script."""


LOST: dict[str, tuple[Any, Any, Any, str]] = {
    "a member that is gone": (Phase.WARM, Phase.COLD, OtherPhase.WARM, "no longer fits (KeyError: 'COLD')"),
    "another generator": (
        None, np.random.Generator(np.random.PCG64(1)), np.random.Generator(np.random.MT19937(1)), "ValueError"
    ),
    "a list of its own": (None, Lists([1]), None, "it was a Lists and is now nothing"),
    "a dict with a default": (None, defaultdict(lambda: 0, a=1), {}, "it was a defaultdict and is now a dict"),
    "a function": (None, [print], None, "it was a builtin_function_or_method, which only this process can create"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "later", "now", "words"), LOST.values(), ids=LOST.keys())
def test_state_that_no_longer_fits_is_reported_and_training_continues(
    before: Any, later: Any, now: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(tmp_path, Changes(before, later), epochs=1)
    second = Changes(now)
    fitted(tmp_path, second, epochs=2)

    said = capsys.readouterr().err
    assert "cannot restore some state of callbacks: Changes.held: " in said
    assert words in said
    assert second.batches == 12
    assert second.held is now


class Unseen:
    """An object as some libraries have them: it raises when it is inspected outside of a context."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("working outside of a context")


def test_attribute_that_cannot_be_inspected_is_named_and_training_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fitted(tmp_path, Holds(Unseen()), epochs=1, interval="2 steps")

    assert int(model.optimizer.iterations.numpy()) == 6
    said = capsys.readouterr().err
    assert said.count("do not include Holds.held (RuntimeError: working outside of a context)") == 1


# --- what no checkpoint would hold ----------------------------------------------------------------------------------

GLOBAL = None


class Scaled(tf.keras.losses.Loss):  # type: ignore[misc]
    """A loss of the script with a variable that Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = SimpleNamespace(held=tf.Variable(1.0, name="forgotten"))

    def call(self, labels: Any, found: Any) -> Any:
        return self.scale.held * tf.reduce_mean(tf.square(labels - found))


class UsesGlobal(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer that uses a variable of its module."""

    def call(self, inputs: Any) -> Any:
        return inputs * GLOBAL


def with_layer() -> Any:
    global GLOBAL
    GLOBAL = tf.Variable(1.0, name="forgotten")
    model = tf.keras.Sequential([tf.keras.Input((4,)), UsesGlobal(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def closing() -> Any:
    forgotten = tf.Variable(1.0, name="forgotten")
    return tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: forgotten.assign_add(1.0))


def loading(index: tf.Tensor, forgotten: Any = None) -> Any:
    return tf.fill([4], tf.cast(index, tf.float32)), tf.constant(0.0)


def loads() -> worker.Examples:
    forgotten = tf.Variable(1.0, name="forgotten")
    return worker.Examples(count=24, load=lambda index: (loading(index)[0], forgotten.value()), batch_size=4)


def flips() -> Any:
    noise = tf.keras.layers.GaussianNoise(0.1, name="forgotten")
    single = tf.data.Dataset.from_tensor_slices((np.ones((24, 4), "float32"), np.zeros(24, "float32")))
    return single.batch(4).map(lambda inputs, labels: (noise(inputs, training=True), labels)).prefetch(1)


PLACES: dict[str, Callable[[], dict[str, Any]]] = {
    "a loss": lambda: {"model": small(loss=Scaled())},
    "a layer that uses its module": lambda: {"model": with_layer()},
    "a function in a callback of Keras": lambda: {"callbacks": [closing()]},
    "what loads the examples": lambda: {"data": loads()},
    "a random layer in Dataset.map": lambda: {"data": flips()},
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES.keys())
def test_variable_missing_from_the_checkpoints_of_fit_is_named_and_ends_strict_training(
    make: Callable[[], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model": small(), "data": data(), **make()}
    with pytest.raises(SystemExit) as leaving:
        fit(given.pop("model"), given.pop("data"), epochs=1, verbose=0, directory=tmp_path, strict=True, **given)

    text = capsys.readouterr().err
    assert leaving.value.code == 70
    assert "do not include" in text
    assert "forgotten" in text or "seed_generator" in text
    assert "fit(leave_out=)" in text


def test_object_in_leave_out_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = Scaled()
    fitted(tmp_path, model=small(loss=loss), strict=True, leave_out=[loss.scale.held])

    assert "do not include" not in capsys.readouterr().err


def test_usual_fit_has_no_missing_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = [
        tf.keras.callbacks.ReduceLROnPlateau("loss"),
        tf.keras.callbacks.EarlyStopping("loss", restore_best_weights=True),
        tf.keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        tf.keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", save_best_only=True),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.01),
    ]
    model = small(metrics=["mae", tf.keras.metrics.RootMeanSquaredError()])
    dataset = tf.data.Dataset.from_tensor_slices((np.ones((8, 4), "float32"), np.zeros(8, "float32"))).batch(4)
    fit(model, dataset, epochs=2, callbacks=callbacks, verbose=2, directory=tmp_path / "c", strict=True)

    assert "do not include" not in capsys.readouterr().err


def test_generators_given_to_fit_are_restored(tmp_path: Path) -> None:
    mine = np.random.default_rng(1)
    fitted(tmp_path, epochs=1, generators=[mine])
    expected = mine.random()
    other = np.random.default_rng(2)
    fitted(tmp_path, epochs=1, generators=[other])

    assert other.random() == expected


@pytest.mark.parametrize(("on_nan", "code"), [("stop", 80), ("off", None)])
def test_metric_that_is_not_finite_ends_fit(on_nan: str, code: int | None, tmp_path: Path) -> None:
    nan = worker.Examples(np.full((8, 4), np.nan, "float32"), np.zeros(8, "float32"), batch_size=4)
    ended = None
    try:
        fit(small(), nan, epochs=1, verbose=0, directory=tmp_path, on_nan=on_nan)
    except SystemExit as leaving:
        ended = leaving.code

    assert ended == code


# --- values apart and back ------------------------------------------------------------------------------------------

VALUES = [
    None, True, 3, 2**70, 0.1, float("inf"), "text", b"\0\1", [], {}, (), set(), [1, [2, {"a": (3,)}]],
    {1: "one", (2, 3): None, "b": {4.5}}, frozenset({"a"}), deque([1, 2], 5), np.arange(6).reshape(2, 3),
    np.zeros((0, 2)), np.array("text"), np.float16(1.5), np.datetime64("2020-01-01"), np.array(3, "int8"), Path("a/b"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_value_is_restored_without_a_present_object(value: Any) -> None:
    kept = SavedObject(value)
    found = ObjectRestorer(kept.arrays).restore_value(kept.json, None)

    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_bfloat16_is_restored() -> None:
    value = tf.constant([1.5, 2.5], tf.bfloat16).numpy()
    kept = SavedObject([value])
    (found,) = ObjectRestorer(kept.arrays).restore_value(kept.json, None)

    assert (found.dtype, found.tolist()) == (value.dtype, value.tolist())


REFUSED = {
    "object": object(),
    "iterator": iter([]),
    "array": np.array([object()]),
    "nested": [[iter([])]],
    "array of fields": np.zeros(2, [("a", "f4"), ("b", "i8")]),
    "one of its entries": np.zeros(2, [("a", "f4")])[0],
    "array of raw bytes": np.zeros(2, "V3"),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_value_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(NotSaveable):
        SavedObject(value)


WITHOUT_PLACE: dict[str, Callable[[], Any]] = {
    "function": lambda: print,
    "dict with a default": lambda: defaultdict(lambda: 0, a=1),
    "own list": lambda: Lists([1]),
    "layer with nothing": tf.keras.layers.Flatten,
    "nested": lambda: {"a": [Lists([1])]},
}


@pytest.mark.parametrize("make", WITHOUT_PLACE.values(), ids=WITHOUT_PLACE.keys())
def test_object_that_only_the_script_can_create_is_refused_if_absent(make: Callable[[], Any]) -> None:
    kept = SavedObject(make())

    with pytest.raises(NotRestorable):
        ObjectRestorer(kept.arrays).restore_value(kept.json, None)


def test_dict_with_functions_as_keys_is_refused() -> None:
    kept = SavedObject({print: 1})

    with pytest.raises(NotRestorable):
        ObjectRestorer(kept.arrays).restore_value(kept.json, {print: 0})


@pytest.mark.parametrize("make", WITHOUT_PLACE.values(), ids=WITHOUT_PLACE.keys())
def test_object_that_only_the_script_can_create_is_filled_if_present(make: Callable[[], Any]) -> None:
    kept, present = SavedObject(make()), make()
    found = ObjectRestorer(kept.arrays).restore_value(kept.json, present)

    assert found is present


def test_containers_that_another_thread_changes_are_saved() -> None:
    """Each is saved as of some moment: saving takes longer than another thread needs to add an entry."""

    class Adds:
        """Inspecting it changes its container."""

        def __init__(self, add: Callable[[], None]) -> None:
            self.add = add

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                object.__getattribute__(self, "add")()
            return object.__getattribute__(self, name)

    table: dict[str, Any] = {}
    table["first"] = Adds(lambda: table.update(second=2))
    last: deque[Any] = deque()
    last.append(Adds(lambda: last.append(2)))
    group: set[Any] = set()
    group.add(Adds(lambda: group.add(2)))

    for value in (table, last, group):
        SavedObject(value)


def test_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(NotSaveable, match="contains itself"):
        SavedObject(value)


def test_sums_over_replicas_are_added_up_and_averages_become_their_mean(two_replicas: Any) -> None:
    """Variables like those of metrics and moving averages on several replicas."""
    stored = [np.float32(1), np.float32(2)]
    one = tf.distribute.get_strategy()
    for strategy, aggregation, expected in ((one, "sum", [3]), (one, "none", [1.5]), (two_replicas, "sum", [1, 2])):
        with strategy.scope():
            variable = tf.keras.Variable(0.0, trainable=False, aggregation=aggregation, synchronization="on_read")
        assign_copies(variable, stored)

        assert [copy.numpy() for copy in replica_copies(variable)] == expected
    assign_copies(variable, stored[1:])
    assert [copy.numpy() for copy in replica_copies(variable)] == [2, 0]


def test_variables_outside_of_callbacks_continue(tmp_path: Path) -> None:
    def trained(folder: str, *stops: Any) -> list[Any]:
        losses: list[float] = []
        best = float("inf")
        by_epoch: dict[int, Any] = {}

        def keep(epoch: int, logs: Any) -> None:
            nonlocal best
            losses.append(logs["loss"])
            by_epoch[epoch] = np.float32(logs["loss"])
            best = min(best, logs["loss"])

        fitted(tmp_path / folder, tf.keras.callbacks.LambdaCallback(on_epoch_end=keep), *stops, epochs=3,
               interval="1 steps")  # fmt: skip
        return [losses, best, by_epoch]

    calm = trained("calm")
    with pytest.raises(LookupError):
        trained("rough", StopsAt(15))
    rough = trained("rough", StopsAt(-1))

    assert len(calm[0]) == 3
    assert rough == calm


def test_outer_variable_that_can_not_be_saved_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    keep = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(iter([batch])))

    fitted(tmp_path, keep, epochs=1, interval="1 steps")

    assert "do not include LambdaCallback.seen of test_outer_variable_that" in capsys.readouterr().err


def test_other_metrics_than_before_begin_anew_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError):
        fitted(tmp_path, StopsAt(4), model=small(metrics=["mae"]), epochs=1, interval="1 steps")

    model = fitted(tmp_path, model=small(metrics=["mse", "mae"]), epochs=1, interval="1 steps")

    assert "cannot restore some state of metrics: the checkpoint has 4 variables of them, the model has 6" in (
        capsys.readouterr().err
    )
    assert int(model.optimizer.iterations.numpy()) == 6
