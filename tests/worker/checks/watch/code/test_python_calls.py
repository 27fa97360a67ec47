"""What a traced function leaves to Python is read in each step, so it is no constant there."""

import inspect
import types

import numpy as np
import tensorflow as tf

from worker.checks.watch.code.python_calls import names_traced

config = types.SimpleNamespace(scale=1.0, limit=3.0, rate=0.1)


def clip(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, config.limit)


def left_to_python(batch: tf.Tensor) -> tf.Tensor:
    clipped = tf.numpy_function(clip, [batch], tf.float32)
    return tf.py_function(lambda values: values * config.scale, [clipped], tf.float32)


def called_too(batch: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(clip, [batch], tf.float32) + clip(batch) * config.rate


def test_functions_that_are_given_to_python_are_left_out() -> None:
    assert names_traced(inspect.unwrap(left_to_python).__code__).isdisjoint({"clip", "scale", "config"})


def test_a_function_that_is_called_while_tracing_is_not() -> None:
    assert {"clip", "rate", "config"} <= names_traced(called_too.__code__)
