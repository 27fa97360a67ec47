"""What neither weights nor optimizer of a `model.fit` hold: history, callbacks, the metrics of a half-done epoch."""

import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

_SCALARS = (bool, int, float, str, type(None), np.generic)


class FitState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """What neither weights nor optimizer hold: history, callbacks, the metrics of a half-done epoch."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.last_logs: dict[str, Any] = {}
        self._model = model
        self._callbacks: list[Any] = []
        self._fresh: list[dict[str, Any]] = []
        self._restored: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def stopped(self) -> bool:
        """Whether a callback had ended the training that was restored."""
        return bool(self._restored.get("stopped", False))

    def begin(self, callbacks: list[Any]) -> None:
        """Training begins, or goes on: callbacks get back what changed since they heard of its beginning."""
        self._callbacks = callbacks
        self._fresh = [dict(_scalars(each)) for each in callbacks]
        for number, values in enumerate(self._restored.get("callbacks", ())):
            if number < len(callbacks) and values["class"] == type(callbacks[number]).__name__:
                derived = _derived(callbacks[number])
                scalars = {name: value for name, value in values["scalars"].items() if name not in derived}
                vars(callbacks[number]).update(scalars)
                for name, count in values["lists"].items():
                    arrays = [self._arrays[f"{number}/{name}/{place}"] for place in range(count)]
                    setattr(callbacks[number], name, arrays)
        if self._restored:
            self.last_logs = self._restored["last_logs"]
            self._model.history.history = self._restored["history"]
            self._model.history.epoch = self._restored["epochs"]

    def fill_metrics(self) -> None:
        """Gives the metrics of an epoch that was interrupted what they had gathered, on every replica."""
        for number, copy in enumerate(_metric_values(self._model)):
            copy.assign(self._arrays[f"metric/{number}"])

    def serialize(self) -> bytes:
        """Called by TensorFlow for each checkpoint."""
        arrays = {f"metric/{number}": copy.numpy() for number, copy in enumerate(_metric_values(self._model))}
        callbacks = []
        for number, (each, fresh) in enumerate(zip(self._callbacks, self._fresh, strict=True)):
            lists = _lists(each)
            arrays |= {f"{number}/{name}/{at}": one for name, many in lists.items() for at, one in enumerate(many)}
            callbacks.append(
                {
                    "class": type(each).__name__,
                    "scalars": {name: value for name, value in _scalars(each) if fresh.get(name, _NEW) != value},
                    "lists": {name: len(many) for name, many in lists.items()},
                }
            )
        history = getattr(self._model, "history", None)
        body = {
            "callbacks": callbacks,
            "history": getattr(history, "history", {}),
            "epochs": getattr(history, "epoch", []),
            "last_logs": self.last_logs,
            "stopped": bool(getattr(self._model, "stop_training", False)),
        }
        text = np.frombuffer(json.dumps(body, default=float).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, body=text, **arrays)
        return buffer.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when a checkpoint is restored."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as found:
            self._arrays = {name: found[name] for name in found.files}
        self._restored = json.loads(self._arrays.pop("body").tobytes())


_NEW = object()
_DERIVED = ("min_delta",)
"""What Keras' callbacks that watch a figure work out at their first epoch's end, in each process anew: it is given
another sign there, and restored it would be given it twice."""


def _derived(callback: Any) -> tuple[str, ...]:
    return _DERIVED if hasattr(callback, "_set_monitor_op") else ()


def _scalars(callback: Any) -> Iterable[tuple[str, Any]]:
    derived = _derived(callback)
    for name, value in vars(callback).items():
        if isinstance(value, _SCALARS) and name not in derived:
            yield name, value.item() if isinstance(value, np.generic) else value


def _lists(callback: Any) -> dict[str, list[Any]]:
    """Arrays that a callback keeps, such as the best weights so far."""
    return {
        name: value
        for name, value in vars(callback).items()
        if isinstance(value, list) and value and all(isinstance(one, np.ndarray) for one in value)
    }


def _metric_values(model: Any) -> list[Any]:
    """Every replica's own value of every variable of the metrics."""
    variables = [variable for metric in model.metrics for variable in metric.variables]
    return [copy for variable in variables for copy in getattr(variable.value, "values", (variable.value,))]
