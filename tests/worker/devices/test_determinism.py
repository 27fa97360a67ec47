"""What `deterministic` switches in TensorFlow, in a process of its own: the switches hold for the whole process."""

import os
import subprocess
import sys

import pytest

from supervisor.protocol.wire.launch import without_launch_variables
from tests.places import ROOT

SCRIPT = """
import worker

worker.strategy(deterministic=True)

import tensorflow as tf

assert tf.config.optimizer.get_experimental_options()["arithmetic_optimization"] is False
"""


@pytest.mark.integration
@pytest.mark.slow
def test_the_optimizer_that_reorders_sums_is_off() -> None:
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=250, check=False
    )

    assert done.returncode == 0, done.stderr
