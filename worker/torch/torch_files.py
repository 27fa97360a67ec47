"""The state of a PyTorch run, of its parts and of torch's generators, as one file of torch.save."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from supervisor.protocol.plurals import counted
from worker.devices import conditions
from worker.process.reporting import describe_error
from worker.process.startup import current_attempt
from worker.saving.commit import NotFinite
from worker.saving.directory import UNFIT_REMEDY, Unfit
from worker.state.value_restorer import memory_of
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

_MOST_NAMED = 5  # tensors in a message


class TorchFiles:
    """The state of all parts and generators, in one file of torch.save."""

    def __init__(self, parts: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> None:
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                remedy = f'; give it to state=, as in Run(..., state={{"{name}": {name}}})'
                raise TypeError(
                    f"cannot save {name}: a {type(part).__name__} has no state_dict and load_state_dict"
                    f"{remedy if isinstance(part, torch.Tensor) else ''}"
                )
        self.parts = parts
        self.generators = generators
        self.data_state: Callable[[], Any] = lambda: None
        """The state of what the run reads, besides the position in it."""
        self._can_copy = True
        self._forms = {name: _form_of(part, part.state_dict()) for name, part in parts.items()}
        """As the script makes the parts."""
        self._named_unloadable: frozenset[str] = frozenset()
        self._checks_finite = False
        self._expected_not_finite: frozenset[str] = frozenset()
        """Tensors that are not finite before the first step, such as a mask."""

    def check_finite(self, checks: bool) -> None:
        """Whether to refuse a state with values that are not finite, except where it has them now."""
        self._checks_finite = checks
        if checks:
            self._expected_not_finite = frozenset(names_not_finite(self._state_of_parts()))

    def memory(self) -> frozenset[int]:
        """Where the memory of the tensors of all modules begins."""
        modules = [part for part in self.parts.values() if isinstance(part, torch.nn.Module)]
        tensors = (tensor for module in modules for tensor in module.state_dict(keep_vars=True).values())
        return frozenset(memory_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)) - {0}

    @property
    def versions(self) -> Mapping[str, str]:
        """The libraries that compute."""
        versions = {"torch": str(torch.__version__)}
        if torch.cuda.is_available():
            versions["cuda"] = str(torch.version.cuda or torch.version.hip)
            versions["cudnn"] = str(torch.backends.cudnn.version())
        return versions

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
                bad = [name for name in names_not_finite(state["parts"]) if name not in self._expected_not_finite]
                if bad:
                    raise NotFinite.naming(bad)
            save_state(state, folder)
        self._name_misfits(state["parts"])
        classes = unloadable_classes(folder / STATE)  # at each save: a replay memory begins empty
        if not self._named_unloadable.issuperset(classes):
            self._named_unloadable = self._named_unloadable.union(classes)
            current_attempt().reporter.show_message(
                f"these checkpoints cannot be restored: they hold objects of {', '.join(classes)}; make the parts' "
                f"state_dict return tensors, numbers, texts, lists and dicts only"
            )

    def _name_misfits(self, states: Mapping[str, Any]) -> None:
        """Says once of each part that has grown: a restart makes it as the script does first, and would not fit."""
        for name, part in self.parts.items():
            form = _form_of(part, states[name])
            if form != self._forms[name]:
                before, self._forms[name] = self._forms[name], form
                more = sorted(set(form) - set(before)) if isinstance(part, torch.nn.Module) else []
                has = ", ".join(more[:_MOST_NAMED]) if more else form
                was = "without" if more else f"with {before}"
                current_attempt().reporter.show_message(
                    f"these checkpoints cannot be restored: {name} has {has}, and a restart makes it {was}; make it "
                    f"whole before the run, with requires_grad = False or a rate of 0 at first, and choose what is "
                    f"trained by the epoch's number"
                )

    def _state_of_parts(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def state(self) -> dict[str, Any]:
        """The present state; its tensors are those of the parts."""
        data = self.data_state()
        return {
            **({} if data is None else {"data": data}),
            "parts": self._state_of_parts(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
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
                _load(part, state["parts"][name])
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
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        _set_global_generators(state["cpu"], state["cuda"])

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint, but this program uses PyTorch")


def _load(part: Any, state: Mapping[str, Any]) -> None:
    """Gives a part its state. The groups of an optimizer stay the same objects: a script may hold them, and another
    optimizer, such as the one inside of SAM, may have the same."""
    groups = getattr(part, "__dict__", {}).get("param_groups")
    part.load_state_dict(state)
    if not isinstance(part, torch.optim.Optimizer) or groups is None or part.param_groups is groups:
        return
    loaded = part.param_groups
    for group, values in zip(groups, list(loaded), strict=True):
        if group is not values:
            group.clear()
            group.update(values)
    for optimizer in (part, *vars(part).values()):
        if isinstance(optimizer, torch.optim.Optimizer) and optimizer.param_groups is loaded:
            optimizer.param_groups = groups


TorchFiles.__name__ = "_TorchFiles"  # the `kind` in each state.json


def _form_of(part: Any, state: Any) -> Any:
    """What of a part's state has to be the same for a restore: the names of a module's tensors, or how many parameters
    each group of an optimizer has; None of any other."""
    if isinstance(part, torch.nn.Module):
        return tuple(state)
    if isinstance(part, torch.optim.Optimizer):
        return f"groups of {', '.join(str(len(group['params'])) for group in state['param_groups'])} parameters"
    return None


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
