"""Variables that the loop can reach and no checkpoint would hold are named, and nothing else is."""

import functools
import random
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Committed, Done, Failed, Go
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.checks.missing_variables import find_missing
from worker.checks.reachability import MAX_NAMED, roots_of_frame

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


def variable(name: str = "forgotten") -> tf.Variable:
    return tf.Variable(1.0, name=name)


class Own:
    """A class of the script."""

    def __init__(self, held: Any) -> None:
        self.held = held


def closure_over(held: Any) -> Callable[[], Any]:
    return lambda: held


def layer_with(held: Any) -> Any:
    class Layer(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.plain = SimpleNamespace(held=[held])  # Keras looks into lists, not into this

    return Layer()


WAYS: dict[str, Callable[[tf.Variable], Any]] = {
    "itself": lambda held: held,
    "in containers": lambda held: {"a": [({"b": held},)]},
    "a closure": closure_over,
    "a compiled function": lambda held: tf.function(closure_over(held)),
    "a partial": lambda held: functools.partial(print, held),
    "a method's object": lambda held: Own(held).__init__,
    "a class of the script": Own,
    "a tf.Module": lambda held: setattr(module := tf.Module(), "held", held) or module,
    "an attribute that Keras doesn't track": layer_with,
    "a default of a function": lambda held: lambda held=held: held,
}


def named(tracked: tf.train.Checkpoint, own: Any = (), exempt: Any = (), /, **loop: Any) -> tuple[str, ...]:
    """The names that are found if the loop's frame holds `loop`."""

    def frame() -> Any:
        held = loop  # noqa: F841 - found through the frame
        return sys._getframe()

    return find_missing(tracked, own, roots_of_frame(frame()), exempt)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_missing_variable_is_named_however_it_is_reached(way: Callable[[tf.Variable], Any]) -> None:
    (found,) = named(tf.train.Checkpoint(), through=way(variable()))

    assert found.startswith("forgotten:0 ")


def test_variable_that_a_function_uses_is_reached_as_the_function_calls_it() -> None:
    accumulated = [variable("Variable"), variable("Variable")]
    step = tf.function(lambda: accumulated[0] + accumulated[1])

    assert named(tf.train.Checkpoint(), step=step) == ("Variable:0 (reached as accumulated)",)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_saved_variable_is_not_named_however_it_is_reached(way: Callable[[tf.Variable], Any]) -> None:
    held = variable()

    assert named(tf.train.Checkpoint(held=held), through=way(held)) == ()


GENERATORS: dict[str, Callable[[], Any]] = {
    "numpy Generator": lambda: np.random.default_rng(1),
    "numpy RandomState": lambda: np.random.RandomState(1),
    "random Random": lambda: random.Random(1),
    "Keras SeedGenerator": lambda: tf.keras.random.SeedGenerator(1),
}


@pytest.mark.parametrize(("name", "make"), GENERATORS.items())
def test_generator_of_the_script_is_named_unless_it_was_given(name: str, make: Callable[[], Any]) -> None:
    generator = make()

    assert [text.startswith(name) for text in named(tf.train.Checkpoint(), rng=generator)] == [True]
    assert named(tf.train.Checkpoint(), [generator], rng=generator) == ()


def test_global_generators_are_never_named() -> None:
    assert named(tf.train.Checkpoint(), draw=random.gauss, numpy=np.random.mtrand._rand) == ()


def test_tensorflows_global_generator_is_named_unless_it_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(tf.train.Checkpoint()) == ()
    generator = tf.random.Generator.from_seed(3)
    monkeypatch.setattr(import_module("tensorflow.python.ops.stateful_random_ops"), "global_generator", generator)

    (found,) = named(tf.train.Checkpoint())

    assert found.endswith("(reached as tf.random.get_global_generator())")
    assert named(tf.train.Checkpoint(generator=generator)) == ()
    assert named(tf.train.Checkpoint(), (), [generator]) == ()


@pytest.mark.parametrize("replicas", [1, 2])
def test_usual_training_has_no_missing_variable(replicas: int, two_replicas: Any, tmp_path: Path) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.get_strategy()
    tracked = training.build(strategy)
    tracked.model.compile(tracked.optimizer, loss="mse", metrics=["mae"])
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    whole = tf.train.Checkpoint(model=tracked.model, optimizer=tracked.optimizer, generator=generator)
    step = training.step_of(tracked, strategy)
    with worker.Run(whole, strategy=strategy, total_steps=1, directory=tmp_path) as run:
        for images, labels in run.batches(training.data()):
            run.step_done(loss=step(images, labels))
            found = find_missing(whole, (), roots_of_frame(sys._getframe()), ())

    assert found == ()


def test_metric_of_the_loop_is_named_because_it_accumulates_over_steps() -> None:
    assert named(tf.train.Checkpoint(), metric=tf.keras.metrics.Mean(name="loss")) != ()


def test_table_that_steps_may_change_is_named_unless_it_is_tracked_or_a_layers_vocabulary() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
    layer = tf.keras.layers.StringLookup()
    layer.adapt(["a", "b"])

    assert named(tf.train.Checkpoint(), counts=table) == ("MutableHashTable (reached as held)",)
    assert named(tf.train.Checkpoint(counts=table), counts=table, lookup=layer) == ()


def test_average_that_tensorflow_keeps_of_a_variable_is_named_unless_it_is_tracked() -> None:
    trained = tf.Variable(1.0, name="trained")
    averages = tf.train.ExponentialMovingAverage(0.9)
    averages.apply([trained])

    assert named(tf.train.Checkpoint(trained=trained), trained=trained, averages=averages) == (
        "trained/ExponentialMovingAverage:0 (reached as held)",
    )
    whole = tf.train.Checkpoint(trained=trained, average=averages.average(trained))
    assert named(whole, trained=trained, averages=averages) == ()


def test_queue_of_tensorflow_is_named() -> None:
    assert named(tf.train.Checkpoint(), waiting=tf.queue.FIFOQueue(3, [tf.int64])) == ("FIFOQueue (reached as held)",)


def test_exempt_object_and_what_it_refers_to_are_not_named() -> None:
    teacher = training.build(tf.distribute.get_strategy()).model
    alias = teacher.layers[0]

    assert named(tf.train.Checkpoint(), teacher=teacher) != ()
    assert named(tf.train.Checkpoint(), (), [teacher], teacher=teacher, alias=alias) == ()


def test_long_list_is_cut() -> None:
    found = named(tf.train.Checkpoint(), many=[variable(f"v{number}") for number in range(MAX_NAMED + 7)])

    assert (len(found), found[-1]) == (MAX_NAMED + 1, "7 more")


def counted(run: worker.Run, steps: int, forgotten: Any) -> None:
    for _ in run.range(steps):
        run.step_done(value=float(forgotten))


def test_missing_variables_are_reported_with_the_first_checkpoint_only(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    with worker.Run(tf.train.Checkpoint(count=tf.Variable(0))) as run:
        counted(run, 3, variable())
    daemon.wait_for(Done)

    assert [message.left_out for message in daemon.all_of(Committed)] == [
        ("forgotten:0 (reached as forgotten)",),
        (),
        (),
    ]


def test_strict_ends_training_after_the_first_step(daemon: DaemonEnd, begin: Begin, tmp_path: Path) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path, strict=True))
    daemon.send(Go(1, restore=None))
    with pytest.raises(SystemExit) as leaving, worker.Run(tf.train.Checkpoint(count=tf.Variable(0))) as run:
        counted(run, 3, variable())

    assert (leaving.value.code, run.step) == (70, 1)
    assert "forgotten:0" in daemon.wait_for(Failed).error
    assert not list(tmp_path.glob("step-*"))


def test_strict_training_with_nothing_missing_runs(tmp_path: Path) -> None:
    count = variable()
    with worker.Run(tf.train.Checkpoint(count=count), directory=tmp_path, strict=True) as run:
        counted(run, 3, count)

    assert run.step == 3


class Proxy:
    """An object as some libraries have them: it raises when it is inspected outside of a context."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("working outside of a context")


def test_object_that_cannot_be_inspected_does_not_end_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker.Run(tf.train.Checkpoint(count=tf.Variable(0)), directory=tmp_path) as run:
        proxy = Proxy()
        run.step_done()
        del proxy

    assert run.step == 1
    assert "the search for it failed with RuntimeError: working outside of a context" in capsys.readouterr().err
