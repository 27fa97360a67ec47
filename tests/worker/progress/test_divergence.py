"""Training that diverges is detected at its step, is never committed, and ends as configured."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Committed, Failed, Flush, Go, Then
from tests.worker.daemon_end import DaemonEnd
from worker.progress.divergence import MIN_LOSSES, DivergenceWatch, SpikeDetector

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
BATCH = 4
POISON = 9  # the batch of epoch 0 that holds a NaN; its step is the next number


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


class Line:
    """Fits a line to points; one batch may contain a NaN. `seen`: the first point of every batch trained on."""

    def __init__(self) -> None:
        self.slope = tf.Variable(0.0)
        self.tracked = tf.train.Checkpoint(slope=self.slope)
        self.points = np.arange(1, 20 * BATCH + 1, dtype="float32")
        self.seen: list[float] = []

    def poisoned(self) -> "Line":
        self.points[POISON * BATCH + 1] = math.nan
        return self

    def train(self, steps: int, directory: Path | None = None, **settings: Any) -> worker.Run:
        data = worker.Examples(self.points, batch_size=BATCH, shuffle=False)
        with worker.Run(self.tracked, total_steps=steps, directory=directory, **settings) as run:
            for batch in run.batches(data):
                error = self.slope * batch / 80.0 - 1.0
                self.slope.assign_sub(0.01 * tf.reduce_mean(error * batch / 80.0))
                self.seen.append(float(batch[0]))
                run.step_done(loss=tf.reduce_mean(error * error))
        return run


def start(begin: Begin, daemon: DaemonEnd, directory: Path, restore: str | None = None, **settings: Any) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_interval=Interval(steps=2), **settings))
    daemon.send(Go(daemon.attempt, restore))


def test_a_loss_that_is_not_finite_ends_the_attempt_and_names_its_step(
    daemon: DaemonEnd, begin: Begin, directory: Path
) -> None:
    start(begin, daemon, directory)

    with pytest.raises(SystemExit) as leaving:
        Line().poisoned().train(20)

    assert leaving.value.code == WorkerExit.DIVERGED
    words = daemon.wait_for(Failed)
    assert (words.step, words.go_back, words.batches) == (POISON + 1, False, ())
    assert words.error == f"loss of step {POISON + 1} is nan"
    assert selection.committed_checkpoints(directory)[0].step <= POISON


def test_script_chooses_rollback_if_the_configuration_does_not_decide(
    daemon: DaemonEnd, begin: Begin, directory: Path
) -> None:
    start(begin, daemon, directory)

    with pytest.raises(SystemExit):
        Line().poisoned().train(20, on_nan="rollback")

    assert daemon.wait_for(Failed).go_back
    assert not (directory / layout.SKIPPED).exists()


def test_on_nan_off_trains_on_and_commits_anything(daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    start(begin, daemon, directory, on_nan="off")

    Line().poisoned().train(20, on_nan="stop")

    assert selection.committed_checkpoints(directory)[0].step == 20


def test_skip_excludes_the_batches_from_all_later_attempts(tmp_path: Path, begin: Begin, directory: Path) -> None:
    first, second = DaemonEnd(tmp_path / "run", 1), DaemonEnd(tmp_path / "run", 2)
    try:
        start(begin, first, directory, on_nan="skip")
        with pytest.raises(SystemExit):
            Line().poisoned().train(18)
        words = first.wait_for(Failed)
        start(begin, second, directory, str(directory / "step-0000000006.a1"), on_nan="skip")
        line = Line().poisoned()

        line.train(18)

        batches = [int(each - 1) // BATCH for each in line.seen]
    finally:
        first.close()
        second.close()
    assert words.batches == (f"0:{POISON - 1}", f"0:{POISON}")
    assert batches == [6, 7, *range(POISON + 1, 20)]
    assert np.isfinite(line.slope.numpy())
    recorded = json.loads((directory / layout.SKIPPED).read_text())["left_out"]
    assert [(each["epoch"], each["batch"], each["step"]) for each in recorded] == [(0, 8, 10), (0, 9, 10)]


def test_a_state_that_is_not_finite_is_never_committed(daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    start(begin, daemon, directory)
    weight = tf.Variable([1.0, 2.0])

    with pytest.raises(SystemExit) as leaving, worker.Run(tf.train.Checkpoint(weight=weight)) as run:
        run.step_done(loss=1.0)
        weight.assign([1.0, math.inf])
        for _ in range(1000):
            run.step_done(loss=1.0)

    assert leaving.value.code == WorkerExit.DIVERGED
    words = daemon.wait_for(Failed)
    assert words.step == 2 and "weight is not finite" in words.error
    assert selection.committed_checkpoints(directory) == []


@pytest.mark.parametrize("kind", ["complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "bfloat16"])
def test_nan_is_found_in_every_element_type(kind: str, daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    start(begin, daemon, directory)
    weight, mask = (tf.Variable(tf.cast(each, kind)) for each in ([1.0, 2.0], [math.nan, 2.0]))

    with pytest.raises(SystemExit) as leaving, worker.Run(tf.train.Checkpoint(weight=weight, mask=mask)) as run:
        run.step_done(loss=1.0)
        weight.assign(tf.cast([1.0, math.nan], kind))
        for _ in range(1000):
            run.step_done(loss=1.0)

    assert leaving.value.code == WorkerExit.DIVERGED
    assert "weight is not finite" in daemon.wait_for(Failed).error
    assert selection.committed_checkpoints(directory) == []


def test_a_flush_of_a_state_that_is_not_finite_is_refused(daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_interval=Interval(steps=10**9)))
    daemon.send(Go(1, None))
    weight = tf.Variable(1.0)

    with pytest.raises(SystemExit) as leaving, worker.Run(tf.train.Checkpoint(weight=weight)) as run:
        weight.assign(math.nan)
        daemon.send(Flush(1, 1, "stop", Then.STOP))
        while True:
            run.step_done(loss=1.0)

    assert leaving.value.code == WorkerExit.DIVERGED
    assert daemon.wait_for(Failed).error.endswith("training diverged")
    assert daemon.all_of(Committed) == []


def test_value_that_was_infinite_before_training_is_accepted(daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    start(begin, daemon, directory)
    mask, weight = tf.Variable([0.0, -math.inf]), tf.Variable(np.full(9, 65000.0, "float16"))

    with worker.Run(tf.train.Checkpoint(mask=mask, weight=weight)) as run:
        run.step_done(loss=1.0)

    assert selection.committed_checkpoints(directory)[0].step == 1


def test_metrics_are_read_on_demand_and_the_first_bad_one_counts() -> None:
    watch = DivergenceWatch()
    for step, loss in enumerate([1.0, math.nan, 1.0, math.inf], start=1):
        watch.record_step(step, {"loss": tf.constant(loss), "score": math.nan}, [(0, step - 1)])

    trouble = watch.find_divergence()

    assert trouble is not None
    assert (trouble.step, trouble.text, trouble.batches) == (2, "loss of step 2 is nan", ((0, 0), (0, 1)))
    assert watch.find_divergence() is None


def test_all_batches_since_the_last_finite_state_are_suspects() -> None:
    watch = DivergenceWatch()
    for step in range(1, 9):
        watch.record_step(step, {}, [(0, step - 1)])

    trouble = watch.divergence_at(7, "weight is not finite", fine_at=4)

    assert trouble.batches == ((0, 4), (0, 5), (0, 6))


@pytest.mark.parametrize(("last", "is_one"), [(1.1, False), (3.0, True), (0.1, False)])
def test_a_spike_is_far_above_the_median_by_deviations(last: float, is_one: bool) -> None:
    spikes = SpikeDetector(factor=20.0)
    usual = [spikes.is_spike(1.0 + 0.05 * math.sin(number)) for number in range(100)]

    assert not any(usual)
    assert spikes.is_spike(last) is is_one


def test_first_steps_are_never_spikes() -> None:
    spikes = SpikeDetector(factor=5.0)

    assert not any(spikes.is_spike(10.0**number) for number in range(MIN_LOSSES))


def test_spike_ends_the_attempt_if_loss_spike_is_set(daemon: DaemonEnd, begin: Begin, directory: Path) -> None:
    start(begin, daemon, directory, on_nan="rollback", loss_spike=20.0)
    weight = tf.Variable(1.0)

    with pytest.raises(SystemExit), worker.Run(tf.train.Checkpoint(weight=weight)) as run:
        for step in range(1, 200):
            run.step_done(loss=50.0 if step == 60 else 1.0 + 0.01 * (step % 5))

    words = daemon.wait_for(Failed)
    assert words.step == 60 and "loss_spike" in words.error and words.go_back
