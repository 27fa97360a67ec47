"""What a start looks for in the variables, and what that costs."""

import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from worker.checkpoint.snapshot import find_variables_not_finite

pytestmark = pytest.mark.tensorflow
SIZE_BYTES = 16 << 20


@pytest.mark.parametrize("make", [tf.Variable, tf.keras.Variable], ids=["tf", "keras"])
def test_a_look_for_values_that_are_not_finite_copies_no_variable(make: type) -> None:
    tracked = tf.train.Checkpoint(bad=make([np.inf, 1.0]), large=make(np.ones(SIZE_BYTES // 4, np.float32)))

    tracemalloc.start()
    try:
        found = find_variables_not_finite(tracked)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == {"bad/.ATTRIBUTES/VARIABLE_VALUE"}
    assert peak_bytes < SIZE_BYTES // 2
