"""PyTorch as a job: model, optimizer, scheduler, scaler, generators and the position in the data, in one checkpoint.

Imports no TensorFlow.
"""

import copy
import os
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worker.checks.findings import Finding
from worker.checks.library_loops import refuse_loop_around
from worker.checks.reachability import Root
from worker.checks.watch.kept.given_states import keep_state_of
from worker.checks.watch.kept.kept_values import Kept
from worker.devices import conditions
from worker.files.files_run import FilesRun
from worker.process.startup import current_attempt
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.replay.replayed_run import LoopAccess
from worker.state.script_conditions import Condition
from worker.state.state_file import Position
from worker.torch.accelerated import AcceleratedPlan
from worker.torch.gradient_watch import GradientWatch
from worker.torch.loaders import Plan, plan_batches
from worker.torch.missing_state import (
    find_generators_of_dataset,
    find_missing,
    find_unread_loaders,
    functions_in,
    generators_saved_by,
    keep_attributes,
    keep_parts,
)
from worker.torch.replayed_state import ReplayedTorch, batch_bytes, copy_generators, copy_small_parts
from worker.torch.script_conditions import read_conditions
from worker.torch.streams import StreamPlan
from worker.torch.torch_files import TorchFiles

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


class TorchRun(FilesRun):
    """One training run around a PyTorch loop, as a context manager; see `FilesRun`."""

    _public_name = "worker.torch.Run"

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
        own = {name: generator for name, generator in named.items() if isinstance(generator, torch.Generator)}
        others = [generator for name, generator in named.items() if name not in own]
        self._torch_files = TorchFiles(parts, own)
        super().__init__(self._torch_files, total_steps=total_steps, directory=directory, interval=interval,
                         generators=others, leave_out=leave_out, strict=strict, on_nan=on_nan,
                         summaries=summaries, summary_every=summary_every, state=state)  # fmt: skip
        self._torch_files.check_finite(self._on_nan != "off")
        self._plan: Plan | None = None  # that `batches` reads
        self._loader: Any = None  # of the script, if it gave one
        watched = {} if "gradients" in map(str, self._leave_out) else parts
        self._gradients = GradientWatch(watched)

    _seeded_by_epoch = "torch.Generator().manual_seed(epoch) or numpy.random.default_rng(epoch)"

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
        self._check_data_of_epoch(data, plan.dataset)
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

    @property
    def _reads_batches(self) -> bool:
        return self._plan is not None

    def _replayed_run(self, loop: LoopAccess) -> ReplayedTorch:
        files = self._torch_files
        return ReplayedTorch(loop, self._checkpoints, files.state, files.parts, files.write_generators)

    @property
    def _trains_with_others(self) -> bool:
        return bool(torch.distributed.is_available() and torch.distributed.is_initialized())

    def _memory_of_parts(self) -> Collection[int]:
        return self._torch_files.memory()

    def _copy_small(self) -> Callable[[], None]:
        return copy_small_parts(self._torch_files.parts)

    def _copy_generators(self) -> Callable[[], None]:
        others, put_back_torch = super()._copy_generators(), copy_generators(self._torch_files.generators)

        def put_back() -> None:
            others()
            put_back_torch()

        return put_back

    def step_done(self, *unnamed: Any, **metrics: Any) -> None:
        """One optimizer step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        if findings := self._gradients.pop_findings():
            self._report_findings(findings)
        self._complete_step(sys._getframe(1), unnamed, metrics)

    def _release(self) -> None:
        self._gradients.close()
        super()._release()

    _remedy = (
        "pass it to worker.torch.Run by name, as in Run(scheduler=scheduler), a generator as in "
        'Run(generators={"rng": rng}), or in leave_out=[...] if it never changes'
    )

    def _digest_generators(self) -> bytes:
        generators = [
            torch.get_rng_state(),
            *(generator.get_state() for generator in self._torch_files.generators.values()),
        ]
        return super()._digest_generators() + b"".join(state.numpy().tobytes() for state in generators)

    def _watched_roots(self) -> list[Root]:
        return [*super()._watched_roots(), *functions_in(self._torch_files.parts)]

    def _functions_of_data(self) -> Sequence[Root]:
        if self._plan is None:
            return []
        roots = self._asked.roots if self._asked is not None else [("dataset", self._plan.dataset)]
        return [*roots, ("collate_fn", getattr(self._loader, "collate_fn", None))]

    @property
    def _asked(self) -> StreamPlan | None:
        """The plan, if it reads a dataset that gives its own state."""
        plan = self._plan.plan if isinstance(self._plan, AcceleratedPlan) else self._plan
        return plan if isinstance(plan, StreamPlan) and plan.is_asked else None

    def _keep(self, kept: Kept) -> None:
        super()._keep(kept)
        kept.names_modules = True
        keep_parts(kept, {**self._torch_files.parts, **self.state.held()})
        if self._plan is not None:
            if self._asked is not None:
                keep_attributes(kept, (self._loader,))
                keep_state_of(kept, self._plan.dataset)
            else:
                keep_attributes(kept, (self._loader, *self._plan.kept))
            # of the loader's attributes, what makes the data
            kept.identities.discard(id(getattr(self._loader, "collate_fn", None)))
            if self._asked is not None or all(self._plan.dataset is not part for part in self._plan.kept):
                kept.identities.discard(id(self._plan.dataset))

    def _find_missing(self, roots: list[Root]) -> tuple[tuple[str, ...], Sequence[Finding]]:
        saved = self._torch_files
        generators = (*saved.generators.values(), *self._own_generators, *self.state.generators())
        kept = {f"state {name}": value for name, value in self.state.held().items()}
        plan = self._plan
        known = () if plan is None else (self._loader, *plan.kept)
        missing = find_missing({**saved.parts, **kept}, generators, roots, [self, *self._leave_out], known)
        if plan is None:
            return missing, find_unread_loaders(roots)
        if self._asked is None and any(plan.dataset is part for part in plan.kept):
            return missing, ()
        generators = (*generators, *(generators_saved_by(plan.dataset) if self._asked is not None else ()))
        known_generators = (*generators, *self._leave_out)
        return missing, find_generators_of_dataset(plan.dataset, known_generators, in_processes=plan.has_processes)
