"""When is an epoch done? The loops over epochs and over batches, and where a restart enters them.

An epoch is done when the body of the script's loop over epochs ends, not at its last step: what stands behind the loop
over the batches (a scheduler's step, an evaluation) belongs to it. Until then `_position` stays behind the epoch's last
batch. So a restart from the checkpoint of that step yields no batch, runs the rest of the body again, from the state of
that step, and goes on. The body ends when `epochs` resumes, at the next `batches`, when `epoch` is read after the data
have ended, or with the run.

A restart in the middle of an epoch runs the head of the body again too, what stands before the loop over the batches.
There `step` is what it was when the body began. What the head changes of the saved state is put back before the first
batch (`_copy_saved_state`).

Code behind `step_done` in the body of a loop over `batches`, `range` or `order` belongs to its step: where there is
some, the step is saved when the loop takes the next batch, and not before. A death in that code repeats the step.

Each step belongs to something that the run has handed out: a batch of `batches`, a number of `range`, an index of
`order`. A body may make one step without, be it an episode or a whole pass over the data. Its checkpoint is that of the
body's end: what `step_done` would save, it saves when the body ends. A second such step is refused, as no position
would tell it from the first one.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from worker.checks.pulls import Pulls
from worker.progress.epoch_heads import EpochHead
from worker.progress.loop_state import SavedLoopState
from worker.state.run_state import RunState
from worker.state.state_file import EpochBody, Position

Batch = Any
"""What the loop trains on in one step, whatever the framework calls it."""


class EpochLoop(SavedLoopState):
    """The loops of a training that counts `step` of `total_steps` steps (None: the loop decides)."""

    def __init__(self, total_steps: int | None, state: RunState) -> None:
        super().__init__(state)
        self.step = 0
        self.total_steps = total_steps
        self._expected_steps = total_steps
        """How many steps there will be, as far as that is known: with the data's length, if each batch is a step."""
        self._position = Position()  # behind the newest step; its epoch's body is not done
        self._data_ended = False  # the epoch has no more batches, so only the tail of its body is left
        self._in_epochs = False  # inside `for epoch in run.epochs(n)`
        self._last_epoch: int | None = None  # of `epochs`
        self._broke_off = False  # a `break` ended `epochs`
        self._resumed_within = False  # restored in the middle of an epoch's body, whose head is not done again yet
        self._step_behind_head: int | None = None  # the step of the state, while a restart does a head again
        self._put_back: Callable[[], None] | None = None
        self._put_back_generators: Callable[[], None] | None = None  # as the restored checkpoint has them
        self._head = EpochHead(self._digest_generators, self._read_seed_sequence)
        self._reads_epoch = False  # the script asked where to begin
        self._reading: str | None = None  # the method over which a loop is open, such as "run.batches"
        self._readings = 0  # how many times such a loop was begun
        self._body: EpochBody | None = None  # that runs, or ran last
        self._consumed: Position | None = None  # behind what it has handed out, whose step is not done
        self._body_step = False  # this body has made a step without a batch, which is saved at its end
        self._boundary_waits = False  # for the end of the pass of the loop that made the newest step
        self._asked_batch = False  # the script asked for the batch's number since the last loop over batches
        self._pulls = Pulls()
        self._tail_checked = False  # the first step behind the data of the training was looked at
        self._has_read = False  # the data of this epoch ended in this process

    def _end_run_head(self) -> None:
        """The script's loop begins, which ends what it does between the `with` and the loop."""

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
        self._end_run_head()
        self._reads_epoch = True
        self._pulls.record_epochs()
        if not self._in_epochs:
            if self._data_ended:
                self._end_epoch()
            self._begin_body(sys._getframe(1))
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next batch of the epoch, from 0: `for number, batch in enumerate(run.batches(data), run.batch)`."""
        self._end_head()
        self._asked_batch = True
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
        self._end_run_head()
        return self._epochs(int(count))

    def _epochs(self, count: int) -> Iterator[int]:
        if self._in_epochs:
            raise RuntimeError("cannot begin run.epochs inside of another run.epochs: one loop counts the epochs")
        if self._reading is not None:
            raise RuntimeError(f"cannot begin run.epochs inside of a loop over {self._reading}; write it around that")
        self._pulls.record_epochs()
        if self._data_ended:
            self._end_epoch()
        self._in_epochs, self._last_epoch, self._broke_off = True, count - 1, True
        try:
            # a restart from the last step has to do the tail of its epoch
            while self._position.epoch < count and (not self.reached or self._is_within_epoch):
                self._begin_body()
                epoch = self._position.epoch
                yield epoch
                if self._position.epoch == epoch:
                    self._end_epoch()
            self._broke_off = False
        finally:
            self._in_epochs = False

    def _expect_steps(self, left: int, per_epoch: int) -> None:
        """Of this epoch, `left` batches are left, and later ones have `per_epoch`."""
        if self.total_steps is None and self._in_epochs and self._last_epoch is not None:
            self._expected_steps = self.step + left + (self._last_epoch - self._position.epoch) * per_epoch

    def _over_epochs(
        self,
        name: str,
        rest_of_epoch: Callable[[], Iterator[Batch]],
        skip_rest: Callable[[], None] = lambda: None,
        repeats: bool = True,
    ) -> Iterator[Batch]:
        """Yields what is left of the epoch: what `batches` gives. Outside of `epochs`, with `total_steps`, goes on over
        further epochs if it `repeats`. `skip_rest` is called instead of `rest_of_epoch` where a restart finds the data
        ended. `name`: of the method, for messages.

        Raises RuntimeError if a whole epoch ends without `step_done`.
        """
        is_one_epoch = self._in_epochs or self.total_steps is None or not repeats
        while True:
            if self._data_ended and not self._in_epochs:
                self._end_epoch()
            if self._body_step:
                raise RuntimeError(
                    f"cannot read {name} behind a step of the same epoch: a restart in the middle of it would make "
                    f"that step again; make the step behind the loop over {name}"
                )
            self._end_head()
            self._data_ended = self._data_ended or self._position.ended
            if self._data_ended:
                if self._has_read:
                    raise RuntimeError(
                        f"cannot read a second time in epoch {self._position.epoch}: {name} counts one position, "
                        f"and its data have ended; join two datasets to one (tf.data.Dataset.zip, concatenate); "
                        f"for an evaluation, loop over the dataset itself"
                    )
                skip_rest()
            elif not self.reached:
                yield from self._until_data_end(name, rest_of_epoch())
            if is_one_epoch or self.reached:
                return

    def _until_data_end(self, name: str, batches: Iterator[Batch]) -> Iterator[Batch]:
        step, is_whole, is_empty = self.step, self._position.batch == 0, True
        if self._reading is not None and self._consumed is not None:
            raise RuntimeError(
                f"cannot read two {name} side by side: a run counts one position; join the data to one, as in "
                f"run.batches(tf.data.Dataset.zip((first, second)))"
            )
        self._readings += 1
        number = self._readings
        self._reading, asked_batch, self._asked_batch = name, self._asked_batch, False
        self._pulls.begin_reading(asked_batch)
        try:
            for batch in batches:
                is_empty = False
                self._pulls.hand_out(batch)
                yield batch
                self._end_pass()
                if self.reached:
                    return
        finally:
            if number == self._readings:  # a library may close the loop before when this one is open
                self._reading = None
        if self.step == step and is_whole and not is_empty:
            raise RuntimeError(
                f"cannot count steps: epoch {self._position.epoch} ended and run.step_done was never called; call "
                f"run.step_done(loss=loss) after each training step, in the loop over {name}"
            )
        self._data_ended = self._has_read = True
        if not self._in_epochs:  # the head of the next body is somewhere between here and its batches
            self._head.begin(None, is_first=False)

    def _count_step(self) -> None:
        """One more step is done. Raises RuntimeError if no position would tell it from the step before."""
        reads_ahead = self._pulls.end_step(self._reading is not None)
        if self._reading is not None:
            if self._consumed is None and not self._pulls.reads_ahead:
                raise RuntimeError(self._explain_second_step(self._reading))
        elif self._in_epochs and not self._pulls.reads_ahead:
            if self._body_step:
                raise RuntimeError(self._explain_second_step(None))
            self._body_step = True
        elif self._data_ended and not self._tail_checked:
            self._tail_checked = True
            self._check_loops_behind_data()
        self.step += 1
        if self._consumed is not None:
            self._position, self._consumed = self._consumed, None
        if reads_ahead:
            self._report_reading_ahead()

    def _check_loops_behind_data(self) -> None:
        """Names the loops around a step behind the data in which a restart would make it again."""
        raise NotImplementedError

    def _report_reading_ahead(self) -> None:
        """Names that the script takes batches before the steps that train on them."""
        raise NotImplementedError

    def _explain_second_step(self, reading: str | None) -> str:
        """Why there can't be another step now, and what to write. `reading`: the method that the loop reads, if any."""
        raise NotImplementedError

    def _on_step_boundary(self) -> None:
        """Saves if it is time or if somebody asked for it, and may exit. Called between two steps."""
        raise NotImplementedError

    @property
    def _is_within_epoch(self) -> bool:
        return self._position.batch > 0 or self._position.begun

    def _continue_at(self, position: Position, body: EpochBody | None) -> None:
        """Training continues at the position of the restored checkpoint, in the body of an epoch that began so."""
        self._position, self._body = position, body
        self._put_back_generators = self._copy_generators()
        self._resumed_within = self._is_within_epoch

    def _begin_body(self, asks: FrameType | None = None) -> None:
        """The body of an epoch begins. If a restart runs its head again, that must not change the state.

        `asks`: where the script asks for the epoch, without `epochs`.
        """
        is_first = self.step == 0
        if self._resumed_within and self._put_back is None:
            self._put_back = self._copy_saved_state()
            if self._body is not None and self._body.epoch == self._position.epoch:
                self._step_behind_head, self.step = self.step, self._body.step
        self._head.begin(asks, is_first=is_first)

    def _end_head(self) -> None:
        """The head of an epoch's body is done: its batches follow."""
        self._leave_head()
        put_back, self._put_back, self._resumed_within = self._put_back, None, False
        if put_back is not None:
            put_back()
        if self._position.batch == 0:
            if self._body is None or self._body.epoch != self._position.epoch:
                self._body = EpochBody(self._position.epoch, self.step)
            self._position = replace(self._position, begun=True)

    def _leave_head(self) -> None:
        """From now on `step` is what the state is of, also where a restart has begun to do a head again."""
        if self._step_behind_head is not None:
            self.step, self._step_behind_head = self._step_behind_head, None

    def _end_epoch(self) -> None:
        """The body of the epoch is done."""
        self._end_head()
        self._position, self._data_ended, self._has_read = Position(self._position.epoch + 1), False, False
        self._consumed, self.state.order = None, None
        if self._body_step:
            self._body_step = False
            self._on_step_boundary()
        self._end_pass()

    def _end_pass(self) -> None:
        """The code behind a step is done: the loop takes its next batch, or is left and the epoch is done."""
        if self._boundary_waits:
            self._boundary_waits = False
            self._on_step_boundary()

    def _end_loops(self) -> None:
        """Training is complete: a restart from its last checkpoint must not go on."""
        self._body_step = self._boundary_waits = False  # the last checkpoint holds it
        if self._broke_off and self._last_epoch is not None:
            self._end_epoch()
            self._position = Position(self._last_epoch + 1)
        elif self._data_ended and (self._reads_epoch or self._last_epoch is not None):
            self._end_epoch()
