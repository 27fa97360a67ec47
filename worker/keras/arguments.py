"""Makes the data of a `fit` out of what `model.fit` takes. Refuses what can't be resumed, and says what to write."""

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from worker.data.examples import Examples
from worker.internals.keras_data import weights_by_class
from worker.internals.tensorflow_internals import global_seed
from worker.keras.data.arrays import ArrayData, are_arrays, split_for_validation
from worker.keras.data.fit_data import DatasetData, ExamplesData, FitData
from worker.keras.data.generator_data import GeneratorData
from worker.keras.data.py_dataset import PyDatasetData
from worker.keras.data.steps_per_epoch import StepsPerEpoch


@dataclass(frozen=True, slots=True)
class DataArguments:
    """The arguments of `model.fit` that say what to train on."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    shuffle: Any = True
    class_weight: Any = None
    steps_per_epoch: int | None = None
    validation_split: float = 0.0
    validation_data: Any = None


def make_fit_data(arguments: DataArguments, epochs: int) -> tuple[FitData, Any]:
    """The data to train on, and to validate with. Raises TypeError or ValueError for what can't be resumed exactly."""
    if arguments.steps_per_epoch is not None and arguments.steps_per_epoch < 1:
        raise ValueError(f"cannot fit with steps_per_epoch={arguments.steps_per_epoch}; use 1 or more, or leave it out")
    if isinstance(arguments.validation_data, types.GeneratorType):
        raise ValueError(
            "cannot validate with a generator object, which each process would read from its beginning; give "
            "validation_data as arrays, a tf.data.Dataset or a keras.utils.PyDataset"
        )
    if not isinstance(arguments.x, Examples) and are_arrays(arguments.x, arguments.y, arguments.sample_weight):
        return _of_arrays(arguments)
    _check_arrays_only(arguments)
    data = _of_batches(arguments, epochs)
    if arguments.steps_per_epoch is not None:
        data = StepsPerEpoch(data, int(arguments.steps_per_epoch))
    return data, arguments.validation_data


def _of_arrays(arguments: DataArguments) -> tuple[FitData, Any]:
    if arguments.x is None:
        raise ValueError("cannot fit without data; give x and y, or a dataset")
    if arguments.shuffle == "batch":
        raise ValueError("cannot fit with shuffle='batch'; use shuffle=True or shuffle=False")
    arrays, validation = (arguments.x, arguments.y, arguments.sample_weight), arguments.validation_data
    if arguments.validation_split and validation is None:
        arrays, validation = split_for_validation(arrays, arguments.validation_split)
    data: FitData = ArrayData(
        arrays,
        arguments.batch_size,
        arguments.steps_per_epoch,
        bool(arguments.shuffle),
        global_seed() or 0,
        arguments.class_weight,
    )
    if arguments.steps_per_epoch is not None:
        data = StepsPerEpoch(data, int(arguments.steps_per_epoch))
    return data, validation


def _check_arrays_only(arguments: DataArguments) -> None:
    names = {"y": arguments.y, "sample_weight": arguments.sample_weight, "batch_size": arguments.batch_size}
    wrong = [name for name, value in names.items() if value is not None]
    wrong += ["validation_split"] if arguments.validation_split else []
    if wrong:
        raise ValueError(
            f"cannot fit with {', '.join(wrong)} and a {type(arguments.x).__name__}: these are for arrays; set the "
            f"batches, labels and weights in the data, and give validation_data="
        )


def _of_batches(arguments: DataArguments, epochs: int) -> FitData:
    """The data that is not arrays."""
    x, in_steps = arguments.x, arguments.steps_per_epoch is not None
    class_weights: Callable[..., Any] | None = None
    if arguments.class_weight is not None:
        class_weights = weights_by_class(arguments.class_weight)
    if isinstance(x, Examples):
        return ExamplesData(x, class_weights)
    if isinstance(x, tf.keras.utils.PyDataset):
        data = PyDatasetData(x, bool(arguments.shuffle), global_seed() or 0, arguments.class_weight)
        if x.num_batches is None and not in_steps:
            raise ValueError(f"cannot fit with a {type(x).__name__} without end; give steps_per_epoch=")
        return data
    if isinstance(x, types.GeneratorType):
        if not in_steps and epochs > 1:
            raise ValueError(
                f"cannot train {epochs} epochs on the generator object {x.__qualname__}: it can be read only once; "
                f"give the function that makes it, without calling it, or steps_per_epoch="
            )
        return GeneratorData(x, class_weights)
    if _makes_generator(x):
        return GeneratorData(x, class_weights)
    return DatasetData(x, class_weights, endless=in_steps)


def _makes_generator(data: Any) -> bool:
    """Whether it is a function that makes generators: with `yield` in it, or without an argument for the epoch."""
    if not callable(data) or isinstance(data, tf.data.Dataset | tf.distribute.DistributedDataset):
        return False
    if inspect.isgeneratorfunction(data):
        return True
    try:
        return not inspect.signature(data).parameters
    except (TypeError, ValueError):
        return False
