"""A Normalization layer computes with what was restored."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch

pytestmark = pytest.mark.tensorflow


def test_a_layer_that_the_first_start_adapted_normalizes_alike_after_a_restart(
    tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    def normalized(total_steps: int) -> float:
        begin(Launch())
        layer = tf.keras.layers.Normalization()
        model = tf.keras.Sequential([tf.keras.Input((1,)), layer])
        with worker.Run(tf.train.Checkpoint(model=model), directory=tmp_path, total_steps=total_steps) as run:
            if run.step == 0:
                layer.adapt(np.array([[4.0], [6.0]], np.float32))
            for _ in run.range(total_steps):
                run.step_done()
            return float(model(np.array([[6.0]], np.float32))[0, 0])

    first = normalized(total_steps=1)

    assert first == normalized(total_steps=2)
