"""The state of a `model.fit` besides weights and optimizer: history, callbacks, the metrics of an unfinished epoch."""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.keras.callbacks import LogFiles
from worker.keras.data.fit_data import FitData
from worker.keras.outer_variables import OuterVariable, outer_variables
from worker.keras.validation import Validation
from worker.process.reporting import describe_error
from worker.state.object_values import (
    NotRestorable,
    NotSaveable,
    ObjectRestorer,
    SavedObject,
    identities,
)
from worker.state.random_generators import as_json, from_json
from worker.state.replica_values import ALONE, Completion, Place, TrackedMetrics, assign_copies, replica_copies
from worker.state.state_file import Position

_METRIC = "metric/"
_SET_BY_KERAS = frozenset({"_model", "model", "params", "validation_data"})
_DERIVED = ("min_delta",)
"""Keras' callbacks that monitor a metric compute it at the end of their first epoch, in each process: they may negate
it there, so a restored value would be negated twice."""
_OF_PROFILER = frozenset({"_is_tracing", "_profiler_started"})  # of TensorBoard: no profiler runs after a restart
_PLAIN_TYPES = (bool, int, float, str, type(None), np.generic, np.ndarray)
_OBJECT_ERRORS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that any object may raise when it is inspected, or when it is filled with values of another version."""


class FitState(tf.train.experimental.PythonState, TrackedMetrics):  # type: ignore[misc]
    """The part of the checkpoint that holds history, callbacks and the metrics of an unfinished epoch.

    A callback's state is the attributes that have changed since `on_train_begin`, and all variables and generators in
    its attributes.
    """

    def __init__(self, model: Any, exempt: Iterable[Any] = ()) -> None:
        """`exempt`: objects in callbacks that need not be saved."""
        super().__init__()
        self.last_logs: dict[str, Any] = {}
        self.not_saved: tuple[str, ...] = ()
        """Attributes of callbacks that could not be saved, as of the last `inspect_callbacks` or save."""
        self.live: list[Any] = []
        """The variables and generators of callbacks that are saved, as of the same time."""
        self._model = model
        self._exempt = tuple(exempt)
        self._callbacks: list[Any] = []
        self._outer: dict[int, dict[str, OuterVariable]] = {}
        self._fresh: list[dict[str, bytes]] = []
        self._restored: dict[str, Any] = {}
        self._data_state: dict[str, tuple[Any, Any]] = {}
        self._logs = LogFiles([])
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._place = ALONE

    @property
    def callbacks(self) -> tuple[Any, ...]:
        """Those whose state is saved."""
        return tuple(self._callbacks)

    @property
    def is_restored(self) -> bool:
        """Whether a checkpoint was restored."""
        return bool(self._restored)

    def keep_data(self, data: FitData, validation: Validation, position: Position) -> None:
        """Keeps what a checkpoint at `position` has to know of the data."""
        self._data_state = {"data": data.save(position), "validation": validation.save()}

    def restore_data(self, data: FitData, validation: Validation) -> None:
        """Gives the data what was saved of them."""
        if self._restored:
            data.restore(self._restored["data"], self._arrays_of("data/"))
            validation.restore(self._restored["validation"], self._arrays_of("validation/"))

    def _arrays_of(self, start: str) -> dict[str, np.ndarray[Any, Any]]:
        return {key.removeprefix(start): array for key, array in self._arrays.items() if key.startswith(start)}

    def prepare_callbacks(self, callbacks: list[Any]) -> None:
        """Called before `on_train_begin`: log files go on where they were when the checkpoint was written."""
        self._logs = LogFiles(callbacks)
        if self._restored:
            self._logs.continue_at(self._restored["log_files"])

    @property
    def stopped(self) -> bool:
        """Whether a callback had already ended the training that was restored."""
        return bool(self._restored.get("stopped", False))

    def begin_training(self, callbacks: list[Any]) -> tuple[str, ...]:
        """Called once all callbacks have had `on_train_begin`: restores the attributes that had changed since then.

        Returns a text for each one that could not be restored.
        """
        self._callbacks = callbacks
        self._outer = {id(callback): outer_variables(callback) for callback in callbacks}
        self._fresh = [
            {name: saved.digest() for name, saved in self._saved_attributes(callback)} for callback in callbacks
        ]
        lost: list[str] = []
        for number, values in enumerate(self._restored.get("callbacks", ())):
            present = callbacks[number] if number < len(callbacks) else None
            if type(present).__name__ == values["class"]:
                lost += self._restore_attributes(number, present, values["attributes"])
            elif values["attributes"]:
                now = "missing" if present is None else f"a {type(present).__name__}"
                lost.append(f"callback {number} was a {values['class']} and is now {now}")
        if self._restored:
            self.last_logs = {name: from_json(value) for name, value in self._restored["last_logs"].items()}
            self._model.history.history = {
                name: [from_json(value) for value in values] for name, values in self._restored["history"].items()
            }
            self._model.history.epoch = self._restored["epochs"]
        return tuple(lost)

    @property
    def metric_variables(self) -> list[Any]:
        """The variables of the model's metrics."""
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def inspect_callbacks(self) -> list[dict[str, SavedObject]]:
        """The saved form of each callback's attributes, by name. Updates `live` and `not_saved`."""
        not_saved: list[str] = []
        objects = [dict(self._saved_attributes(callback, not_saved)) for callback in self._callbacks]
        self.live = [one for attributes in objects for saved in attributes.values() for one in saved.live]
        self.not_saved = tuple(not_saved)
        return objects

    def fill_metrics(self) -> tuple[str, ...]:
        """Restores the metrics of an interrupted epoch on every replica. Returns, in words, what does not fit."""
        stored = [self._arrays[key] for key in sorted(filter(_is_metric, self._arrays), key=_number_of_metric)]
        variables = self.metric_variables
        if not stored:
            return ()
        if [values.shape[1:] for values in stored] != [tuple(variable.shape) for variable in variables]:
            return (
                f"the checkpoint has {counted(len(stored), 'variable')} of them, the model has {len(variables)}, or "
                f"their shapes differ; those of the epoch that was interrupted begin anew",
            )
        for variable, values in zip(variables, stored, strict=True):
            assign_copies(variable, list(values), self._place)
        return ()

    def complete_metrics(self, complete: Completion, place: Place) -> None:
        """Called after a restore: `fill_metrics` then restores the values of the replicas in this process."""
        self._place = place
        for key in filter(_is_metric, list(self._arrays)):
            values = complete(_number_of_metric(key), list(self._arrays[key]))
            self._arrays[key] = np.stack(list(values))

    def serialize(self) -> bytes:
        """Called by TensorFlow for each checkpoint."""
        arrays = {
            f"{_METRIC}{number}": np.stack([copy.numpy() for copy in replica_copies(variable)])
            for number, variable in enumerate(self.metric_variables)
        }
        callbacks = []
        for number, (callback, attributes) in enumerate(zip(self._callbacks, self.inspect_callbacks(), strict=True)):
            changed = {
                name: saved
                for name, saved in attributes.items()
                if saved.live or self._fresh[number].get(name) != saved.digest()
            }
            callbacks.append(
                {"class": type(callback).__name__, "attributes": {name: saved.json for name, saved in changed.items()}}
            )
            arrays |= {
                f"{number}/{name}/{key}": array
                for name, saved in changed.items()
                for key, array in saved.arrays.items()
            }
        for kind, (_, of_data) in self._data_state.items():
            arrays |= {f"{kind}/{name}": array for name, array in of_data.items()}
        history = getattr(self._model, "history", None)
        body = {
            "callbacks": callbacks,
            "history": getattr(history, "history", {}),
            "epochs": getattr(history, "epoch", []),
            "last_logs": self.last_logs,
            **{kind: json_value for kind, (json_value, _) in self._data_state.items()},
            "log_files": self._logs.sizes(),
            "stopped": bool(getattr(self._model, "stop_training", False)),
        }
        text = np.frombuffer(json.dumps(body, default=_as_json).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, body=text, **arrays)
        return buffer.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when a checkpoint is restored."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as archive:
            self._arrays = {name: archive[name] for name in archive.files}
        self._restored = json.loads(self._arrays.pop("body").tobytes())

    def _saved_attributes(self, callback: Any, not_saved: list[str] | None = None) -> Iterator[tuple[str, SavedObject]]:
        """Yields each attribute that is state, with its saved form."""
        if isinstance(callback, tf.keras.callbacks.History):
            return
        derived = _DERIVED if hasattr(callback, "_set_monitor_op") else ()
        known = self._known()
        for name, value in list(vars(callback).items()):
            if (
                name in _SET_BY_KERAS
                or name in derived
                or name in _OF_PROFILER
                or (_is_of_keras(callback) and not _is_plain(value))
            ):
                continue
            try:
                yield name, SavedObject(value, known)
            except (NotSaveable, *_OBJECT_ERRORS) as error:
                if not_saved is not None:
                    why = str(error) if isinstance(error, NotSaveable) else f" ({describe_error(error)})"
                    not_saved.append(f"{type(callback).__name__}.{name}{why}")

        for name, variable in self._outer.get(id(callback), {}).items():
            try:
                yield name, SavedObject(variable.value, known)
            except (NotSaveable, *_OBJECT_ERRORS):
                # one that could not be saved at the beginning either is no state
                if not_saved is not None and name in self._fresh[self._callbacks.index(callback)]:
                    not_saved.append(f"{type(callback).__name__}.{name}")

    def _known(self) -> frozenset[int]:
        """The ids of what the checkpoint holds elsewhere or need not hold."""
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *getattr(optimizer, "variables", ()), *self.metric_variables]
        known = {id(self._model), id(optimizer), *map(id, self._exempt), *map(id, self._callbacks)}
        return frozenset(known.union(*map(identities, variables)))

    def _restore_attributes(self, number: int, callback: Any, attributes: dict[str, Any]) -> Iterator[str]:
        for name, saved in attributes.items():
            start = f"{number}/{name}/"
            arrays = {key.removeprefix(start): array for key, array in self._arrays.items() if key.startswith(start)}
            try:
                outer = self._outer.get(id(callback), {}).get(name)
                present = vars(callback).get(name) if outer is None else outer.value
                value = ObjectRestorer(arrays, self._known()).restore_value(saved, present)
            except NotRestorable as error:
                yield f"{type(callback).__name__}.{name}: {error}"
            except _OBJECT_ERRORS as error:
                yield f"{type(callback).__name__}.{name}: its saved value no longer fits ({describe_error(error)})"
            else:
                if outer is None:
                    vars(callback)[name] = value
                else:
                    outer.set(value)


def _is_metric(key: str) -> bool:
    return key.startswith(_METRIC)


def _number_of_metric(key: str) -> int:
    return int(key.removeprefix(_METRIC))


def _is_of_keras(callback: Any) -> bool:
    """Whether it is one of Keras' callbacks; each process recreates their attributes but for numbers and arrays."""
    return type(callback).__module__.partition(".")[0] == "keras"


def _is_plain(value: Any) -> bool:
    """Whether it is a plain value or an array, or a list of arrays such as the best weights so far."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, np.ndarray) for one in value)
    return isinstance(value, _PLAIN_TYPES)


def _as_json(value: Any) -> Any:
    """A metric's value that JSON does not take: one number, or an array for a metric with one value for each class."""
    array = np.asarray(value)
    return as_json(array) if array.ndim else float(array)
