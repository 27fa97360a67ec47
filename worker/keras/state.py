"""What neither weights nor optimizer of a `model.fit` hold: history, callbacks, the metrics of a half-done epoch."""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from worker.process.reporting import describe_error
from worker.state.object_values import (
    NotRestorable,
    NotSaveable,
    ObjectRestorer,
    SavedObject,
    assign_copies,
    identities,
    replica_copies,
)
from worker.state.random_generators import as_json, from_json

_SET_BY_KERAS = frozenset({"_model", "model", "params", "validation_data"})
_DERIVED = ("min_delta",)
"""What Keras' callbacks that watch a figure work out at their first epoch's end, in each process anew: it is given
another sign there, and restored it would be given it twice."""
_FIGURES = (bool, int, float, str, type(None), np.generic, np.ndarray)
_OBJECT_ERRORS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What objects of every kind raise when they are looked at, or filled with what another version of them held."""


class FitState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """What neither weights nor optimizer hold: history, callbacks, the metrics of a half-done epoch.

    A callback's state is what its attributes hold: those that changed since it heard of the beginning of training, and
    all variables and generators in them.
    """

    def __init__(self, model: Any, exempt: Iterable[Any] = ()) -> None:
        """`exempt`: what callbacks hold that need not be kept."""
        super().__init__()
        self.last_logs: dict[str, Any] = {}
        self.not_saved: tuple[str, ...] = ()
        """Attributes of callbacks that could not be kept, at the last look."""
        self.live: list[Any] = []
        """The variables and generators of callbacks that are kept, at the last look."""
        self._model = model
        self._exempt = tuple(exempt)
        self._callbacks: list[Any] = []
        self._fresh: list[dict[str, bytes]] = []
        self._restored: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def stopped(self) -> bool:
        """Whether a callback had ended the training that was restored."""
        return bool(self._restored.get("stopped", False))

    def begin_training(self, callbacks: list[Any]) -> tuple[str, ...]:
        """Training begins, or goes on: callbacks get back what changed since they heard of its beginning.

        Gives what found no place, in words.
        """
        self._callbacks = callbacks
        self._fresh = [{name: kept.digest() for name, kept in self._saved_attributes(each)} for each in callbacks]
        lost: list[str] = []
        for number, values in enumerate(self._restored.get("callbacks", ())):
            present = callbacks[number] if number < len(callbacks) else None
            if type(present).__name__ == values["class"]:
                lost += self._restore_attributes(number, present, values["attributes"])
            elif values["attributes"]:
                now = "missing" if present is None else f"a {type(present).__name__}"
                lost.append(f"callback {number}, which was a {values['class']} and is {now}")
        if self._restored:
            self.last_logs = {name: from_json(figure) for name, figure in self._restored["last_logs"].items()}
            self._model.history.history = {
                name: [from_json(figure) for figure in figures] for name, figures in self._restored["history"].items()
            }
            self._model.history.epoch = self._restored["epochs"]
        return tuple(lost)

    @property
    def metrics(self) -> list[Any]:
        """The variables of the model's metrics."""
        return _metric_variables(self._model)

    def inspect_callbacks(self) -> None:
        """Finds out what is kept of the callbacks, and what can't be: `live` and `not_kept`."""
        self._save_attributes()

    def fill_metrics(self) -> None:
        """Gives the metrics of an epoch that was interrupted what they had gathered, on every replica."""
        for number, variable in enumerate(_metric_variables(self._model)):
            stored = self._arrays.get(f"metric/{number}")
            if stored is not None:
                assign_copies(variable, list(stored))

    def serialize(self) -> bytes:
        """Called by TensorFlow for each checkpoint."""
        arrays = {
            f"metric/{number}": np.stack([copy.numpy() for copy in replica_copies(variable)])
            for number, variable in enumerate(_metric_variables(self._model))
        }
        callbacks = []
        for number, (each, found) in enumerate(zip(self._callbacks, self._save_attributes(), strict=True)):
            changed = {
                name: kept
                for name, kept in found.items()
                if kept.live or self._fresh[number].get(name) != kept.digest()
            }
            callbacks.append(
                {"class": type(each).__name__, "attributes": {name: kept.json for name, kept in changed.items()}}
            )
            arrays |= {
                f"{number}/{name}/{key}": array for name, kept in changed.items() for key, array in kept.arrays.items()
            }
        history = getattr(self._model, "history", None)
        body = {
            "callbacks": callbacks,
            "history": getattr(history, "history", {}),
            "epochs": getattr(history, "epoch", []),
            "last_logs": self.last_logs,
            "stopped": bool(getattr(self._model, "stop_training", False)),
        }
        text = np.frombuffer(json.dumps(body, default=_as_json).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, body=text, **arrays)
        return buffer.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when a checkpoint is restored."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as found:
            self._arrays = {name: found[name] for name in found.files}
        self._restored = json.loads(self._arrays.pop("body").tobytes())

    def _save_attributes(self) -> list[dict[str, SavedObject]]:
        not_kept: list[str] = []
        found = [dict(self._saved_attributes(each, not_kept)) for each in self._callbacks]
        self.live = [one for attributes in found for kept in attributes.values() for one in kept.live]
        self.not_saved = tuple(not_kept)
        return found

    def _saved_attributes(self, callback: Any, not_kept: list[str] | None = None) -> Iterator[tuple[str, SavedObject]]:
        """Each attribute that is state, taken apart."""
        if isinstance(callback, tf.keras.callbacks.History):
            return
        derived = _DERIVED if hasattr(callback, "_set_monitor_op") else ()
        known = self._known()
        for name, value in list(vars(callback).items()):
            if name in _SET_BY_KERAS or name in derived or (_is_of_keras(callback) and not _are_figures(value)):
                continue
            try:
                yield name, SavedObject(value, known)
            except (NotSaveable, *_OBJECT_ERRORS) as error:
                if not_kept is not None:
                    why = str(error) if isinstance(error, NotSaveable) else f" ({describe_error(error)})"
                    not_kept.append(f"{type(callback).__name__}.{name}{why}")

    def _known(self) -> frozenset[int]:
        """What the checkpoint holds without this, or need not."""
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *getattr(optimizer, "variables", ()), *_metric_variables(self._model)]
        known = {id(self._model), id(optimizer), *map(id, self._exempt), *map(id, self._callbacks)}
        return frozenset(known.union(*map(identities, variables)))

    def _restore_attributes(self, number: int, callback: Any, attributes: dict[str, Any]) -> Iterator[str]:
        for name, found in attributes.items():
            start = f"{number}/{name}/"
            arrays = {key.removeprefix(start): array for key, array in self._arrays.items() if key.startswith(start)}
            try:
                value = ObjectRestorer(arrays, self._known()).restore_value(found, vars(callback).get(name))
            except NotRestorable as error:
                yield f"{type(callback).__name__}.{name}: {error}"
            except _OBJECT_ERRORS as error:
                yield f"{type(callback).__name__}.{name}: what was kept no longer fits ({describe_error(error)})"
            else:
                vars(callback)[name] = value


def _is_of_keras(callback: Any) -> bool:
    """Keras' own callbacks: what they hold besides figures and arrays, they make anew in each process."""
    return type(callback).__module__.partition(".")[0] == "keras"


def _are_figures(value: Any) -> bool:
    """A plain value or an array, or a list of them such as the best weights so far."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, np.ndarray) for one in value)
    return isinstance(value, _FIGURES)


def _as_json(figure: Any) -> Any:
    """A figure that is none of Python's: one number, or an array of a metric that has one for each class."""
    array = np.asarray(figure)
    return as_json(array) if array.ndim else float(array)


def _metric_variables(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
