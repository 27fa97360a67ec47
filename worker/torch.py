"""PyTorch as a job: model, optimizer, scheduler, scaler, generators and the sampler's position, in one commit.

Needs no TensorFlow. What is loaded are tensors and plain values (`weights_only`), never objects of any class.
"""

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from supervisor.protocol import checkpoints, manifest
from supervisor.protocol.manifest import ManifestError
from worker import attempt
from worker.files import FilesRun, NotFinite, Unfit
from worker.tensorboard import EVERY

STATE = "torch.pt"
SEED = 1
MAX_NAMED = 10  # tensors in a message
_LACKS_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_DEVICE = ("CUDA error", "CUDA driver", "CUDA GPU", "cuDNN error", "CUBLAS_STATUS", "NCCL error", "HIP error")
_CHECKED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_AT_ONCE = (
    1 << 24
)  # elements looked at closely: the answer takes as many bytes and a copy, on a device that may be full


def prepare(seed: int = SEED, directory: str | Path | None = None) -> None:
    """Seeds every global generator. Call it before the model is built.

    With `deterministic = true` in the job's configuration it also allows deterministic algorithms only and fixes the
    number of threads: to what the newest checkpoint (in the job's folder, or in `directory`) was trained with.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    told = attempt.this().launch
    if told.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
        torch.use_deterministic_algorithms(True)
        place = told.checkpoint_dir or (Path(directory) if directory is not None else None)
        torch.set_num_threads((place and _threads_of_newest(place)) or len(os.sched_getaffinity(0)))


def _threads_of_newest(directory: Path) -> int | None:
    """Sums, and so the bits, depend on the number of threads."""
    for name in checkpoints.committed(directory):
        try:
            threads = manifest.read(directory / str(name)).topology.get("intra_op_threads")
        except ManifestError:
            continue
        return threads if isinstance(threads, int) and threads > 0 else None
    return None


class Run(FilesRun):
    """One training run around a PyTorch loop, as a context manager; see `FilesRun`."""

    def __init__(self, *, total_steps: int | None = None, directory: str | Path | None = None,
                 interval: str | None = None, generators: Mapping[str, torch.Generator] | None = None,
                 summaries: str | Path | None = None, summary_every: int = EVERY,
                 **parts: Any) -> None:  # fmt: skip
        """`parts`: whatever has a `state_dict`, by name: model=, optimizer=, scheduler=, scaler=, ema=, ...

        `generators`: torch generators of your own; the global ones are kept anyway.
        """
        files = _TorchFiles(parts, dict(generators or {}))
        super().__init__(files, total_steps=total_steps, directory=directory, interval=interval,
                         summaries=summaries, summary_every=summary_every)  # fmt: skip
        self._following = (0, 0)

    def batches(self, dataset: Any, *, batch_size: int, seed: int = 0, **options: Any) -> Iterator[Any]:
        """The batches that are left, in an order that is a function of (seed, epoch), from the exact position on.

        `options`: those of torch.utils.data.DataLoader besides its samplers. Examples that do not fill a last batch
        are left out of that epoch. With `total_steps` it goes on over epochs; without, it ends with the epoch.
        """
        per_epoch = len(dataset) // batch_size
        if per_epoch == 0:
            raise ValueError(f"cannot make batches of {batch_size} from {len(dataset)} examples; use a smaller size")
        epoch, batch = self.epoch, self.batch
        while not self.reached:
            sampler = _Batches(len(dataset), batch_size, seed, epoch, batch)
            own = torch.Generator()  # else the loader draws from the global one, once more after a resume
            for examples in torch.utils.data.DataLoader(dataset, batch_sampler=sampler, generator=own, **options):
                batch += 1
                self._following = (epoch, batch) if batch < per_epoch else (epoch + 1, 0)
                yield examples
                if self.reached:
                    return
            epoch, batch = epoch + 1, 0
            if self.total_steps is None:
                return

    def step_done(self, **metrics: float) -> None:
        """One optimizer step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        epoch, batch = self._following
        super().step_done(epoch=epoch, batch=batch, **{name: float(value) for name, value in metrics.items()})


class _Batches:
    """Indices, from a batch of an epoch on."""

    def __init__(self, count: int, batch_size: int, seed: int, epoch: int, first: int) -> None:
        mixed = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
        self._order = torch.randperm(count, generator=mixed)
        self._starts = range(first * batch_size, count - count % batch_size, batch_size)
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in self._starts:
            yield self._order[start : start + self._batch_size].tolist()

    def __len__(self) -> int:
        return len(self._starts)


class _TorchFiles:
    """All state in one file of torch.save."""

    def __init__(self, parts: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> None:
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError(f"cannot keep {name}: a {type(part).__name__} has no state_dict")
        self._parts = parts
        self._generators = generators
        self._looks = attempt.this().launch.on_nan != "off"
        self._on_purpose: frozenset[str] = frozenset()
        """Not finite before there was a step, as a mask may be."""
        if self._looks:
            self._on_purpose = frozenset(self._not_finite({name: part.state_dict() for name, part in parts.items()}))
        self.versions: Mapping[str, str] = {"torch": str(torch.__version__)}
        self.topology: Mapping[str, str | int | bool] = {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "intra_op_threads": torch.get_num_threads(),
            "deterministic": attempt.this().launch.deterministic,
        }

    def write(self, folder: Path) -> None:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        bad = [each for each in self._not_finite(parts) if each not in self._on_purpose] if self._looks else []
        if bad:
            more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
            raise NotFinite(f"{', '.join(bad[:MAX_NAMED])}{more} not finite")
        state = {
            "parts": parts,
            "generators": {name: each.get_state() for name, each in self._generators.items()},
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        try:
            torch.save(state, folder / STATE)
        except RuntimeError as error:  # how its writer says that the disk is full
            if _says_nothing_of_it(error):
                raise
            raise OSError(f"{STATE}: {attempt.one_line(error)}") from error

    def _not_finite(self, parts: Mapping[str, Any]) -> Iterator[str]:
        """The names of tensors with a NaN or an infinity."""
        for name, state in parts.items():
            yield from (f"{name}.{path}" for path, tensor in _tensors(state, "") if not _is_finite(tensor))

    def read(self, folder: Path) -> None:
        try:
            state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        except (UnpicklingError, AttributeError) as error:
            raise Unfit(attempt.one_line(error)) from error
        except RuntimeError as error:  # its bytes were just proven, so reading them failed, or memory did
            _raise_lack_of_memory(error)
            raise
        try:
            if set(state["parts"]) != set(self._parts):
                raise Unfit(
                    f"it holds {', '.join(sorted(state['parts']))}; the run has {', '.join(sorted(self._parts))}"
                )
            for name, part in self._parts.items():
                part.load_state_dict(state["parts"][name])
            for name, each in self._generators.items():
                each.set_state(state["generators"][name])
        except (RuntimeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, RuntimeError) and _says_nothing_of_it(error):
                _raise_lack_of_memory(error)
                raise
            raise Unfit(attempt.one_line(error)) from error
        torch.set_rng_state(state["cpu"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint, and this program is one of PyTorch")


def _lacks_memory(error: RuntimeError) -> bool:
    """PyTorch has a class for it on a device, none on the host; a module's `load_state_dict` makes a plain RuntimeError
    of both."""
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in _LACKS_MEMORY)


def _says_nothing_of_it(error: RuntimeError) -> bool:
    """Whether it was memory or the device that failed, and not what a checkpoint holds."""
    return _lacks_memory(error) or any(each in str(error) for each in _DEVICE)


def _raise_lack_of_memory(error: RuntimeError) -> None:
    """Raises MemoryError if that is what it says without having the class for it, so that it is booked as that."""
    if _lacks_memory(error) and not isinstance(error, torch.OutOfMemoryError):
        raise MemoryError(attempt.one_line(error)) from error


def _tensors(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Those anywhere in a state_dict, by name."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, f"{path}.{key}".lstrip("."))
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from _tensors(value, f"{path}.{number}".lstrip("."))


def _is_finite(tensor: torch.Tensor) -> bool:
    """A sum is not finite if a term is not, and costs no memory; only one that is not is looked at closely."""
    if tensor.dtype not in _CHECKED or tensor.layout is not torch.strided or tensor.is_meta:
        return True
    with torch.no_grad():
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        if bool(torch.isfinite(tensor.sum(dtype=wide))):
            return True
        return all(bool(torch.isfinite(part).all()) for part in tensor.reshape(-1).split(_AT_ONCE))
