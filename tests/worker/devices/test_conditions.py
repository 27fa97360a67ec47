"""All that decides the next step comes back: optimizers of every kind, random state of every kind, conditions."""

import json
import os
import random
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
from supervisor.protocol.wire.launch import Launch, without_launch_variables
from supervisor.protocol.wire.messages import Go, Restored
from tests.places import ROOT
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.devices import conditions
from worker.internals.tensorflow_internals import is_onednn_enabled

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
optimizers = tf.keras.optimizers
schedules = tf.keras.optimizers.schedules

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "AdamW with decay and EMA weights": lambda: optimizers.AdamW(1e-2, use_ema=True, ema_overwrite_frequency=2),
    "loss scaling that has just been raised": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(1e-3), initial_scale=4.0, dynamic_growth_steps=2
    ),
    "SGD with momentum on a warm-up": lambda: optimizers.SGD(
        schedules.CosineDecay(0.0, 100, warmup_target=0.1, warmup_steps=5), momentum=0.9, nesterov=True
    ),
    "gradients added up over steps": lambda: optimizers.RMSprop(1e-3, gradient_accumulation_steps=2),
}


def with_optimizer(strategy: Any, make: Callable[[], Any]) -> tf.train.Checkpoint:
    with strategy.scope():
        return tf.train.Checkpoint(model=training.build(strategy).model, optimizer=make())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_variable_of_an_optimizer_comes_back(make: Callable[[], Any], tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()  # Keras can't do most of them on several replicas
    first = with_optimizer(strategy, make)
    with worker.Run(first, total_steps=3, directory=tmp_path) as run:
        training.train(run, first, strategy)
    fresh = with_optimizer(strategy, make)
    fresh.optimizer.build(fresh.model.trainable_variables)
    changed = [not np.array_equal(*pair) for pair in zip(values(first), values(fresh), strict=True)]
    second = with_optimizer(strategy, make)
    with worker.Run(second, total_steps=3, directory=tmp_path):
        assert all(np.array_equal(*pair) for pair in zip(values(first), values(second), strict=True))

    assert sum(changed) > len(changed) / 2, "else the comparison would prove nothing"


def values(tracked: tf.train.Checkpoint) -> list[np.ndarray]:
    return [variable.numpy() for variable in [*tracked.model.weights, *tracked.optimizer.variables]]


def draws_of(strategy: Any) -> Callable[[], list[float]]:
    """Draws by keras.random with seed=None in a compiled step."""

    def on_replica() -> Any:
        return tf.keras.random.normal([3])

    draw = tf.function(lambda: strategy.run(on_replica))
    return lambda: draw().numpy().tolist()


@pytest.mark.parametrize("device", [None, "/cpu:0"])
def test_keras_global_generator_goes_on(device: str | None, tmp_path: Path) -> None:
    """On several replicas Keras itself refuses: each replica's thread would make a generator of its own."""
    strategy = tf.distribute.get_strategy() if device is None else tf.distribute.OneDeviceStrategy(device)
    tf.keras.utils.clear_session()
    with worker.Run(training.build(strategy), strategy=strategy, directory=tmp_path) as run:
        draw = draws_of(strategy)
        before = draw()
        run.step_done()
    expected = [draw(), draw()]
    tf.keras.utils.set_random_seed(99)  # another process would have another one
    tf.keras.utils.clear_session()
    with worker.Run(training.build(strategy), strategy=strategy, directory=tmp_path):
        draw = draws_of(strategy)
        found = [draw(), draw()]

    assert found == expected
    assert before not in expected


def test_making_kerass_global_generator_takes_nothing_from_pythons(two_replicas: Any, tmp_path: Path) -> None:
    tf.keras.utils.clear_session()
    tracked = training.build(two_replicas)
    random.seed(4)
    expected = random.random()
    random.seed(4)
    with worker.Run(tracked, strategy=two_replicas, directory=tmp_path):
        assert random.random() == expected


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_generators_of_the_scripts_own_go_on(kind: str, two_replicas: Any, tmp_path: Path) -> None:
    def own(seed: int) -> tuple[Any, ...]:
        bits = getattr(np.random, kind)(seed)
        old = np.random.RandomState(getattr(np.random, kind)(seed + 7))
        return np.random.Generator(bits), old, random.Random(seed), tf.keras.random.SeedGenerator(seed)

    def drawn(numpy: Any, old: Any, python: Any, keras: Any) -> list[Any]:
        several = numpy.integers(1 << 60), numpy.standard_normal(), old.standard_normal()  # leaves one for next time
        return [*several, python.gauss(), keras.next().numpy().tolist()]

    mine = own(seed=1)
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path, generators=mine) as run:
        drawn(*mine)
        run.step_done()
    expected = drawn(*mine)
    mine = own(seed=2)
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path, generators=mine):
        assert drawn(*mine) == expected


def test_checkpoint_of_other_generators_does_not_fit(
    begin: Begin, two_replicas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(Launch(checkpoint_dir=tmp_path))
    mine = [random.Random(1)]
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path, generators=mine) as run:
        run.step_done()
    begin(Launch(checkpoint_dir=tmp_path))  # the next attempt
    run = worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path)
    with pytest.raises(SystemExit) as leaving, run:
        pass

    assert leaving.value.code == 65
    assert "the state of 1 generator of the script, but worker.Run was given 0" in capsys.readouterr().err


def test_generator_that_a_checkpoint_takes_is_refused_with_the_place_it_belongs(two_replicas: Any) -> None:
    tracked = training.build(two_replicas)

    with pytest.raises(TypeError, match=r"track it in the tf\.train\.Checkpoint instead"):
        worker.Run(tracked, strategy=two_replicas, generators=[tf.random.Generator.from_seed(1)])


# --- conditions ----------------------------------------------------------------------------------------------------


def test_job_killed_before_its_first_checkpoint_begins_again_with_the_threads_it_had(
    two_replicas: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    run = worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path)
    with pytest.raises(ZeroDivisionError), run:
        raise ZeroDivisionError  # as a kill does: nothing is saved
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")

    assert not list(tmp_path.glob("step-*"))
    assert conditions.recorded_threads(conditions.recorded_conditions(tmp_path)) == 3


def test_relaunch_under_other_conditions_says_so_before_it_trains(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path) as run:
        run.step_done()
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(tmp_path / "step-0000000001.a1")))
    with worker.Run(training.build(two_replicas), strategy=two_replicas):
        restored = daemon.wait_for(Restored)

    assert restored.changed == ("intra_op_threads is 5, was 3", "tf32 is False, was True")


def test_relaunch_under_the_same_conditions_says_nothing(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, tmp_path: Path
) -> None:
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path) as run:
        run.step_done()
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(tmp_path / "step-0000000001.a1")))
    with worker.Run(training.build(two_replicas), strategy=two_replicas):
        pass

    assert daemon.wait_for(Restored).changed == ()


ENVIRONMENT_OF_TENSORFLOW = "import worker, os; print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))"


def said_by(program: str, launch: Launch, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **without_launch_variables(os.environ),
        **launch.to_environment(),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("recorded", "deterministic", "variables", "told"),
    [
        ({"onednn": False}, True, {}, "0"),
        ({"onednn": True}, True, {}, "1"),
        ({"onednn": False}, True, {"TF_ENABLE_ONEDNN_OPTS": "1"}, "1"),
        ({"onednn": False}, False, {}, "None"),
        ({"onednn": "no"}, True, {}, "None"),
        ({"torch": "2"}, True, {}, "None"),
        (None, True, {}, "None"),
    ],
)
def test_deterministic_job_has_onednn_as_before_unless_the_environment_says(
    recorded: dict[str, Any] | None, deterministic: bool, variables: dict[str, str], told: str, tmp_path: Path
) -> None:
    if recorded is not None:
        (tmp_path / layout.CONDITIONS).write_text(json.dumps(recorded))
    launch = Launch(deterministic=deterministic, checkpoint_dir=tmp_path)

    assert said_by(ENVIRONMENT_OF_TENSORFLOW, launch, **variables).stdout.strip() == told


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("first", ["worker", "tensorflow"])
def test_onednn_is_as_before_where_worker_is_imported_first_and_else_it_says_so(first: str, tmp_path: Path) -> None:
    before = not is_onednn_enabled()
    (tmp_path / layout.CONDITIONS).write_text(json.dumps({"onednn": before}))
    program = (
        f"import {first}, worker\nworker.strategy()\n"
        "from worker.devices import tensorflow_conditions\nprint(tensorflow_conditions.topology(None)['onednn'])"
    )
    found = said_by(program, Launch(deterministic=True, checkpoint_dir=tmp_path))

    assert found.stdout.split() == [str(before if first == "worker" else not before)]
    assert ("import worker before it" in found.stderr) is (first == "tensorflow")


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "\u0662"])
def test_thread_count_that_tensorflow_would_not_take_counts_as_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", text)

    assert conditions.threads_of_environment() is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"intra_op_threads": true}', '{"intra_op_threads": 0}'])
def test_damaged_record_of_conditions_says_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / layout.CONDITIONS).write_text(content)

    assert conditions.recorded_threads(conditions.recorded_conditions(tmp_path)) is None


def test_newest_checkpoint_counts_before_the_record_of_the_first_start(two_replicas: Any, tmp_path: Path) -> None:
    with worker.Run(training.build(two_replicas), strategy=two_replicas, directory=tmp_path) as run:
        run.step_done()
    (tmp_path / layout.CONDITIONS).write_text(json.dumps({"intra_op_threads": 77}))

    assert conditions.recorded_threads(conditions.recorded_conditions(tmp_path)) == len(os.sched_getaffinity(0))
