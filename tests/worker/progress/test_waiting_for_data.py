"""Time that the training loop waits for data, in the reports to the daemon and in its goodput account."""

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Done, Go, Progress
from tests.system.harness import Daemon
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.tensorflow
SLOW_S = 0.05  # a batch
STEPS = 12


def slow(count: int = STEPS) -> tf.data.Dataset:
    def batches() -> Iterator[int]:
        for number in range(count):
            time.sleep(SLOW_S)
            yield number

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # else a batch is made while a step runs
    return tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((), tf.int64)).with_options(options)


def test_waiting_for_data_is_reported_once_and_excludes_steps(
    daemon: DaemonEnd, begin: Callable[[Launch], None], tmp_path: Path
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "checkpoints"))
    daemon.send(Go(1, None))
    step_s, began = 0.02, time.monotonic()
    with worker.Run(training.build(tf.distribute.get_strategy())) as run:
        for _ in run.batches(slow()):
            time.sleep(step_s)
            run.step_done()
    daemon.wait_for(Done)

    total_s = sum(each.data_s or 0.0 for each in daemon.all_of(Progress))
    assert total_s >= STEPS * SLOW_S
    assert total_s < time.monotonic() - began - STEPS * step_s


SCRIPT = """
    import time
    import tensorflow as tf
    import worker

    def batches():
        for number in range(40):
            time.sleep(0.1)
            yield number

    step = tf.Variable(0)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((), tf.int64)).with_options(options)
    with worker.Run(tf.train.Checkpoint(step=step)) as run:
        for number in run.batches(data):
            step.assign_add(1)
            run.step_done(loss=1.0)
"""


@pytest.mark.integration
@pytest.mark.slow  # a process of its own imports TensorFlow
def test_a_slow_dataset_shows_in_the_goodput(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(SCRIPT))
    section = f"[program:t]\ncommand={sys.executable} {script}\ncheckpoint_dir={tmp_path}/t\nstandby=off\n"
    with Daemon(tmp_path, section) as daemon:
        daemon.until_state("t", "SUCCEEDED", "FAILED", patience_s=120)

        spent_s = daemon.call("goodput", name="t")["spent_s"]
        assert spent_s["data"] >= 3.0, spent_s  # of 40 batches that took 0.1 s each
