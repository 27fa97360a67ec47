"""How Keras takes data in `model.fit`: its adapters, which are not public."""

from typing import Any

import tensorflow as tf

from worker.internals.required import require

_adapters = "keras.src.trainers.data_adapters"
_arrays = require(f"{_adapters}.array_data_adapter", "ArrayDataAdapter", "can_convert_arrays")
_slicing = require(
    f"{_adapters}.array_slicing", "convert_to_sliceable", "train_validation_split", "TensorflowSparseWrapper",
    "slice_tensorflow_sparse_wrapper",
)  # fmt: skip
_datasets = require(f"{_adapters}.tf_dataset_adapter", "make_class_weight_map_fn")
_generators = require(f"{_adapters}.generator_data_adapter", "GeneratorDataAdapter.get_tf_dataset")
_py_datasets = require(f"{_adapters}.py_dataset_adapter", "PyDatasetAdapter.get_tf_dataset")
_specs = require(f"{_adapters}.data_adapter_utils", "get_tensor_spec")

DataAdapter: Any = require(f"{_adapters}.data_adapter", "DataAdapter.get_tf_dataset").DataAdapter
"""The base class of what Keras takes in place of data."""
SparseArray: Any = _slicing.TensorflowSparseWrapper
"""A sparse array as Keras slices it."""
tree = require("keras.src.tree", "flatten", "traverse", "lists_to_tuples")
"""keras.tree as Keras itself uses it for data."""

are_convertible: Any = _arrays.can_convert_arrays
split_for_validation: Any = _slicing.train_validation_split
rows_of_sparse: Any = _slicing.slice_tensorflow_sparse_wrapper
weights_by_class: Any = _datasets.make_class_weight_map_fn
spec_of_batches: Any = _specs.get_tensor_spec


def convert_arrays(
    arrays: tuple[Any, Any, Any], batch_size: int | None, steps: int | None, class_weight: Any
) -> tuple[Any, int, int]:
    """x, y and sample_weight as Keras checks and converts them, with the number of examples and the batch size."""
    x, y, sample_weight = arrays
    adapter = _arrays.ArrayDataAdapter(x, y, sample_weight, batch_size, steps, shuffle=False, class_weight=class_weight)
    parts = _slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    return tree.lists_to_tuples(parts), int(adapter._num_samples), int(adapter.batch_size)


def py_dataset_signature(dataset: Any, class_weight: Any) -> Any:
    """What the first two batches of a PyDataset look like, which are read for it."""
    adapter = _py_datasets.PyDatasetAdapter(dataset, class_weight=class_weight, shuffle=False)
    adapter.get_tf_dataset()
    return adapter._output_signature


def read_py_dataset(dataset: Any, class_weight: Any, signature: Any) -> tf.data.Dataset:
    """The batches of a PyDataset, which look like `signature`."""
    adapter = _py_datasets.PyDatasetAdapter(dataset, class_weight=class_weight, shuffle=False)
    adapter._output_signature = signature
    return adapter.get_tf_dataset()


def read_generator(batches: Any, signature: Any) -> tf.data.Dataset:
    """The batches of an iterator, which look like `signature`; None: like its first ones."""
    adapter = _generators.GeneratorDataAdapter(batches)
    adapter._output_signature = signature
    return adapter.get_tf_dataset()
