"""The state of the validation of a `fit`: the order of its dataset, which decides the last bits of its sums.

Keras reads the validation data from the beginning each time. A shuffled dataset has another order each time, and a
PyDataset may shuffle itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks.dataset_checks import find_in_dataset
from worker.checks.findings import Finding
from worker.data.batches import shared_by_rows
from worker.keras.data.kept_attributes import KeptAttributes
from worker.state.dataset_passes import PassLog


class Validation:
    """What is saved of the validation data."""

    def __init__(self, data: Any) -> None:
        self.data = shared_by_rows(data)
        """What Keras gets. Several workers divide each batch of a dataset, as they do those that they train on."""
        self._dataset = self.data if isinstance(data, tf.data.Dataset) else None
        self._attributes = KeptAttributes(data) if isinstance(data, tf.keras.utils.PyDataset) else None
        self._passes = PassLog()

    def begin(self, epoch: int) -> None:
        """Called before the validation of an epoch makes its iterator."""
        if self._dataset is not None:
            self._passes.begin(self._dataset, epoch)

    def opened(self) -> None:
        """Called once it has its iterator."""
        self._passes.opened()

    def end(self) -> None:
        """Called at the end of the epoch."""
        self._passes.end()
        if self._attributes is not None:
            self._attributes.keep()

    def find_problems(self) -> list[Finding]:
        """What of the validation data can't be resumed exactly."""
        if self._dataset is None:
            return []
        is_endless = int(tf.data.experimental.cardinality(self._dataset)) == tf.data.INFINITE_CARDINALITY
        return find_in_dataset(self._dataset, several_passes=not is_endless)

    def save(self) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray[Any, Any]]]:
        """What a checkpoint has to know, as JSON and arrays."""
        attributes, arrays = ({}, {}) if self._attributes is None else self._attributes.kept
        return {"passes": self._passes.to_json(), "attributes": attributes}, arrays

    def restore(self, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Sets what `save` returned."""
        self._passes = PassLog(saved["passes"])
        if self._attributes is not None:
            self._attributes.restore(saved["attributes"], arrays)
