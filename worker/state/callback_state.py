"""The state of Keras' own callbacks, for scripts whose own loop calls them. Imports no framework."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.state.plain_values import NotSaveable, SavedValue, class_module

NO_STATE = frozenset({"model", "_model", "params", "validation_data", "min_delta"})
"""Attributes that each process sets anew: Keras' callbacks negate `min_delta` at the end of their first epoch."""
_KERAS = frozenset({"keras", "tf_keras"})
_LIST = "CallbackList"  # which is a callback too in some releases
_NOT_CALLBACKS = frozenset({_LIST, "ProgbarLogger", "TensorBoard", "CSVLogger", "RemoteMonitor"})
"""The list, and those that show what happens and do not change it."""


def is_keras_callback(value: Any) -> bool:
    """Whether it is a callback of a class of Keras' own that can change training, or what the script ends with."""
    kind = type(value)
    return (
        class_module(kind).partition(".")[0] in _KERAS
        and kind.__name__ not in _NOT_CALLBACKS
        and any(base.__name__ == "Callback" for base in kind.__mro__)
    )


def callbacks_in(value: Any) -> list[Any]:
    """The callbacks of a CallbackList; empty for anything else."""
    kind = type(value)
    is_list = class_module(kind).partition(".")[0] in _KERAS and kind.__name__ == _LIST
    return list(value.callbacks) if is_list else []


def state_of(callback: Any) -> dict[str, Any]:
    """The attributes of a callback that a checkpoint can hold, by name."""
    return dict(_saveable(vars(callback)))


def _saveable(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name not in NO_STATE:
            try:
                SavedValue(value)
            except NotSaveable:  # a function, such as numpy.less
                continue
            yield name, value


class CallbackState:
    """Gives and takes the state of callbacks, in their order."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = callbacks

    def state_dict(self) -> list[dict[str, Any]]:
        """The attributes of each."""
        return [state_of(callback) for callback in self._callbacks]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Sets them. Raises ValueError for another number of callbacks."""
        if len(state) != len(self._callbacks):
            raise ValueError(f"there were {len(state)} callbacks of Keras' own and there are {len(self._callbacks)}")
        for callback, attributes in zip(self._callbacks, state, strict=True):
            vars(callback).update(attributes)

    @classmethod
    def of(cls, value: Any) -> "CallbackState | None":
        """That of a callback of Keras' own, or of those in a CallbackList; None for anything else."""
        callbacks = [callback for callback in callbacks_in(value) or [value] if is_keras_callback(callback)]
        return cls(callbacks) if callbacks else None
