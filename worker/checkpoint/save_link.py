"""What the workers of a gang say to each other while each writes its share of a checkpoint.

The chief orders, in each round, that all write; every worker reports what it has written; the order after that is
another round, if the first one failed and there is room now, or the end. Texts go through the coordination service of
TensorFlow, which the first worker runs: it can be asked on any thread, so a save goes on beside training, while the
collectives, which have to come in one order, belong to the thread that trains.
"""

import contextlib
import itertools
from collections.abc import Sequence

import tensorflow as tf

from worker.internals.tensorflow_internals import delete_texts, lost_processes, publish_text, wait_for_text

LOOK_S = 1.0  # how often it is asked whether the worker that is waited for was lost
_WRITE, _END = "write", "end"
_runs = itertools.count()  # a script may train several times; all workers run the same script


class GangLost(Exception):
    """A worker is gone, so a save can't end; the text names it."""


class SaveLink:
    """The texts of one worker. Saves are numbered from 1, rounds from 0, alike on all workers."""

    def __init__(self, rank: int, jobs: Sequence[tuple[str, int]]) -> None:
        """`jobs`: the names of TensorFlow's jobs and how many workers each has, in the order of ranks."""
        self._rank, self._jobs = rank, jobs
        self._folder = f"stepkeeper/saves/{next(_runs)}"
        self._rounds = 0  # that this chief has ordered of the save that has not ended
        self._open: int | None = None  # that save

    # --- the chief ---

    def begin(self, save: int) -> None:
        """All workers have captured their shares of this save, and wait for an order. Ends the one before."""
        self.end()
        self._open, self._rounds = save, 0
        delete_texts(f"{self._folder}/{save - 1}")  # all workers were done with it

    def order_round(self) -> None:
        """Has all workers write. Raises GangLost."""
        self._publish(f"{self._open}/order/{self._rounds}", _WRITE)
        self._rounds += 1

    def wait_for_report(self, rank: int) -> str:
        """What a worker reports of the present round. Raises GangLost."""
        key = f"{self._folder}/{self._open}/report/{self._rounds - 1}/{rank}"
        while True:
            try:
                text = wait_for_text(key, LOOK_S)
                is_lost = text is None and rank in lost_processes(self._jobs)
            except tf.errors.OpError as error:
                raise GangLost(f"worker {rank} can't be asked what it has written: {error.message}") from error
            if is_lost:
                raise GangLost(f"worker {rank} was lost before it reported its share")
            if text is not None:
                return text

    def end(self) -> None:
        """The save has ended, however it did; so it is called also where the gang may be lost."""
        if self._open is None:
            return
        with contextlib.suppress(GangLost):  # nobody waits
            self._publish(f"{self._open}/order/{self._rounds}", _END)
        self._open = None

    # --- the others ---

    def wait_for_round(self, save: int, number: int) -> bool:
        """Waits until this round is ordered, or until the save has ended: False. Raises GangLost."""
        key = f"{self._folder}/{save}/order/{number}"
        while True:
            try:
                text = wait_for_text(key, LOOK_S)
            except tf.errors.OpError as error:
                raise GangLost(f"the chief is gone: {error.message}") from error
            if text is not None:
                return text == _WRITE

    def report(self, save: int, number: int, text: str) -> None:
        """Reports what was written. Raises GangLost."""
        self._publish(f"{save}/report/{number}/{self._rank}", text)

    def _publish(self, key: str, text: str) -> None:
        try:
            publish_text(f"{self._folder}/{key}", text)
        except tf.errors.OpError as error:
            raise GangLost(f"the other workers can't be told: {error.message}") from error
