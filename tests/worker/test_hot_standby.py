"""A hot standby leaves the state unchanged, and training uses the step that it traced."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol import layout
from supervisor.protocol.wire.launch import Control, DaemonIdentity, Interval, Launch
from supervisor.protocol.wire.messages import STANDBY, Committed, Done, Go, Promote, Ready, Restored
from tests.fuzzing import cases
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from tests.worker.run.test_multiworker import Start, start
from worker import batch_spec, hot_standby, loop
from worker.checkpoint.restore import build_variables
from worker.process.attempt import Attempt
from worker.process.reporting import ConsoleReporter
from worker.process.requests import PendingRequests
from worker.state import extra_state

__all__ = ["start"]
pytestmark = pytest.mark.tensorflow
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def described(strategy: Any, loss: Callable[[Any, Any], Any] = LOSS) -> tuple[loop.Training, tf.train.Checkpoint]:
    tracked = training.build(strategy)
    build_variables(tracked, strategy)
    return loop.Training(tracked.model, tracked.optimizer, loss, training.data(), 4), tracked


def first_batch(strategy: Any) -> Any:
    from worker.data.batches import BatchReader
    from worker.state.state_file import Position

    feed = BatchReader(training.data(), strategy, Position())
    batch = next(feed.rest_of_epoch())
    feed.abandon()
    return batch


def traced(trained: loop.Training, strategy: Any, directory: Path) -> Any:
    present = Attempt(Launch(checkpoint_dir=directory), PendingRequests(), ConsoleReporter())
    return hot_standby._trace_step(present, trained, strategy, 1, directory)


@pytest.mark.parametrize("replicas", [1, 2])
def test_tracing_ahead_changes_nothing_and_training_uses_the_trace(
    replicas: int, two_replicas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.OneDeviceStrategy("/cpu:0")
    trained, tracked = described(strategy)
    batch = first_batch(strategy)
    batch_spec.write_spec(tmp_path, batch)
    before, generators = training.all_values(tracked), repr(extra_state.read_generators())

    step = traced(trained, strategy, tmp_path)

    assert all(np.array_equal(*pair) for pair in zip(before, training.all_values(tracked), strict=True))
    assert repr(extra_state.read_generators()) == generators
    assert "without running it" not in capsys.readouterr().err
    assert step.experimental_get_tracing_count() == 1
    step(*batch)
    assert step.experimental_get_tracing_count() == 1, "the real batch found the trace"
    assert not all(np.array_equal(*pair) for pair in zip(before, training.all_values(tracked), strict=True))


def test_a_step_that_fails_on_zeros_leaves_everything_as_it_was(two_replicas: Any, tmp_path: Path) -> None:
    def picky(labels: Any, predictions: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_positive(tf.cast(labels, tf.float32))]):
            return LOSS(labels, predictions)

    trained, tracked = described(two_replicas, picky)
    batch_spec.write_spec(tmp_path, first_batch(two_replicas))
    before = training.all_values(tracked)

    assert traced(trained, two_replicas, tmp_path) is None
    assert all(np.array_equal(*pair) for pair in zip(before, training.all_values(tracked), strict=True))


def test_state_that_cannot_be_put_back_is_recognised(two_replicas: Any, tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def drawn(labels: Any, predictions: Any) -> Any:
        return LOSS(labels, predictions) * tf.random.uniform([])

    def looked_up(labels: Any, predictions: Any) -> Any:
        return LOSS(labels, predictions) + table.lookup(tf.cast(labels, tf.int64))

    def python(labels: Any, predictions: Any) -> Any:
        return LOSS(labels, predictions) + tf.py_function(lambda: 0.0, [], tf.float32)

    found = {}
    for name, loss in {"plain": LOSS, "drawn": drawn, "table": looked_up, "python": python}.items():
        trained, _ = described(tf.distribute.OneDeviceStrategy("/cpu:0"), loss)
        step: Any = loop.train_step(trained, tf.distribute.OneDeviceStrategy("/cpu:0"))
        images, labels = first_batch(tf.distribute.OneDeviceStrategy("/cpu:0"))
        found[name] = hot_standby.unrestorable_state(step.get_concrete_function(images, labels))

    assert found["plain"] == []
    assert found["drawn"] == ["RandomUniform"]
    assert "a table or a dataset" in found["table"]
    assert found["python"] == ["EagerPyFunc"]


def test_zero_batch_has_the_shape_of_the_recorded_one(two_replicas: Any, tmp_path: Path) -> None:
    parts = [
        (
            {"image": tf.zeros([2 + replica, 3]), "name": tf.constant(["a"] * 2)},
            [tf.zeros([], tf.int64), (tf.ones([1]),)],
        )
        for replica in range(2)
    ]
    batch = tf.nest.map_structure(
        lambda *each: two_replicas.experimental_distribute_values_from_function(
            lambda context: each[context.replica_id_in_sync_group]
        ),
        *parts,
    )

    batch_spec.write_spec(tmp_path, batch)
    made = batch_spec.zero_batch(tmp_path, two_replicas)

    assert tf.nest.map_structure(str, specs(made)) == tf.nest.map_structure(str, specs(batch))


def specs(batch: Any) -> Any:
    return tf.nest.map_structure(
        lambda each: str([(part.dtype, part.shape, part.device) for part in getattr(each, "values", (each,))]), batch
    )


def test_batch_that_cannot_be_described_is_refused(tmp_path: Path) -> None:
    with pytest.raises(batch_spec.UnknownBatchSpec, match="RaggedTensor"):
        batch_spec.write_spec(tmp_path, (tf.ragged.constant([[1], [1, 2]]),))


CONTENT = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "tuple", "list", "dict", "replicas", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.mark.fuzz
@cases(200, deadline=None)
@given(CONTENT.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_damaged_description_raises_unknown_batch_spec(tmp_path_factory: Any, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("b")
    (folder / layout.BATCH).write_bytes(content)

    with contextlib.suppress(batch_spec.UnknownBatchSpec):
        batch_spec.zero_batch(folder, tf.distribute.get_strategy())


# --- whole processes --------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(400)  # three processes, each of which imports TensorFlow and traces
def test_a_hot_standby_ends_with_the_bits_of_an_undisturbed_run(start: Start, tmp_path: Path) -> None:
    """A job is killed and continued by a hot standby: its last checkpoint equals that of an undisturbed run."""
    entry = ("-m", "worker", "tests.worker.children.entries:exact")

    def told(name: str, **other: Any) -> Launch:
        settings = {"checkpoint_dir": tmp_path / name, "deterministic": True, "replicas": 2, "standby": "hot"}
        return Launch(checkpoint_interval=Interval(steps=5), **{**settings, **other})

    whole = start(*entry, launch=told("a"))
    daemon = DaemonEnd(tmp_path / "first")
    first = start(*entry, launch=told("b", control=daemon.control()))
    daemon.send(Go(1, None))
    daemon.wait_for(Committed, 120.0, among=lambda said: said.step == 5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert whole.wait(120) == 0

    end = DaemonEnd(tmp_path / "second", STANDBY)
    daemon_is = DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 0)
    second = start(*entry, launch=told("b", control=Control(STANDBY, end.folder), waits_for=daemon_is))
    ready = end.wait_for(Ready, 120.0)
    folder = end.folder.rename(end.folder.parent / "a2")
    end.send(Promote(2, str(folder)))
    end.send(Go(2, str(tmp_path / "b" / "step-0000000005.a1")))
    end.wait_for(Done, 120.0)

    assert second.wait(60) == 0
    assert ready.kind == "hot"
    assert end.wait_for(Restored).step == 5
    assert "tracings 1" in (second.communicate()[0]), "it used what it had traced"
    undisturbed, disturbed = tmp_path / "a" / "step-0000000012.a1", tmp_path / "b" / "step-0000000012.a2"
    files = sorted(path.name for path in undisturbed.glob("*.data-*"))
    assert len(files) == 2, "the tensors, and those of the second replica"
    for name in files:
        assert (undisturbed / name).read_bytes() == (disturbed / name).read_bytes()
    states = [json.loads((each / layout.STATE).read_bytes()) for each in (undisturbed, disturbed)]
    assert states[0] == states[1]
    daemon.close()
    end.close()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hot_standby_without_a_checkpoint_starts_in_a_fresh_process(start: Start, tmp_path: Path) -> None:
    batch_spec.write_spec(tmp_path / "b", first_batch(tf.distribute.get_strategy())) if (
        tmp_path / "b"
    ).mkdir() is None else None
    end = DaemonEnd(tmp_path / "pipes", STANDBY)
    daemon_is = DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 0)
    launch = Launch(
        control=Control(STANDBY, end.folder), checkpoint_dir=tmp_path / "b", standby="hot", waits_for=daemon_is
    )
    process = start("-m", "worker", "tests.worker.children.entries:good", launch=launch)
    assert end.wait_for(Ready, 120.0).kind == "hot"
    folder = end.folder.rename(end.folder.parent / "a1")
    end.send(Promote(1, str(folder)))
    end.send(Go(1, None))
    end.wait_for(Done, 120.0)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 0, errors
    assert "no checkpoint of this job" in errors
    assert end.wait_for(Restored).checkpoint is None
    end.close()
