"""Restores: from whole checkpoints only, into programs that fit, with everything accounted for."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Failed, Go, Restored
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.checkpoint.restore import build_variables, require_finite
from worker.saving.directory import Unfit

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
DATA = "ckpt.data-00000-of-00001"


@pytest.fixture(scope="session")
def trained(two_replicas: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints of steps 3 and 6 of a run without a daemon."""
    directory = tmp_path_factory.mktemp("trained")
    tracked = training.build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, total_steps=6, directory=directory, interval="3 steps") as run:
        training.train(run, tracked, two_replicas)
    return directory


@pytest.fixture
def directory(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained, tmp_path / "checkpoints"))


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bit in data": lambda folder: flip_bit(folder / DATA),
    "flipped bit in index": lambda folder: flip_bit(folder / "ckpt.index"),
    "flipped bit in state": lambda folder: flip_bit(folder / layout.STATE),
    "truncated data": lambda folder: (folder / DATA).write_bytes((folder / DATA).read_bytes()[:-100]),
    "truncated index": lambda folder: (folder / "ckpt.index").write_bytes((folder / "ckpt.index").read_bytes()[:500]),
    "empty data": lambda folder: (folder / DATA).write_bytes(b""),
    "empty index": lambda folder: (folder / "ckpt.index").write_bytes(b""),
    "missing data": lambda folder: (folder / DATA).unlink(),
    "missing index": lambda folder: (folder / "ckpt.index").unlink(),
    "missing manifest": lambda folder: (folder / layout.MANIFEST).unlink(),
    "garbage manifest": lambda folder: (folder / layout.MANIFEST).write_bytes(b"\x00garbage"),
    "empty manifest": lambda folder: (folder / layout.MANIFEST).write_bytes(b""),
    "emptied folder": lambda folder: [entry.unlink() for entry in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_newest_is_set_aside_and_the_one_before_restored(
    damage: Callable[[Path], object], directory: Path, two_replicas: Any
) -> None:
    damage(directory / "step-0000000006.a1")
    tracked = training.build(two_replicas)
    run = worker.Run(tracked, strategy=two_replicas, total_steps=6, directory=directory)
    with run:
        step, epoch_batches = run.step, sum(1 for _ in run.batches(training.data()) if not run.step_done())

    assert (step, epoch_batches) == (3, 3)
    assert [refused.name for refused in list_quarantined(directory)] == ["step-0000000006.a1"]
    assert (directory / "step-0000000006.a2").is_dir()


@pytest.mark.parametrize("content", [None, b"", b"\x00\xffgarbage", b'model_checkpoint_path: "elsewhere"\n'])
def test_damaged_pointer_file_does_not_matter(content: bytes | None, directory: Path, two_replicas: Any) -> None:
    pointer = directory / layout.POINTER
    pointer.unlink() if content is None else pointer.write_bytes(content)
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=directory) as run:
        assert run.step == 6


def test_nothing_whole_is_an_error_and_never_a_fresh_start(
    directory: Path, two_replicas: Any, capsys: pytest.CaptureFixture[str], begin: Callable[[Launch], None]
) -> None:
    begin(Launch())  # an attempt says why it ends once
    for name in selection.committed_checkpoints(directory):
        flip_bit(directory / str(name) / DATA)
    run = worker.Run(training.build(two_replicas), strategy=two_replicas, directory=directory)
    with pytest.raises(SystemExit) as leaving, run:
        pass

    assert leaving.value.code == 65
    assert "step-0000000003.a1" in capsys.readouterr().err


PLAIN = """
import sys
sys.modules["worker"] = sys.modules["supervisor"] = None  # as on a machine where stepkeeper is not installed
import numpy, tensorflow as tf
layers = tf.keras.layers
model = tf.keras.Sequential([
    tf.keras.Input((8, 8, 1)), layers.Conv2D(8, 3), layers.BatchNormalization(), layers.Dropout(0.5), layers.Flatten(),
    layers.Dense(10, name="head"),
])
optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(1e-2, 200))
optimizer.build(model.trainable_variables)
tf.train.Checkpoint(model=model, optimizer=optimizer).restore(sys.argv[1]).assert_consumed()
numpy.savez(sys.argv[2], *(each.numpy() for each in [*model.weights, *optimizer.variables]))
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_plain_tensorflow_restores_every_value_in_a_process_that_can_not_import_us(
    two_replicas: Any, tmp_path: Path
) -> None:
    tracked = training.build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, total_steps=6, directory=tmp_path / "c") as run:
        training.train(run, tracked, two_replicas)
    command = [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "c" / "step-0000000006.a1" / "ckpt"), "found.npz"]
    subprocess.run(command, check=True, timeout=250, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})

    trained = [*tracked.model.weights, *tracked.optimizer.variables]
    with np.load(tmp_path / "found.npz", allow_pickle=False) as found:
        restored = [found[f"arr_{number}"] for number in range(len(found.files))]
    assert [each.tobytes() for each in restored] == [each.value.numpy().tobytes() for each in trained]
    moments = [each for each in trained if "momentum" in each.path or "velocity" in each.path]
    assert len(moments) == 12 and all(moment.value.numpy().any() for moment in moments), (
        "else they would be equal anyway"
    )


def test_plain_tensorflow_accounts_for_all_of_a_checkpoint(trained: Path) -> None:
    one_device = tf.distribute.get_strategy()
    tracked = training.build(one_device)
    tracked.optimizer.build(tracked.model.trainable_variables)

    tracked.restore(str(trained / "step-0000000006.a1" / "ckpt")).assert_consumed()

    assert int(tracked.optimizer.iterations) == 6


def test_every_value_of_every_replica_comes_back(directory: Path, two_replicas: Any) -> None:
    first = training.build(two_replicas)
    with worker.Run(first, strategy=two_replicas, total_steps=9, directory=directory) as run:
        training.train(run, first, two_replicas)
    second = training.build(two_replicas)
    with worker.Run(second, strategy=two_replicas, total_steps=9, directory=directory) as run:
        step = run.step

    assert step == 9
    before, after = training.all_values(first), training.all_values(second)
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_replicas_hold_different_moving_averages(directory: Path, two_replicas: Any) -> None:
    """Else the test above would prove nothing."""
    tracked = training.build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, directory=directory):
        first, second = tracked.model.layers[1].moving_mean.value.values

    assert not np.array_equal(first.numpy(), second.numpy())


def test_python_and_numpy_generators_go_on_where_they_were(two_replicas: Any, tmp_path: Path) -> None:
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path) as run:
        random.gauss(0, 1), np.random.standard_normal()
        run.step_done()
    expected = random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.random()
    random.seed(5), np.random.seed(5)
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path):
        found = random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.random()

    assert found == expected


def test_tracked_tensorflow_generator_goes_on_on_each_replica(two_replicas: Any, tmp_path: Path) -> None:
    def noise(seed: int) -> tuple[tf.train.Checkpoint, Callable[[], list[float]]]:
        with two_replicas.scope():
            generator = tf.random.Generator.from_seed(seed)
        tracked = training.build(two_replicas)
        draw = tf.function(lambda: two_replicas.run(lambda: generator.normal([])))
        whole = tf.train.Checkpoint(model=tracked.model, optimizer=tracked.optimizer, generator=generator)
        return whole, lambda: [float(result) for result in two_replicas.experimental_local_results(draw())]

    tracked, draw = noise(seed=1)
    with worker.Run(tracked, strategy=two_replicas, directory=tmp_path) as run:
        draw()
        run.step_done()
    expected = draw()
    tracked, draw = noise(seed=2)
    with worker.Run(tracked, strategy=two_replicas, directory=tmp_path):
        found = draw()

    assert found == expected
    assert found[0] != found[1]


def test_checkpoint_of_two_replicas_goes_on_on_one_device(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    tracked = training.build(strategy)
    with worker.Run(tracked, strategy=strategy, total_steps=8, directory=directory) as run:
        training.train(run, tracked, strategy)

    assert run.step == 8
    assert "written by 2 replicas, now 1" in capsys.readouterr().err


# --- programs that do not fit --------------------------------------------------------------------------------------


def unfit(daemon: DaemonEnd, begin: Begin, directory: Path, run: Callable[[], worker.Run]) -> tuple[object, str]:
    begin(Launch(control=daemon.control(), checkpoint_dir=directory))
    daemon.send(Go(1, restore=str(directory / "step-0000000006.a1")))
    with pytest.raises(SystemExit) as leaving, run():
        pass
    return leaving.value.code, daemon.wait_for(Failed).error


def test_model_of_another_shape_is_named_and_leaves_with_65(
    daemon: DaemonEnd, begin: Begin, directory: Path, two_replicas: Any
) -> None:
    code, error = unfit(
        daemon, begin, directory, lambda: worker.Run(training.build(two_replicas, width=4), strategy=two_replicas)
    )

    assert code == 65
    assert "kernel is float32 [3, 3, 1, 8] in the checkpoint and float32 [3, 3, 1, 4] in the program" in error


@pytest.mark.parametrize("eager", [True, False], ids=["built", "distributed"])
def test_layer_of_another_dtype_is_named_and_leaves_with_65(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path, two_replicas: Any, eager: bool
) -> None:
    strategy = tf.distribute.get_strategy() if eager else two_replicas

    def tracked(dtype: str) -> tf.train.Checkpoint:
        with strategy.scope():
            layer = tf.keras.layers.Dense(3, dtype=dtype, name="head")
            model = tf.keras.Sequential([tf.keras.Input((2,)), layer])
            return tf.train.Checkpoint(model=model, optimizer=tf.keras.optimizers.Adam())

    with worker.Run(tracked("float32"), strategy=strategy, directory=tmp_path, total_steps=6) as run:
        while run.step < 6:
            run.step_done()
    code, error = unfit(daemon, begin, tmp_path, lambda: worker.Run(tracked("float64"), strategy=strategy))

    assert code == 65
    assert "head/kernel is float32 [2, 3] in the checkpoint and float64 [2, 3] in the program" in error
    assert "restore it with the program that wrote it, or give this one a checkpoint_dir of its own" in error


def test_metric_with_other_variables_in_the_state_leaves_with_65(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path
) -> None:
    def run_with(metric: Any, **given: Any) -> worker.Run:
        return worker.Run(tf.train.Checkpoint(count=tf.Variable(0)), state={"metric": metric}, **given)

    with run_with(tf.keras.metrics.Mean(), directory=tmp_path, total_steps=6) as run:
        while run.step < 6:
            run.step_done()
    code, error = unfit(daemon, begin, tmp_path, lambda: run_with(tf.keras.metrics.Sum()))

    assert code == 65
    assert "run.state['metric']: ValueError: the metric sum had 2 variables and has 1" in error


def test_variable_that_the_checkpoint_lacks_is_named_and_leaves_with_65(
    daemon: DaemonEnd, begin: Begin, directory: Path, two_replicas: Any
) -> None:
    tracked = training.build(two_replicas)
    whole = tf.train.Checkpoint(
        model=tracked.model, optimizer=tracked.optimizer, extra=tf.Variable(1.0, name="temperature")
    )
    code, error = unfit(daemon, begin, directory, lambda: worker.Run(whole, strategy=two_replicas))

    assert code == 65
    assert "it does not hold temperature" in error


def test_random_state_that_has_no_place_leaves_with_65(
    daemon: DaemonEnd, begin: Begin, directory: Path, two_replicas: Any
) -> None:
    state = directory / "step-0000000006.a1" / layout.STATE
    state.write_text(state.read_text().replace('"seeds":[[', '"seeds":[[1,2],['))
    code, error = unfit(
        daemon, begin, directory, lambda: worker.Run(training.build(two_replicas), strategy=two_replicas)
    )

    assert code == 65
    assert "random state of 2 Keras layers, this program has 1" in error


def test_values_only_in_the_checkpoint_are_named(
    daemon: DaemonEnd, begin: Begin, directory: Path, two_replicas: Any
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=directory))
    daemon.send(Go(1, restore=str(directory / "step-0000000006.a1")))
    tracked = training.build(two_replicas)
    with worker.Run(tf.train.Checkpoint(model=tracked.model), strategy=two_replicas):
        pass
    restored = daemon.wait_for(Restored)

    assert restored.step == 6
    assert any("optimizer/_iterations" in name for name in restored.unmatched)


def test_all_accounted_for_leaves_nothing_unmatched(
    daemon: DaemonEnd, begin: Begin, directory: Path, two_replicas: Any
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=directory))
    daemon.send(Go(1, restore=str(directory / "step-0000000003.a1")))
    with worker.Run(training.build(two_replicas), strategy=two_replicas, total_steps=6) as run:
        assert run.step == 3
    restored = daemon.wait_for(Restored)

    assert (restored.checkpoint, restored.unmatched, restored.total_steps) == ("step-0000000003.a1", (), 6)


def test_model_without_variables_is_an_error_that_says_what_to_call(two_replicas: Any, tmp_path: Path) -> None:
    with two_replicas.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    run = worker.Run(tf.train.Checkpoint(model=model), strategy=two_replicas, directory=tmp_path)

    with pytest.raises(ValueError, match=r"no variables yet; .* call it once"), run:
        pass


def test_optimizer_of_two_models_must_be_built_by_the_program(two_replicas: Any, tmp_path: Path) -> None:
    one, other = training.build(two_replicas), training.build(two_replicas)
    both = tf.train.Checkpoint(one=one.model, other=other.model, optimizer=one.optimizer)
    run = worker.Run(both, strategy=two_replicas, directory=tmp_path)

    with (
        pytest.raises(ValueError, match=r"'adam\w*' trains: .* 2 Keras models and 1 optimizer .* optimizer\.build\("),
        run,
    ):
        pass


def test_two_optimizers_of_one_model_must_be_built_by_the_program(tmp_path: Path) -> None:
    model, optimizers = training.build(tf.distribute.get_strategy()).model, tf.keras.optimizers
    tracked = tf.train.Checkpoint(model=model, first=optimizers.Adam(), second=optimizers.SGD(name="later"))
    run = worker.Run(tracked, directory=tmp_path)

    with pytest.raises(ValueError, match=r"'adam\w*' and 'later' train: .* 1 Keras model and 2 optimizers"), run:
        pass


def test_steps_between_saves_are_not_restored(directory: Path, two_replicas: Any) -> None:
    begun = worker.Run(training.build(two_replicas), strategy=two_replicas, directory=directory, interval="100 steps")
    with pytest.raises(ZeroDivisionError), begun as run:
        run.step_done()
        run.step_done(loss=1 / 0)
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=directory) as run:
        assert run.step == 6


def test_a_state_that_was_in_memory_unchecked_does_not_fit_if_it_is_not_finite(tmp_path: Path) -> None:
    weights, mask = tf.Variable([1.0, 2.0]), tf.Variable([-np.inf])
    tracked, key = tf.train.Checkpoint(weights=weights, mask=mask), "mask/.ATTRIBUTES/VARIABLE_VALUE"

    require_finite(tracked, tmp_path)
    (tmp_path / layout.FROM_MEMORY).write_text(json.dumps({"format": 1, "not_finite": [key]}))
    require_finite(tracked, tmp_path)
    weights.assign([1.0, np.nan])
    with pytest.raises(Unfit, match="weights is not finite"):
        require_finite(tracked, tmp_path)
    (tmp_path / layout.FROM_MEMORY).unlink()
    require_finite(tracked, tmp_path)


class OfTwoParts(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.used(inputs)


@pytest.mark.filterwarnings(r"ignore:.build\(\). was called on layer")
def test_model_of_which_build_has_made_no_variables_is_refused_and_one_with_an_unused_layer_is_not() -> None:
    model = OfTwoParts()
    model.build((None, 3))
    optimizer = tf.keras.optimizers.Adam()
    tracked = tf.train.Checkpoint(model=model, optimizer=optimizer)

    with pytest.raises(ValueError, match="no variables yet; give it an Input, or call it once"):
        build_variables(tracked, None)

    model(np.zeros((1, 3), "float32"))
    build_variables(tracked, None)
    assert optimizer.built


def test_optimizer_that_a_model_was_compiled_with_trains_that_model() -> None:
    def layered(*layers: tf.keras.layers.Layer) -> tf.keras.Model:
        return tf.keras.Sequential([tf.keras.Input((2,)), *layers])

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model, own = layered(tf.keras.layers.Dense(1)), tf.keras.optimizers.SGD(momentum=0.9)
        model.compile()
    build_variables(tf.train.Checkpoint(model=model, optimizer=own), strategy)
    assert own.built
    assert model.optimizer.built

    generator, discriminator = layered(tf.keras.layers.Dense(2)), layered(tf.keras.layers.Dense(1))
    discriminator.compile(tf.keras.optimizers.Adam(name="critics"))
    discriminator.trainable = False
    combined = layered(generator, discriminator)
    combined.compile("adam")
    tracked = tf.train.Checkpoint(discriminator=discriminator, combined=combined)
    with pytest.raises(ValueError, match="cannot find out which variables 'critics' trains"):
        build_variables(tracked, None)

    discriminator.trainable = True
    build_variables(tracked, None)

    assert len(discriminator.optimizer.variables) == 2 + 2 * 2
