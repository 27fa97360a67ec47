"""When is an epoch done? The loops over epochs and over batches, and where a restart enters them.

An epoch is done when the body of the script's loop over epochs ends, not at its last step: what stands behind the loop
over the batches (a scheduler's step, an evaluation) belongs to it. Until then `_position` stays behind the epoch's last
batch. So a restart from the checkpoint of that step yields no batch, runs the rest of the body again, from the state of
that step, and goes on. The body ends when `epochs` resumes, at the next `batches`, when `epoch` is read after the data
have ended, or with the run.

A restart in the middle of an epoch runs the head of the body again too, what stands before the loop over the batches.
What the head changes of the saved state is put back before the first batch (`_copy_saved_state`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from worker.state import random_generators
from worker.state.run_state import RunState
from worker.state.state_file import Position

Batch = Any
"""What the loop trains on in one step, whatever the framework calls it."""


class EpochLoop:
    """The loops of a training that counts `step` of `total_steps` steps (None: the loop decides)."""

    def __init__(self, total_steps: int | None, state: RunState) -> None:
        self.step = 0
        self.total_steps = total_steps
        self.state = state
        """Python values of the loop, by name, which each checkpoint holds."""
        self._own_generators: tuple[Any, ...] = ()  # the script's, of NumPy and Python
        self._position = Position()  # behind the newest step; its epoch's body is not done
        self._data_ended = False  # the epoch has no more batches, so only the tail of its body is left
        self._in_epochs = False  # inside `for epoch in run.epochs(n)`
        self._last_epoch: int | None = None  # of `epochs`
        self._resumed_within = False  # restored in the middle of an epoch's body, whose head is not done again yet
        self._put_back: Callable[[], None] | None = None
        self._before_head: bytes | None = None  # a digest of the generators when the first body began
        self._head_draws = False  # what stands before the batches of the first epoch drew random numbers
        self._reads_epoch = False  # the script asked where to begin
        self._is_reading = False  # a loop over `batches` is open
        self._handed_out_at: int | None = None  # the step in which it gave its newest batch
        self._has_read = False  # the data of this epoch ended in this process

    def _require_with(self, what: str) -> None:
        """Raises RuntimeError unless the script is inside of `with`."""
        raise NotImplementedError

    @property
    def reached(self) -> bool:
        """Whether all steps are done."""
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def epoch(self) -> int:
        """The epoch in which training is, from 0.

        Outside of `epochs`, an epoch whose data have ended is done when this is read: for `while run.epoch < n` and
        `for epoch in range(run.epoch, n)`.
        """
        self._require_with("run.epoch")
        self._reads_epoch = True
        if not self._in_epochs:
            if self._data_ended:
                self._end_epoch()
            self._begin_body()
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next batch of the epoch, from 0: `for number, batch in enumerate(run.batches(data), run.batch)`."""
        self._end_head()
        return self._position.batch

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the epochs that are left of `count`: `for epoch in run.epochs(10):`.

        It begins with the epoch that the restored checkpoint is in. An epoch is done when the loop's body ends; after a
        restart behind its last step, `batches` yields nothing and the rest of the body runs. Ends early when
        `total_steps` are done. Raises TypeError for a count that is no number, RuntimeError inside another `epochs`.
        """
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"cannot train for {count!r} epochs; give run.epochs a number, as in run.epochs(10)")
        self._require_with("run.epochs")
        return self._epochs(int(count))

    def _epochs(self, count: int) -> Iterator[int]:
        if self._in_epochs:
            raise RuntimeError("cannot begin run.epochs inside of another run.epochs: one loop counts the epochs")
        if self._data_ended:
            self._end_epoch()
        self._in_epochs, self._last_epoch = True, count - 1
        try:
            # a restart from the last step has to do the tail of its epoch
            while self._position.epoch < count and (not self.reached or self._is_within_epoch):
                self._begin_body()
                epoch = self._position.epoch
                yield epoch
                if self._position.epoch == epoch:
                    self._end_epoch()
        finally:
            self._in_epochs = False

    def _over_epochs(
        self, rest_of_epoch: Callable[[], Iterator[Batch]], skip_rest: Callable[[], None] = lambda: None
    ) -> Iterator[Batch]:
        """Yields what is left of the epoch: what `batches` gives. Outside of `epochs`, with `total_steps`, goes on over
        further epochs. `skip_rest` is called instead of `rest_of_epoch` where a restart finds the data ended.

        Raises RuntimeError if a whole epoch ends without `step_done`.
        """
        is_one_epoch = self._in_epochs or self.total_steps is None
        while True:
            if self._data_ended and not self._in_epochs:
                self._end_epoch()
            self._end_head()
            self._data_ended = self._data_ended or self._position.ended
            if self._data_ended:
                if self._has_read:
                    raise RuntimeError(
                        f"cannot read a second time in epoch {self._position.epoch}: run.batches counts one position, "
                        f"and its data have ended; join two datasets to one (tf.data.Dataset.zip, concatenate); "
                        f"for an evaluation, loop over the dataset itself"
                    )
                skip_rest()
            elif not self.reached:
                yield from self._until_data_end(rest_of_epoch())
            if is_one_epoch or self.reached:
                return

    def _until_data_end(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        step, is_whole = self.step, self._position.batch == 0
        if self._is_reading and self._handed_out_at == step:
            raise RuntimeError(
                "cannot read two run.batches side by side: a run counts one position; join the data to one, as in "
                "run.batches(tf.data.Dataset.zip((first, second)))"
            )
        self._is_reading = True
        try:
            for batch in batches:
                self._handed_out_at = self.step
                yield batch
                if self.reached:
                    return
        finally:
            self._is_reading = False
        if self.step == step and is_whole:
            raise RuntimeError(
                f"cannot count steps: epoch {self._position.epoch} ended and run.step_done was never called; call "
                f"run.step_done(loss=loss) after each training step, in the loop over run.batches"
            )
        self._data_ended = self._has_read = True

    @property
    def _is_within_epoch(self) -> bool:
        return self._position.batch > 0 or self._position.begun

    def _continue_at(self, position: Position) -> None:
        """Training continues at the position of the restored checkpoint."""
        self._position = position
        self._resumed_within = self._is_within_epoch

    def _begin_body(self) -> None:
        """The body of an epoch begins. If a restart runs its head again, that must not change the state."""
        if self._resumed_within and self._put_back is None:
            self._put_back = self._copy_saved_state()
        if self.step == 0:
            self._before_head = self._digest_generators()

    def _end_head(self) -> None:
        """The head of an epoch's body is done: its batches follow."""
        if self._before_head is not None:
            self._head_draws = self._head_draws or self._before_head != self._digest_generators()
            self._before_head = None
        put_back, self._put_back, self._resumed_within = self._put_back, None, False
        if put_back is not None:
            put_back()
        if self._position.batch == 0:
            self._position = replace(self._position, begun=True)

    def _end_epoch(self) -> None:
        """The body of the epoch is done."""
        self._end_head()
        self._position, self._data_ended, self._has_read = Position(self._position.epoch + 1), False, False

    def _digest_generators(self) -> bytes:
        """What changes when the script draws random numbers outside of compiled functions."""
        return repr(random_generators.read(self._own_generators)).encode()

    def _copy_saved_state(self) -> Callable[[], None]:
        """Copies what code between two steps may change of the saved state. Returns what puts it back."""
        values, generators = self.state.copied(), random_generators.read(self._own_generators)

        def put_back() -> None:
            self.state.put_back(values)
            random_generators.write(generators, self._own_generators)

        return put_back
