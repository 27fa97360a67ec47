"""Keras' callbacks that need care over restarts: those that can't be used, and those that write files."""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf


def check_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks as a list. Raises ValueError for one that does what `fit` does itself."""
    listed = tf.nest.flatten(list(callbacks)) if isinstance(callbacks, list | tuple) else [callbacks]
    listed = [callback for callback in listed if callback is not None]
    for callback in listed:
        if isinstance(callback, tf.keras.callbacks.BackupAndRestore):
            raise ValueError(
                "cannot fit with BackupAndRestore: it would restore the model a second time, at the begin of an epoch, "
                "and epochs would be trained twice; remove it, because fit saves and restores everything itself"
            )
    return listed


class LogFiles:
    """The files to which CSVLogger appends a row for each epoch.

    A restart cuts them to the length that they had when its checkpoint was written. So no row is there twice.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        self._loggers = [callback for callback in callbacks if isinstance(callback, tf.keras.callbacks.CSVLogger)]

    def sizes(self) -> list[int]:
        """The length of each file."""
        return [_size(Path(logger.filename)) for logger in self._loggers]

    def continue_at(self, sizes: list[int]) -> None:
        """Cuts each file to the length that it had, and lets its callback append to it."""
        for logger, size in zip(self._loggers, sizes, strict=False):
            logger.append = True
            path = Path(logger.filename)
            if _size(path) > size:
                os.truncate(path, size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
