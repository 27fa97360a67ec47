"""Makes TensorFlow's stateful random operations (`tf.random.normal`, `tf.nn.dropout`, …) resume exactly.

Their state is inside their kernels, where nobody can read it. Under `deterministic` they draw from two
tf.random.Generators of this module instead, whose state is in variables: one that has a stream for each replica, for
code inside `strategy.run`, and one for everything else. So they draw other numbers than without `deterministic`, and
the same ones after a restart.

The original operation remains where drawing from a generator would be wrong or impossible: in the functions of a
tf.data.Dataset and in other threads (which run ahead of training), in the functions of an exported model, under
another strategy than that of `worker.strategy()`, and for an operation with a seed of its own, of which two with one
seed have to draw the same numbers.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from worker.internals.tensorflow_internals import global_seed, on_new_global_seed, random_kernels

_FAR_FROM_TRAINING = ("/data/ops/structured_function.py", "/keras/src/export/", "/python/saved_model/")
"""Parts of the paths of code that traces functions for a dataset or an export."""


class _Generators:
    """The two generators; `per_replica` is None without a strategy."""

    def __init__(self, strategy: tf.distribute.Strategy | None) -> None:
        self.strategy = strategy
        self.thread = threading.get_ident()
        self.common = tf.random.Generator.from_seed(1)
        self.per_replica: tf.random.Generator | None = None
        if strategy is not None:
            with strategy.scope():
                self.per_replica = tf.random.Generator.from_seed(1)
        self.reseed(global_seed() or 0)

    def reseed(self, seed: int) -> None:
        """Begins both sequences anew, as `tf.random.set_seed` does for the operations."""
        self.common.reset_from_seed(seed)
        for number, copy in enumerate(self._copies()[1:]):
            copy.assign(tf.random.Generator.from_seed([seed, number + 1]).state)

    def _copies(self) -> list[Any]:
        state = [] if self.per_replica is None else getattr(self.per_replica.state, "values", (self.per_replica.state,))
        return [self.common.state, *state]

    def read(self) -> list[list[int]]:
        """The state of each: the common one, then that of each replica."""
        return [copy.numpy().tolist() for copy in self._copies()]

    def write(self, states: Sequence[Sequence[int]]) -> None:
        """Restores what `read` returned; of another number of replicas, what there is."""
        for copy, state in zip(self._copies(), states, strict=False):
            copy.assign(np.array(state, np.int64))

    def draw_seed(self) -> Any:
        """A seed for one draw of a stateless operation; None where the original operation has to draw."""
        if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
            ahead = threading.get_ident() != self.thread
            generator = None if ahead and tf.executing_eagerly() else self.common
        else:
            generator = self.per_replica if tf.distribute.get_strategy() is self.strategy else None
        if generator is None or (tf.inside_function() and _is_far_from_training()):
            return None
        return generator.make_seeds(1)[:, 0]


_generators: _Generators | None = None
_with_own_seeds: dict[str, bool] | None = None
"""The places in the script that drew with a seed of their own since the loop began, outside of traced functions, and
whether each was told."""
_LIBRARIES = frozenset({"tensorflow", "keras", "worker"})


def watch_own_seeds() -> None:
    """The script's loop begins: from here on a draw with a seed of its own depends on how many came before it."""
    global _with_own_seeds
    if _with_own_seeds is None:
        _with_own_seeds = {}


def pop_own_seeds() -> list[str]:
    """The places that drew so since the last call, each once, as `RandomUniform at train.py:7`."""
    drawn = _with_own_seeds or {}
    places = [place for place, is_told in drawn.items() if not is_told]
    drawn.update(dict.fromkeys(places, True))
    return places


def read() -> list[list[int]] | None:
    """The state of the random operations; None if it can't be read, as they are TensorFlow's own."""
    return None if _generators is None else _generators.read()


def write(states: Sequence[Sequence[int]] | None) -> None:
    """Restores what `read` returned."""
    if _generators is not None and states is not None:
        _generators.write(states)


def make_exact(strategy: tf.distribute.Strategy | None) -> None:
    """From now on, the random operations draw from generators whose state is saved.

    Does nothing under strategies of several processes and of TPUs.
    """
    global _generators
    kinds = (tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy)
    if strategy is not None and type(strategy) not in kinds:
        return
    installed, _generators = _generators is not None, _Generators(strategy)
    if installed:
        return
    for name, stateless in _STATELESS.items():
        kernel = getattr(random_kernels, name)
        setattr(random_kernels, name, _exact(getattr(kernel, "original", kernel), stateless))
    on_new_global_seed(_reseed)


def _reseed(seed: Any) -> None:
    if _generators is not None:
        _generators.reseed(int(seed or 0))


def _exact(original: Callable[..., Any], stateless: Callable[..., Any]) -> Callable[..., Any]:
    def operation(*arguments: Any, seed: int = 0, seed2: int = 0, **named: Any) -> Any:
        own_seed = sys._getframe(1).f_locals.get("seed")  # the caller is tf.random's function, which has the argument
        drawn = None if own_seed is not None or _generators is None else _generators.draw_seed()
        if own_seed is not None and _with_own_seeds is not None and tf.executing_eagerly():
            _note_own_seed(original.__name__)
        if drawn is None:
            return original(*arguments, seed=seed, seed2=seed2, **named)
        return stateless(drawn, *arguments, **named)

    operation.original = original  # type: ignore[attr-defined]
    return operation


def _note_own_seed(name: str) -> None:
    if _generators is None or threading.get_ident() != _generators.thread or _with_own_seeds is None:
        return
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is not None:
        _with_own_seeds.setdefault(f"{name} at {frame.f_code.co_filename}:{frame.f_lineno}", False)


def _is_far_from_training() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _FAR_FROM_TRAINING):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _normal(seed: Any, shape: Any, dtype: Any, name: Any = None) -> Any:
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(seed: Any, shape: Any, dtype: Any, name: Any = None) -> Any:
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


def _uniform(seed: Any, shape: Any, dtype: Any, name: Any = None) -> Any:
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _uniform_int(seed: Any, shape: Any, minval: Any, maxval: Any, name: Any = None) -> Any:
    return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype)


def _shuffle(seed: Any, value: Any, name: Any = None) -> Any:
    value = tf.convert_to_tensor(value)
    numbers = tf.random.stateless_uniform(tf.shape(value)[:1], seed, minval=None, maxval=None, dtype=tf.int64)
    return tf.gather(value, tf.argsort(numbers, stable=True))  # XLA has no stateless shuffle


def _categorical(seed: Any, logits: Any, num_samples: Any, output_dtype: Any = tf.int64, name: Any = None) -> Any:
    seed = tf.bitcast(seed, tf.int32)[:, 0]  # XLA draws with no other kind
    return tf.random.stateless_categorical(logits, num_samples, seed, dtype=output_dtype)


def _gamma(seed: Any, shape: Any, alpha: Any, name: Any = None) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    return tf.random.stateless_gamma(tf.concat([shape, tf.shape(alpha)], 0), seed, alpha, dtype=alpha.dtype)


def _poisson(seed: Any, shape: Any, rate: Any, dtype: Any = tf.int64, name: Any = None) -> Any:
    rate = tf.convert_to_tensor(rate)
    return tf.random.stateless_poisson(tf.concat([shape, tf.shape(rate)], 0), seed, rate, dtype=dtype)


_STATELESS: Mapping[str, Callable[..., Any]] = {
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_shuffle": _shuffle,
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
