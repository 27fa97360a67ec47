"""The run behind `worker.keras.fit`: Keras takes the batches and reports its steps through callbacks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from supervisor.protocol.wire.exits import WorkerExit
from worker.checkpoint.tensorflow_writer import StepBoundary
from worker.checks import reachability
from worker.checks.findings import Finding
from worker.checks.watch.kept.kept_values import Kept
from worker.data.collectives import Gang
from worker.keras.data.end_of_data import ExampleCounter
from worker.keras.data.fit_data import FitData
from worker.keras.state import FitState
from worker.keras.validation import Validation
from worker.run.run import Run
from worker.state import random_operations
from worker.state.callback_state import is_keras_callback
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

_REMEDY = (
    "make the object an attribute of the model or of a callback, give a generator to fit(generators=), or what never "
    "changes to fit(leave_out=); random state inside Dataset.map can't be saved: use stateless operations there"
)

_REMEDY_OF_VALUES = (
    "no checkpoint has it: keep it in an attribute of a callback's object, as in self.best, and let the callback set "
    "it again in on_epoch_begin, or in a variable of the model, or give its name to fit(leave_out=) if it may begin "
    "anew"
)

_REMEDY_OF_DATA = (
    "no checkpoint has the position in it, as fit keeps that of its own data only: put both into one dataset, which "
    "fit reads, as in fit(model, tf.data.Dataset.zip((dataset, other))), or give it to fit(leave_out=) if it may begin "
    "anew"
)

VALIDATION_REPORT_S = 1.0  # between two reports that a validation is alive; hang limits are minutes


class FitRun(Run):
    """A run in which Keras takes the batches."""

    _set_at_step = (
        "write `if model.optimizer.iterations == {step}: {line}` into on_train_batch_begin of a callback, where "
        "optimizer is model.optimizer"
    )
    _parts_remedy = (
        "make each part (a fold, a fine-tuning with other layers) a job of its own, as in train.py --part 2, which "
        "loads what model.save of the first has written; to train the same model on, give the second fit the epochs of "
        "both, as in epochs=5 + 10, and each in a loop those so far, as in epochs=epoch + 1; without a daemon, "
        "directory= can also give each a folder"
    )
    _why_no_replays = "Keras takes the batches in model.fit, and can't be led back to earlier ones"
    _validation_reported_at = 0.0  # monotonic

    def report_validation(self, begins: bool) -> None:
        """Reports that Keras is validating, so that the daemon does not take it for a hanging step."""
        now = time.monotonic()
        if begins or now - self._validation_reported_at >= VALIDATION_REPORT_S:
            self._validation_reported_at = now
            self._report_section("evaluation")

    def report_validation_end(self) -> None:
        """Reports that Keras is training again."""
        self._report_section(None)

    def attach(
        self,
        state: FitState,
        example_counter: ExampleCounter | None,
        data: FitData,
        validation: Validation,
        roots: list[reachability.Root],
    ) -> None:
        """Sets what this run saves, what counts its examples, what it trains on, and what training can reach."""
        self._fit_state = state
        self._data = data
        self._validation = validation
        self._counter = example_counter
        self._roots = roots
        self._reported_names: frozenset[str] = frozenset()  # attributes of callbacks that can't be saved

    @property
    def gang(self) -> Gang | None:
        """The workers that train together; None if this process trains alone."""
        return self._gang

    @property
    def position(self) -> Position:
        """Where in the data training continues."""
        return self._position

    @property
    def passes(self) -> PassLog:
        """The passes over the data."""
        return self._run_data.passes

    def steps_done(self, position: Position, logs: Mapping[str, Any], steps: int) -> None:
        """Counts completed steps; the data continue at `position`."""
        self._position = position
        self.step += steps - 1
        self.step_done(**{name: value for name, value in logs.items() if _is_number(value)})
        self._report_not_saved()

    def move_to(self, position: Position) -> None:
        """The data continue at `position` without a step."""
        self._position = position

    def begin_callbacks(self, callbacks: Any) -> None:
        """Has the callbacks begin training. After a restart, what that changes of the saved state again is put back."""
        put_back = self._copy_saved_state() if self._fit_state.is_restored else None
        callbacks.on_train_begin()
        if put_back is not None:
            put_back()

    def begin_epoch_part(self) -> None:
        """Training of an epoch, or of the rest of one, begins."""
        random_operations.watch_own_seeds()
        if self._counter is not None:
            self._counter.begin(self._position.examples)

    def count_examples(self) -> int | None:
        """The number of examples of the pass that are trained on; None: unknown. Waits for the last step."""
        return self._position.examples if self._counter is None else self._counter.consumed()

    def report_lost_state(self, lost: tuple[str, ...], owner: str = "callbacks") -> None:
        """Names the saved state that could not be restored."""
        if lost:
            self._attempt.reporter.show_message(f"cannot restore some state of {owner}: {'; '.join(lost)}")

    def _step_boundary(self) -> StepBoundary:
        if self._counter is not None and self._position.examples is None:
            self._position = replace(self._position, examples=self._counter.consumed())
        self._fit_state.keep_data(self._data, self._validation, self._position)
        return super()._step_boundary()

    def _check_complete(self, frame: FrameType) -> None:
        """Searches what Keras reaches; the frame is one of this package."""
        self._fit_state.inspect_callbacks()
        saved = [*self._fit_state.live, *self._fit_state.metric_variables]
        counted = [] if self._counter is None else [self._counter.trained]
        exempt = (*self._leave_out, *saved, *counted)

        def find_problems() -> list[Finding]:
            data = next((value for name, value in self._roots if name == "data"), None)
            others = [*self._data.find_problems(), *self._validation.find_problems()]
            found = [*self._find_problems(self._roots, data), *others]
            return [*map(_in_fit, found), *self._find_lost_values(None)]

        self._checkpoints.check_completeness(self._roots, exempt, self.step, _REMEDY, find_problems)

    def _report_changed_values(self, frame: FrameType | None) -> None:
        """Compares what Keras reaches; the frames are Keras' own."""
        super()._report_changed_values(None)

    def _find_lost_values(self, frame: FrameType | None) -> list[Finding]:
        return list(map(_in_fit, super()._find_lost_values(frame)))

    def _report_findings(self, findings: Sequence[Finding]) -> None:
        super()._report_findings(list(map(_in_fit, findings)))

    def _watched_roots(self) -> list[reachability.Root]:
        kinds = {type(callback) for callback in self._fit_state.callbacks}
        roots = [(name, value) for name, value in self._roots if name in ("model", "loss", "optimizer")]
        classes = ((kind.__name__, kind) for kind in kinds if reachability.is_script_class(kind))
        model = dict(roots).get("model")
        together = [
            part for metric in getattr(model, "metrics", ()) for part in (metric, *getattr(metric, "metrics", ()))
        ]
        own = [(metric.name, metric) for metric in together if reachability.is_script_class(type(metric))]
        return [*roots, *classes, *own, *self._data.unsaveable().items()]

    def _keep(self, kept: Kept) -> None:
        """What the functions of callbacks use is saved; of their classes' attributes, which are not, it is compared."""
        super()._keep(kept)
        kept.identities |= {id(callback) for callback in self._fit_state.callbacks if is_keras_callback(callback)}
        for callback in self._fit_state.callbacks:
            kept.identities |= {id(function) for function in reachability.script_methods_of(callback)}

    def _report_not_saved(self) -> None:
        """Names each attribute of a callback that can't be saved, once. Ends training if the run is `strict`."""
        not_saved = (*self._fit_state.not_saved, *self._data.not_saved)
        new = [name for name in not_saved if name not in self._reported_names]
        if not new or self._directory is None:
            return
        self._reported_names = self._reported_names.union(new)
        text = (
            f"checkpoints do not include {', '.join(new)}: of a callback and of a PyDataset, plain values, containers, "
            f"arrays, variables, generators and objects of the script's classes are saved; give what never changes to "
            f"fit(leave_out=)"
        )
        if self._strict:
            self._attempt.exit_with_error(WorkerExit.INCOMPLETE, f"cannot train, as strict is set: {text}", self.step)
        self._attempt.reporter.show_message(text)


def _in_fit(finding: Finding) -> Finding:
    """A finding with a remedy that a script can follow which has no loop of its own."""
    if "run.batches" in finding.remedy:
        return replace(finding, remedy=_REMEDY_OF_DATA)
    return replace(finding, remedy=_REMEDY_OF_VALUES) if "run.state" in finding.remedy else finding


def _is_number(value: Any) -> bool:
    """Whether the value of a metric is one number; some metrics have one for each class."""
    return not isinstance(value, Mapping | str) and len(getattr(value, "shape", ())) == 0
