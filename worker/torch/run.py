"""PyTorch as a job: model, optimizer, scheduler, scaler, generators and the position in the data, in one checkpoint.

Imports no TensorFlow.
"""

import copy
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from supervisor.protocol.plurals import counted
from worker.checks.findings import Finding
from worker.checks.library_loops import refuse_loop_around
from worker.checks.reachability import Root
from worker.checks.watch.kept_values import Kept
from worker.devices import conditions
from worker.files.files_run import FilesRun, NotFinite, Unfit
from worker.process.reporting import describe_error
from worker.process.startup import current_attempt
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.replay.replayed_run import LoopAccess, LoopState
from worker.replay.replays import NO_BATCHES, Replays
from worker.saving.directory import UNFIT_REMEDY
from worker.state import random_generators
from worker.state.script_conditions import Condition
from worker.state.state_file import Position
from worker.torch.epoch_head import copy_generators, copy_parts
from worker.torch.gradient_watch import GradientWatch
from worker.torch.loaders import Plan, plan_batches
from worker.torch.missing_state import (
    find_generators_of_dataset,
    find_missing,
    find_unread_loaders,
    keep_attributes,
    keep_parts,
)
from worker.torch.replayed_state import ReplayedTorch, batch_bytes
from worker.torch.saved_state import (
    STATE,
    copy_to_host,
    differing_tensors,
    is_resource_failure,
    load_state,
    memory_errors,
    names_not_finite,
    raise_if_memory_error,
    save_state,
    unloadable_classes,
)
from worker.torch.script_conditions import read_conditions

SEED = 1


def prepare(seed: int = SEED, directory: str | Path | None = None, *, deterministic: bool = False) -> None:
    """Seeds every global generator. Call it before the model is built.

    With `deterministic`, or if the job's configuration says so, it also restricts PyTorch to deterministic algorithms
    and fixes the number of threads, on which sums depend: to OMP_NUM_THREADS, or else to the number with which the job
    (whose checkpoints are in its checkpoint_dir or in `directory`) trained before, or else to the usable cores.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    launch = current_attempt().launch
    if launch.deterministic or deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise cuBLAS is not deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False  # it selects algorithms by measured speed
        folder = launch.checkpoint_dir or (Path(directory) if directory is not None else None)
        before = conditions.recorded_conditions(folder) if folder is not None else None
        requested = conditions.threads_of_environment("OMP_NUM_THREADS")
        torch.set_num_threads(requested or conditions.recorded_threads(before) or conditions.cores())


class Run(FilesRun):
    """One training run around a PyTorch loop, as a context manager; see `FilesRun`."""

    def __init__(self, *, total_steps: int | None = None, directory: str | Path | None = None,
                 interval: str | None = None, generators: Mapping[str, Any] | None = None,
                 leave_out: Iterable[Any] = (), strict: bool = False, on_nan: str | None = None,
                 summaries: str | Path | None = None, summary_every: int = SUMMARY_EVERY,
                 state: Mapping[str, Any] | None = None, **parts: Any) -> None:  # fmt: skip
        """`parts`: everything that has a `state_dict`, by name: model=, optimizer=, scheduler=, scaler=, ema=, ...

        `generators`: torch's, NumPy's and Python's generators of the script, by name; the global ones are saved anyway.
        The other arguments are those of `FilesRun`.
        """
        named = dict(sorted((generators or {}).items()))
        own = {name: each for name, each in named.items() if isinstance(each, torch.Generator)}
        others = [each for name, each in named.items() if name not in own]
        self._torch_files = _TorchFiles(parts, own)
        super().__init__(self._torch_files, total_steps=total_steps, directory=directory, interval=interval,
                         generators=others, leave_out=leave_out, strict=strict, on_nan=on_nan,
                         summaries=summaries, summary_every=summary_every, state=state)  # fmt: skip
        self._torch_files.check_finite(self._on_nan != "off")
        self._plan: Plan | None = None  # that `batches` reads
        self._loader: Any = None  # of the script, if it gave one
        watched = {} if "gradients" in map(str, self._leave_out) else parts
        self._gradients = GradientWatch(watched)
        self._replays: Replays[Mapping[str, Any], tuple[Any, Position]] | None = None

    def _read_script(self) -> dict[str, Condition]:
        files = self._torch_files
        return {**super()._read_script(), **read_conditions(files.parts, files.generators)}

    def batches(self, data: Any, *, batch_size: int | None = None, seed: int = 0, **options: Any) -> Iterator[Any]:
        """Yields the remaining batches, in an order that is a function of (seed, epoch), from the exact position on.

        `data`: a dataset, with `batch_size` and the `options` of torch.utils.data.DataLoader except its samplers;
        examples that do not fill a last batch are left out of that epoch. Or a DataLoader of the script's own, with its
        batches, its samplers and its `drop_last`, also one of `accelerator.prepare`; or another loader with
        `state_dict` and `load_state_dict`.
        After a change of the batch size it begins with the next example that was not consumed. It ends with the epoch;
        outside of `run.epochs`, with `total_steps`, the batches of further epochs follow.
        Raises TypeError or ValueError for data that can't be resumed in the middle of an epoch.
        """
        self._require_with("run.batches")
        refuse_loop_around(sys._getframe(1))
        self._check_loops()
        plan = plan_batches(data, batch_size, seed, options)
        self._data, self._loader = plan.describe(), data
        batches = self._over_epochs("run.batches", lambda: self._rest_of_epoch(plan))
        return batches if self._replays is None else self._replays.watch(batches)

    def _rest_of_epoch(self, plan: Plan) -> Iterator[Any]:
        if plan is not self._plan:
            plan.follow(self._plan)
            if self._plan is None:
                plan.restore(self._torch_files.data_state())
            self._plan = plan
            self._torch_files.data_state = plan.state
        for batch, behind in self._with_replays(plan):
            self._consumed = behind
            yield batch

    def _with_replays(self, plan: Plan) -> Iterator[tuple[Any, Position]]:
        if self._replays is None:
            return plan.read(self._position)
        # processes that load would have to be started anew; without them, reading may draw random numbers
        again = None if plan.has_processes else lambda: plan.read(self._position)
        return self._replays.over(plan.read(self._position), lambda read: batch_bytes(read[0]), again, copy.deepcopy)

    def _open_replays(self) -> None:
        loop = LoopAccess(
            self._read_loop,
            dict,
            lambda: self.step,
            self._write_loop,
            lambda: self._consumed is None,
            self._begin_replay,
            self._end_replay,
            self._on_step_boundary,
            dict,
        )
        files = self._torch_files
        replayed = ReplayedTorch(loop, self._scheduler, files.state, files.parts, files.write_generators)
        self._replays = Replays(replayed, self._attempt, self._directory)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._replays.give_up("several processes train together")

    def _leave_replay(self) -> None:
        if self._replays is not None:
            self._replays.leave()

    def _read_loop(self) -> LoopState:
        generators = random_generators.read(self._own_generators)
        return LoopState(self.step, self._position, self.state.copied(), generators, self._metrics)

    def _write_loop(self, loop: LoopState) -> None:
        self.step, self._position, self._metrics, self._consumed = loop.step, loop.position, dict(loop.metrics), None
        self.state.put_back(loop.values)
        random_generators.write(loop.generators, self._own_generators)

    def _copy_saved_state(self) -> Callable[[], None]:
        others, put_back_parts = super()._copy_saved_state(), copy_parts(self._torch_files.parts)

        def put_back() -> None:
            others()
            put_back_parts()

        return put_back

    def _copy_generators(self) -> Callable[[], None]:
        others, put_back_torch = super()._copy_generators(), copy_generators(self._torch_files.generators)

        def put_back() -> None:
            others()
            put_back_torch()

        return put_back

    def step_done(self, *unnamed: Any, **metrics: Any) -> None:
        """One optimizer step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        if findings := self._gradients.found():
            self._scheduler.report_findings((), "", findings, self.step, strict=self._strict)
        self._end_step(unnamed, metrics)

    def _release(self) -> None:
        self._gradients.close()
        super()._release()

    _remedy = (
        "pass it to worker.torch.Run by name, as in Run(scheduler=scheduler), or in leave_out=[...] if it never changes"
    )

    def _check_complete(self) -> None:
        super()._check_complete()
        if self._replays is not None and self._plan is None:
            self._replays.give_up(NO_BATCHES)

    def _digest_generators(self) -> bytes:
        generators = [torch.get_rng_state(), *(each.get_state() for each in self._torch_files.generators.values())]
        return super()._digest_generators() + b"".join(state.numpy().tobytes() for state in generators)

    def _keep(self, kept: Kept) -> None:
        keep_parts(kept, {**self._torch_files.parts, **self.state})
        if self._plan is not None:
            keep_attributes(kept, (self._loader, *self._plan.kept))

    def _find_missing(self, roots: list[Root]) -> tuple[tuple[str, ...], Sequence[Finding]]:
        saved = self._torch_files
        generators = (*saved.generators.values(), *self._own_generators)
        kept = {f"state {name}": each for name, each in self.state.items()}
        plan = self._plan
        known = () if plan is None else (self._loader, *plan.kept)
        missing = find_missing({**saved.parts, **kept}, generators, roots, [self, *self._leave_out], known)
        if plan is None:
            return missing, find_unread_loaders(roots)
        if any(plan.dataset is each for each in plan.kept):
            return missing, ()
        known_generators = (*generators, *self.state.values(), *self._leave_out)
        return missing, find_generators_of_dataset(plan.dataset, known_generators, in_processes=plan.has_processes)


class _TorchFiles:  # its name is the `kind` in state.json
    """The state of all parts and generators, in one file of torch.save."""

    def __init__(self, parts: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> None:
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError(f"cannot save {name}: a {type(part).__name__} has no state_dict and load_state_dict")
        self.parts = parts
        self.generators = generators
        self.data_state: Callable[[], Any] = lambda: None
        """The state of what the run reads, besides the position in it."""
        self._can_copy = True
        self._is_loadable_checked = False
        self._checks_finite = False
        self._expected_not_finite: frozenset[str] = frozenset()
        """Tensors that are not finite before the first step, such as a mask."""

    def check_finite(self, checks: bool) -> None:
        """Whether to refuse a state with values that are not finite, except where it has them now."""
        self._checks_finite = checks
        if checks:
            self._expected_not_finite = frozenset(names_not_finite(self._state_of_parts()))

    @property
    def versions(self) -> Mapping[str, str]:
        """The libraries that compute."""
        found = {"torch": str(torch.__version__)}
        if torch.cuda.is_available():
            found["cuda"] = str(torch.version.cuda or torch.version.hip)
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found

    @property
    def topology(self) -> Mapping[str, str | int | bool]:
        """The hardware as PyTorch uses it, and the switches that select other kernels."""
        return {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            conditions.THREADS: torch.get_num_threads(),
            "inter_op_threads": torch.get_num_interop_threads(),
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": torch.backends.mkldnn.is_available() and bool(getattr(torch.backends.mkldnn, "enabled", True)),
            "tf32": _allows_tf32(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def write(self, folder: Path) -> None:
        with memory_errors():
            state = self.state()
        self._write(state, folder)

    def copied(self) -> Callable[[Path], None] | None:
        """See `Copying`; None if some tensors can't be copied, such as those on the meta device."""
        if not self._can_copy:
            return None
        try:
            with memory_errors():
                state = copy_to_host(self.state())
        except RuntimeError as error:
            if is_resource_failure(error):  # the device has failed for good
                raise
            self._can_copy = False
            current_attempt().reporter.show_message(
                f"training waits while checkpoints are written: cannot copy the state: {describe_error(error)}"
            )
            return None
        return lambda folder: self._write(state, folder)

    def _write(self, state: Mapping[str, Any], folder: Path) -> None:
        with memory_errors():
            if self._checks_finite:
                bad = [each for each in names_not_finite(state["parts"]) if each not in self._expected_not_finite]
                if bad:
                    raise NotFinite.naming(bad)
            save_state(state, folder)
        if not self._is_loadable_checked:
            self._is_loadable_checked = True
            if classes := unloadable_classes(folder / STATE):
                current_attempt().reporter.show_message(
                    f"these checkpoints cannot be restored: they hold objects of {', '.join(classes)}; make the parts' "
                    f"state_dict return tensors, numbers, texts, lists and dicts only"
                )

    def _state_of_parts(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def state(self) -> dict[str, Any]:
        """The present state; its tensors are those of the parts."""
        data = self.data_state()
        return {
            **({} if data is None else {"data": data}),
            "parts": self._state_of_parts(),
            "generators": {name: each.get_state() for name, each in self.generators.items()},
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def read(self, folder: Path) -> None:
        try:
            state = load_state(folder / STATE)
        except (UnpicklingError, AttributeError) as error:
            raise Unfit(describe_error(error)) from error
        except RuntimeError as error:  # its bytes were just verified, so memory or the device failed
            raise_if_memory_error(error)
            raise
        try:
            if set(state["parts"]) != set(self.parts):
                raise Unfit(
                    f"it holds {', '.join(sorted(state['parts']))}; the run has {', '.join(sorted(self.parts))}"
                )
            if differing := differing_tensors(self.parts, state["parts"]):
                raise Unfit("; ".join([*differing, UNFIT_REMEDY]))
            for name, part in self.parts.items():
                settings = _settings_of(part)
                part.load_state_dict(state["parts"][name])
                if lost := sorted(settings - _settings_of(part)):
                    raise Unfit(
                        f"{name} is a {type(part).__name__}, and the optimizer in the checkpoint has no "
                        f"{', '.join(lost)}; {UNFIT_REMEDY}"
                    )
            self.write_generators(state)
            data = state.get("data")
            self.data_state = lambda: data
        except (RuntimeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, RuntimeError) and is_resource_failure(error):
                raise_if_memory_error(error)
                raise
            raise Unfit(describe_error(error)) from error

    def write_generators(self, state: Mapping[str, Any]) -> None:
        """Restores the script's generators and torch's own from a state."""
        for name, each in self.generators.items():
            each.set_state(state["generators"][name])
        _set_global_generators(state["cpu"], state["cuda"])

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint, but this program uses PyTorch")


def _settings_of(part: Any) -> frozenset[str]:
    """The names of an optimizer's own settings, which a checkpoint replaces."""
    if not isinstance(part, torch.optim.Optimizer):
        return frozenset()
    return frozenset(key for group in part.param_groups for key in group if key in part.defaults)


def _allows_tf32() -> bool:
    """Whether products of float32 may be rounded to fewer bits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return bool(matmul.allow_tf32 or (torch.cuda.is_available() and cudnn.allow_tf32))
    except RuntimeError:  # raised if the script has used the newer names of these switches
        return "tf32" in (matmul.fp32_precision, cudnn.conv.fp32_precision)


def _set_global_generators(host: torch.Tensor, devices: Sequence[torch.Tensor]) -> None:
    """Restores the CPU's generator and those of this host's GPUs, in their order."""
    torch.set_rng_state(host)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and devices:
        torch.cuda.set_rng_state_all(devices[:count])
    if len(devices) > count:
        current_attempt().reporter.show_message(
            f"the checkpoint has the random state of {counted(len(devices), 'GPU')}, but this host has {count}; the "
            f"rest is not used"
        )
