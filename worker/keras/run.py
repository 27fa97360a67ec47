"""A run whose batches Keras takes, and how many examples of a dataset it was given."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import tensorflow as tf

from supervisor.protocol.exit_codes import WorkerExit
from worker.checkpoint.tensorflow_writer import StepBoundary
from worker.data import collectives
from worker.data.resume_dataset import rows_tensor
from worker.keras.state import FitState
from worker.run.run import Run
from worker.state import missing_variables
from worker.state.state_file import Position


class ExampleCounter:
    """Counts the examples that are trained on, in the step itself: a dataset runs ahead of training."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy | None) -> None:
        with model.distribute_strategy.scope():
            self.trained = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="examples_trained",
            )
        self._gang = collectives.gang_of(strategy)
        self._before: int | None = 0

    def begin(self, before: int | None) -> None:
        """A part of an epoch begins, with so many of its examples consumed; None: not known."""
        self._before = before
        for copy in getattr(self.trained, "values", (self.trained,)):
            copy.assign(0)

    def consumed(self) -> int | None:
        """How many examples of the epoch are consumed. Waits for the last step; all workers have to ask."""
        trained = sum(int(copy.numpy()) for copy in getattr(self.trained, "values", (self.trained,)))
        if self._gang is not None:
            (trained,) = self._gang.sum([trained])
        return None if self._before is None else self._before + trained

    @contextlib.contextmanager
    def counting(self, model: Any) -> Iterator[None]:
        """Has the steps of `model` counted, also where the script has written its own."""
        step, own = model.train_step, vars(model).get("train_step")

        def counted(data: Any) -> Any:
            self.trained.assign_add(rows_tensor(data))
            return step(data)

        object.__setattr__(model, "train_step", counted)  # past Keras, which would track it
        model.train_function = None  # or one that was traced before would be used
        try:
            yield
        finally:
            object.__delattr__(model, "train_step")
            if own is not None:
                object.__setattr__(model, "train_step", own)
            model.train_function = None


_REMEDY = (
    "give the model or a callback the object as an attribute, give a generator to fit(generators=), or what never "
    "changes to fit(leave_out=); random state inside Dataset.map can't be kept: use stateless operations there"
)

VALIDATION_REPORT_S = 1.0  # between two words of a validation that it lives; limits are minutes


class FitRun(Run):
    """A run whose batches Keras takes."""

    _evaluating_told_at = 0.0  # monotonic

    def report_validation(self, begins: bool) -> None:
        """Keras is at a validation, and alive: so its silence is no step's, and no batch's but the one that hangs."""
        now = time.monotonic()
        if begins or now - self._evaluating_told_at >= VALIDATION_REPORT_S:
            self._evaluating_told_at = now
            self._report_section("evaluation")

    def report_validation_end(self) -> None:
        """It is at its steps again."""
        self._report_section(None)

    def attach(
        self, state: FitState, example_counter: ExampleCounter | None, roots: list[missing_variables.Root]
    ) -> None:
        """Whose state it keeps, who counts the examples, and what training reaches."""
        self._fit_state = state
        self._counter = example_counter
        self._roots = roots
        self._reported_names: frozenset[str] = frozenset()  # attributes of callbacks that are not kept, as was said

    @property
    def position(self) -> Position:
        """Where the data go on."""
        return self._position

    def steps_done(self, position: Position, logs: Mapping[str, Any], steps: int) -> None:
        """So many steps are complete; the data go on at `position`."""
        self._position = position
        self.step += steps - 1
        self.step_done(**{name: figure for name, figure in logs.items() if _is_number(figure)})
        self._report_not_saved()

    def move_to(self, position: Position) -> None:
        """The data go on there, and no step was needed."""
        self._position = position

    def begin_epoch_part(self) -> None:
        """A part of an epoch is trained on from here."""
        if self._counter is not None:
            self._counter.begin(self._position.examples)

    def report_lost_state(self, lost: tuple[str, ...]) -> None:
        """Says what the checkpoint held of callbacks and could not be given back."""
        if lost:
            self._attempt.reporter.show_message(f"state of callbacks is lost: {'; '.join(lost)}")

    def _figures(self) -> StepBoundary:
        if self._counter is not None and self._position.examples is None:
            self._position = replace(self._position, examples=self._counter.consumed())
        return super()._figures()

    def _check_complete(self, frame: FrameType) -> None:
        """What Keras reaches, not what the frame does: that is one of this file."""
        self._fit_state.inspect_callbacks()
        kept = [*self._fit_state.live, *self._fit_state.metrics]
        counted = [] if self._counter is None else [self._counter.trained]
        exempt = (*self._leave_out, *kept, *counted)
        self._checkpoints.check_completeness(self._roots, exempt, self._strict, self.step, _REMEDY)

    def _report_not_saved(self) -> None:
        """What of callbacks no checkpoint holds, once each; the end of training with `strict`."""
        new = [name for name in self._fit_state.not_saved if name not in self._reported_names]
        if not new or self._directory is None:
            return
        self._reported_names = self._reported_names.union(new)
        text = (
            f"the checkpoints don't hold {', '.join(new)}: of a callback, plain values, containers, arrays, variables, "
            f"generators and objects of the script's own are kept; give what never changes to fit(leave_out=)"
        )
        if self._strict:
            self._attempt.exit_with_error(WorkerExit.INCOMPLETE, f"cannot train on (strict): {text}", self.step)
        self._attempt.reporter.show_message(text)


def _is_number(figure: Any) -> bool:
    """Whether it is one: a metric may have a figure for each class."""
    return not isinstance(figure, Mapping | str) and len(getattr(figure, "shape", ())) == 0
