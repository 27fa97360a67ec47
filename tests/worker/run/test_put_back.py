"""What the head of an epoch changed of the saved variables is put back, whoever holds them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from worker.run.replayed_state import copy_small_variables

pytestmark = pytest.mark.tensorflow


def of_an_optimizer() -> tuple[Any, Any]:
    optimizer = tf.keras.optimizers.SGD(0.1)
    return optimizer, optimizer.learning_rate


def of_the_script() -> tuple[Any, Any]:
    variable = tf.keras.Variable(1.0)
    return variable, variable


def of_a_stateful_layer() -> tuple[Any, Any]:
    model = tf.keras.Sequential([tf.keras.Input((2, 1), batch_size=1), tf.keras.layers.GRU(1, stateful=True)])
    return model, model.layers[0].states[0]


@pytest.mark.parametrize("make", [of_an_optimizer, of_the_script, of_a_stateful_layer])
def test_a_variable_of_keras_that_no_layer_lists_is_put_back(make: Callable[[], tuple[Any, Any]]) -> None:
    tracked, variable = make()
    before = np.array(variable.numpy())
    put_back = copy_small_variables(tf.train.Checkpoint(tracked=tracked))
    variable.assign(before + 1.0)

    put_back()

    assert np.array_equal(variable.numpy(), before)
