"""Builds what Keras would build at the first step: a checkpoint can be restored only into variables that exist."""

from typing import Any

import tensorflow as tf

from worker.checkpoint.restore import has_variables
from worker.data.resume_dataset import is_none_spec
from worker.internals import keras_internals
from worker.internals.keras_internals import layers_of
from worker.keras.data.fit_data import FitData
from worker.process.reporting import describe_error


def build_from_data(model: Any, data: FitData) -> None:
    """Builds a model that was made without an Input from the types and shapes of its first batch, as Keras does.

    Raises ValueError, saying what to call, for a model that Keras can't call without values.
    """
    is_built = has_variables(model)
    if is_built and all(layer.built for layer in layers_of(model)):
        return
    with model.distribute_strategy.scope():
        try:
            build_symbolically(model, data.element_spec())
        except Exception as error:
            if is_built:  # what is not may be a layer that the model does not use
                return
            raise ValueError(
                f"cannot build model {model.name!r} from the shapes of its data ({describe_error(error)}), and without "
                f"variables nothing can be restored; give it an Input, or call it once, as in model(x), "
                f"before fit"
            ) from error


def build_symbolically(model: Any, spec: Any) -> None:
    """Creates the variables of a model, of its metrics and of its optimizer. `spec`: of a batch."""
    keras_internals.build_symbolically(model, tf.nest.map_structure(_without_none, spec))


def _without_none(spec: Any) -> Any:
    return None if is_none_spec(spec) or isinstance(spec, tf.OptionalSpec) else spec


def build_with_train_step(model: Any, data: FitData) -> None:
    """Traces the model's train step, without executing it, if it trains with several optimizers that have no variables.

    Only the step itself says which variables each of them trains.
    """
    parts = tf.train.TrackableView(model).descendants()
    optimizers = [part for part in parts if isinstance(part, tf.keras.optimizers.Optimizer)]
    waiting = [optimizer for optimizer in optimizers if not optimizer.built and optimizer is not model.optimizer]
    spec = data.element_spec() if waiting else None
    if spec is None:
        return
    strategy = model.distribute_strategy

    def step(batch: Any) -> Any:
        return strategy.run(model.train_step, args=(batch,))

    before = model.train_function
    try:
        with strategy.scope():
            tf.function(step).get_concrete_function(_with_any_batch_size(spec))
    except Exception as error:
        names = ", ".join(repr(layer.name) for layer in waiting)
        raise ValueError(
            f"cannot find out which variables the optimizers {names} train: the train step can't be traced "
            f"({describe_error(error)}); call optimizer.build(variables) for each of them before fit"
        ) from error
    finally:
        model.train_function = before


def _with_any_batch_size(spec: Any) -> Any:
    def relaxed(part: Any) -> Any:
        if not isinstance(part, tf.TensorSpec) or part.shape.rank in (None, 0):
            return part
        return tf.TensorSpec([None, *part.shape[1:]], part.dtype)

    return tf.nest.map_structure(relaxed, spec)
