"""PyTorch as a job: model, optimizer, scheduler, scaler, generators and the sampler's position, in one commit.

Needs no TensorFlow. What is loaded are tensors and plain values, NumPy's too (`weights_only`), never objects of any
class.
"""

import contextlib
import copy
import os
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import numpy as np
import torch

from supervisor.protocol.wording import counted
from worker.devices import conditions
from worker.files.files_run import FilesRun, NotFinite, Unfit
from worker.process.reporting import describe_error
from worker.process.startup import current_attempt
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.torch import loading
from worker.torch.batches import ResumableBatchSampler

STATE = "torch.pt"
SEED = 1
MAX_NAMED = 10  # tensors in a message
_LACKS_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_DEVICE = ("CUDA error", "CUDA driver", "CUDA GPU", "cuDNN error", "CUBLAS_STATUS", "NCCL error", "HIP error")
_SUM_TYPES = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32),
    **{each: each for each in (torch.float64, torch.complex64, torch.complex128)},
}
"""The types whose elements may be no numbers: what their sums are made in."""
_FLOAT8 = frozenset(each for name, each in vars(torch).items() if name.startswith("float8_"))
"""Such too, but not every device has sums of them, nor asks them whether they are finite."""
_CHUNK_ELEMENTS = 1 << 24  # elements looked at closely: the answer takes as many bytes, on a device that may be full


def prepare(seed: int = SEED, directory: str | Path | None = None, *, deterministic: bool = False) -> None:
    """Seeds every global generator. Call it before the model is built.

    With `deterministic`, or where the job's configuration says so, it also allows deterministic algorithms only and
    fixes the number of threads, on which sums depend: to what OMP_NUM_THREADS says, else to what the job (in its
    folder, or in `directory`) trained with before, else to the cores it may use.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    told = current_attempt().launch
    if told.deterministic or deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False  # it chooses algorithms by how fast they were just now
        place = told.checkpoint_dir or (Path(directory) if directory is not None else None)
        before = conditions.recorded_conditions(place) if place is not None else None
        said = conditions.threads_of_environment("OMP_NUM_THREADS")
        torch.set_num_threads(said or conditions.recorded_threads(before) or conditions.cores())


def _versions() -> dict[str, str]:
    """Of all that computes."""
    found = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def _topology() -> dict[str, str | int | bool]:
    """The hardware as PyTorch uses it, and the switches that choose other kernels."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        conditions.THREADS: torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available() and bool(getattr(torch.backends.mkldnn, "enabled", True)),
        "tf32": _tf32(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _tf32() -> bool:
    """Whether products of float32 may be rounded to fewer bits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return bool(matmul.allow_tf32 or (torch.cuda.is_available() and cudnn.allow_tf32))
    except RuntimeError:  # set under their newer names, which the older ones then refuse to say
        return "tf32" in (matmul.fp32_precision, cudnn.conv.fp32_precision)


class Run(FilesRun):
    """One training run around a PyTorch loop, as a context manager; see `FilesRun`."""

    def __init__(self, *, total_steps: int | None = None, directory: str | Path | None = None,
                 interval: str | None = None, generators: Mapping[str, torch.Generator] | None = None,
                 summaries: str | Path | None = None, summary_every: int = SUMMARY_EVERY,
                 **parts: Any) -> None:  # fmt: skip
        """`parts`: whatever has a `state_dict`, by name: model=, optimizer=, scheduler=, scaler=, ema=, ...

        `generators`: torch generators of your own; the global ones are kept anyway.
        """
        files = _TorchFiles(parts, dict(generators or {}))
        super().__init__(files, total_steps=total_steps, directory=directory, interval=interval,
                         summaries=summaries, summary_every=summary_every)  # fmt: skip
        self._next_position = (0, 0, 0)

    def batches(self, dataset: Any, *, batch_size: int, seed: int = 0, **options: Any) -> Iterator[Any]:
        """The batches that are left, in an order that is a function of (seed, epoch), from the exact position on: that
        of the next example, where batches have another size than before.

        `options`: those of torch.utils.data.DataLoader besides its samplers. Examples that do not fill a last batch
        are left out of that epoch. With `total_steps` it goes on over epochs; without, it ends with the epoch.
        """
        count = len(dataset)
        if count < batch_size:
            raise ValueError(
                f"cannot make batches of {batch_size} from {counted(count, 'example')}; use a smaller size"
            )
        epoch, batch = self.epoch, self.batch
        first = batch * batch_size if self.examples is None else self.examples
        while not self.reached:
            sampler = ResumableBatchSampler(count, batch_size, seed, epoch, first)
            own = torch.Generator().manual_seed(sampler.seed)  # the global one would be drawn from again after a resume
            for examples in torch.utils.data.DataLoader(dataset, batch_sampler=sampler, generator=own, **options):
                batch, first = batch + 1, first + batch_size
                self._next_position = (epoch, batch, first) if count - first >= batch_size else (epoch + 1, 0, 0)
                yield examples
                if self.reached:
                    return
            epoch, batch, first = epoch + 1, 0, 0
            if self.total_steps is None:
                self.epoch, self.batch, self.examples = epoch, batch, first  # also where no batch was left
                return

    def step_done(self, **metrics: Any) -> None:
        """One optimizer step is complete: counts it, reports it, and saves if it is time. `metrics`: numbers."""
        epoch, batch, consumed = self._next_position
        figures = {name: float(value) for name, value in metrics.items()}
        super().step_done(epoch=epoch, batch=batch, examples=consumed, **figures)


class _TorchFiles:
    """All state in one file of torch.save."""

    def __init__(self, parts: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> None:
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError(f"cannot keep {name}: a {type(part).__name__} has no state_dict")
        self._parts = parts
        self._generators = generators
        self._can_copy = True
        self._is_loadable_checked = False  # a file, for what PyTorch would not load
        self._checks_finite = current_attempt().launch.on_nan != "off"
        self._on_purpose: frozenset[str] = frozenset()
        """Not finite before there was a step, as a mask may be."""
        if self._checks_finite:
            self._on_purpose = frozenset(self._not_finite(self._state_of_parts()))

    @property
    def versions(self) -> Mapping[str, str]:
        return _versions()

    @property
    def topology(self) -> Mapping[str, str | int | bool]:
        return _topology()

    def write(self, folder: Path) -> None:
        with _as_memory_error():
            state = self._state()
        self._write(state, folder)

    def copied(self) -> Callable[[Path], None] | None:
        """See `Copying`; None where it holds tensors that can't be copied, such as those without memory."""
        if not self._can_copy:
            return None
        try:
            with _as_memory_error():
                state = _copy_to_host(self._state())
        except RuntimeError as error:
            if _is_resource_failure(error):  # the device failed, for good
                raise
            self._can_copy = False
            current_attempt().reporter.show_message(
                f"training stands still while checkpoints are written: {describe_error(error)}"
            )
            return None
        return lambda folder: self._write(state, folder)

    def _write(self, state: Mapping[str, Any], folder: Path) -> None:
        with _as_memory_error():
            self._check_finite(state["parts"])
            _save(state, folder)
        if not self._is_loadable_checked:
            self._is_loadable_checked = True
            if odd := loading.unloadable_classes(folder / STATE):
                current_attempt().reporter.show_message(
                    f"the checkpoints could not be restored: they hold {', '.join(odd)}; give what the parts' "
                    f"state_dict holds as tensors, numbers, texts, lists and dicts"
                )

    def _check_finite(self, parts: Mapping[str, Any]) -> None:
        bad = [each for each in self._not_finite(parts) if each not in self._on_purpose] if self._checks_finite else []
        if bad:
            more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
            raise NotFinite(f"{', '.join(bad[:MAX_NAMED])}{more} not finite")

    def _state_of_parts(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def _state(self) -> dict[str, Any]:
        return {
            "parts": self._state_of_parts(),
            "generators": {name: each.get_state() for name, each in self._generators.items()},
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def _not_finite(self, parts: Mapping[str, Any]) -> Iterator[str]:
        """The names of tensors with a NaN or an infinity."""
        for name, state in parts.items():
            yield from (f"{name}.{path}" for path, tensor in _tensors(state, "") if not _is_finite(tensor))

    def read(self, folder: Path) -> None:
        try:
            state = loading.load_state(folder / STATE)
        except (UnpicklingError, AttributeError) as error:
            raise Unfit(describe_error(error)) from error
        except RuntimeError as error:  # its bytes were just proven, so reading them failed, or memory did
            _raise_memory_error(error)
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
            _set_global_generators(state["cpu"], state["cuda"])
        except (RuntimeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, RuntimeError) and _is_resource_failure(error):
                _raise_memory_error(error)
                raise
            raise Unfit(describe_error(error)) from error

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint, and this program is one of PyTorch")


def _set_global_generators(host: torch.Tensor, devices: Sequence[torch.Tensor]) -> None:
    """Those of the GPUs that are here, in their order."""
    torch.set_rng_state(host)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and devices:
        torch.cuda.set_rng_state_all(devices[:count])
    if len(devices) > count:
        current_attempt().reporter.show_message(
            f"the checkpoint has the random state of {counted(len(devices), 'GPU')}, this host has {count}: that of "
            f"the others is not used"
        )


class _SaveTarget:
    """What torch.save writes into. It keeps an error for later: thrown through PyTorch's writer it becomes one that
    doesn't say whether the disk is full."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        if self.error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """The file's end does it."""


def _save(state: Mapping[str, Any], folder: Path) -> None:
    """All of it into one file. Raises OSError."""
    with (folder / STATE).open("wb") as file:
        sink = _SaveTarget(file)
        torch.save(dict(state), sink)
        if sink.error is not None:
            raise sink.error


def _copy_to_host(value: Any, known: dict[tuple[str, int, int], Any] | None = None) -> Any:
    """A copy in host memory of tensors, inside whatever holds them. Tensors that share memory go on doing so, as
    torch.save writes that once."""
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        return _copy_tensor_to_host(value.detach(), known)
    if type(value) in (dict, OrderedDict):
        copied = type(value)((key, _copy_to_host(each, known)) for key, each in value.items())
        if isinstance(value, OrderedDict):
            copied.__dict__.update(copy.deepcopy(value.__dict__))  # a module's: the versions of its parts
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copy_to_host(each, known) for each in value)
    return copy.deepcopy(value)


def _copy_tensor_to_host(tensor: torch.Tensor, known: dict[tuple[str, int, int], Any]) -> torch.Tensor:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        return tensor.to("cpu", copy=True)
    memory = tensor.untyped_storage()
    key = str(tensor.device), memory.data_ptr(), memory.nbytes()  # one array's memory may be in several, cut otherwise
    if key not in known:
        known[key] = memory.clone() if tensor.device.type == "cpu" else memory.cpu()
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(known[key], *place)


def _lacks_memory(error: RuntimeError) -> bool:
    """PyTorch has a class for it on a device, none on the host; a module's `load_state_dict` makes a plain RuntimeError
    of both."""
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in _LACKS_MEMORY)


def _is_resource_failure(error: RuntimeError) -> bool:
    """Whether it was memory or the device that failed, and not what a checkpoint holds."""
    return _lacks_memory(error) or any(each in str(error) for each in _DEVICE)


@contextlib.contextmanager
def _as_memory_error() -> Iterator[None]:
    """Raises MemoryError for every RuntimeError that says so: a save can't be made now, and training goes on."""
    try:
        yield
    except RuntimeError as error:
        if _lacks_memory(error):
            raise MemoryError(describe_error(error)) from error
        raise


def _raise_memory_error(error: RuntimeError) -> None:
    """Raises MemoryError if that is what it says without having the class for it, so that it is booked as that."""
    if _lacks_memory(error) and not isinstance(error, torch.OutOfMemoryError):
        raise MemoryError(describe_error(error)) from error


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
    is_small, wide = tensor.dtype in _FLOAT8, _SUM_TYPES.get(tensor.dtype)
    if not (is_small or wide) or tensor.layout is not torch.strided or tensor.is_meta:
        return True
    with torch.no_grad():
        if wide is not None and bool(torch.isfinite(tensor.sum(dtype=wide))):
            return True
        parts = tensor.reshape(-1).split(_CHUNK_ELEMENTS)
        return all(bool(torch.isfinite(each.float() if is_small else each).all()) for each in parts)
