"""Copies, puts back and compares what PyTorch parts hold: for replays, and for the head of an epoch."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from worker.process.reporting import describe_error
from worker.progress.loop_state import SMALL_BYTES
from worker.replay.replayed_run import LoopAccess, ReplayedRun, Saves
from worker.torch.saved_state import copy_to_host, memory_errors

State = Mapping[str, Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype)


class ReplayedTorch(ReplayedRun[State]):
    """A run of one process."""

    def __init__(
        self, loop: LoopAccess, saves: Saves, state: Callable[[], State], parts: Mapping[str, Any],
        write_generators: Callable[[State], None],
    ) -> None:  # fmt: skip
        """`state`: the present state, whose tensors are those of `parts`. `write_generators`: puts torch's back."""
        super().__init__(loop, saves)
        self._state = state
        self._parts = parts
        self._write_generators = write_generators

    @property
    def state_bytes(self) -> int:
        return sum(
            leaf.nelement() * leaf.element_size() for _, leaf in leaves(self._state()) if isinstance(leaf, torch.Tensor)
        )

    def why_no_copy(self) -> str | None:
        try:
            return self._why_no_copy()
        except TypeError as error:  # an array of a type that PyTorch does not have
            return describe_error(error)

    def _why_no_copy(self) -> str | None:
        if not torch.are_deterministic_algorithms_enabled():
            return "training is not deterministic; set deterministic = true, and call worker.torch.prepare() first"
        for name, leaf in leaves(self._state()):
            if isinstance(leaf, torch.Tensor):
                if leaf.layout is not torch.strided or leaf.is_meta or leaf.is_quantized:
                    return f"{name} is no dense tensor"
            elif not isinstance(leaf, _PLAIN):
                return f"{name} is a {type(leaf).__name__}, which can't be compared"
        return None

    def read_tensors(self) -> State:
        with memory_errors():
            copied: State = copy_to_host(self._state())
        return copied

    def write_tensors(self, tensors: State) -> None:
        """Fills the tensors of the parts in place, as other objects may hold them; `load_state_dict` does the rest."""
        present = self._state()
        for name, part in self._parts.items():
            before = tensors["parts"][name]
            if not _fill(present["parts"][name], before):
                _load(part, before)
        self._write_generators(tensors)

    def differing_tensors(self, tensors: State) -> Iterator[str]:
        before = dict(leaves(tensors))
        for name, leaf in leaves(self._state()):
            if name not in before or not _are_same(leaf, before.pop(name)):
                yield name
        yield from before

    def is_same_structure(self, one: State, other: State) -> bool:
        first, second = dict(leaves(one)), dict(leaves(other))
        return first.keys() == second.keys() and all(_kind(leaf) == _kind(second[name]) for name, leaf in first.items())


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the tensors and plain values in a state with their names, such as `parts.model.0.weight`."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from leaves(value, f"{path}.{number}".lstrip("."))
    elif isinstance(state, np.ndarray):
        yield path, torch.from_numpy(state)
    else:
        yield path, state


def _kind(leaf: Any) -> Any:
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else None


def _are_same(one: Any, other: Any) -> bool:
    """Whether two leaves hold the same bits, NaN included."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and (one == other or repr(one) == repr(other))
    if _kind(one) != _kind(other):
        return False
    first, second = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return bool(torch.equal(first, second))


def _fill(present: Any, before: Any) -> bool:
    """Copies the tensors of a saved state into those of the present one; whether nothing else differs."""
    now, saved = dict(leaves(present)), dict(leaves(before))
    if now.keys() != saved.keys():
        return False
    is_all = True
    with torch.no_grad():
        for name, leaf in now.items():
            if isinstance(leaf, torch.Tensor) and _kind(leaf) == _kind(saved[name]):
                leaf.copy_(saved[name])
            elif not _are_same(leaf, saved[name]):
                is_all = False
    return is_all


def _load(part: Any, before: Mapping[str, Any]) -> None:
    """Loads what is no tensor. The groups of an optimizer stay the same objects: scripts and schedulers hold them."""
    present = part.state_dict() if isinstance(part, torch.optim.Optimizer) else None
    if present is None or not _set_plain(present["state"], before["state"]):
        part.load_state_dict(copy.deepcopy(before))
        return
    for group, saved in zip(part.param_groups, before["param_groups"], strict=True):
        group.update({key: copy.deepcopy(value) for key, value in saved.items() if key != "params"})


def _set_plain(present: Any, before: Mapping[Any, Any]) -> bool:
    """Sets the plain values that an optimizer has for each parameter; whether that is all there is beside tensors."""
    for key, saved in before.items():
        if not isinstance(saved, Mapping) or any(isinstance(value, Mapping | list) for value in saved.values()):
            return False
        present[key].update({name: value for name, value in saved.items() if not isinstance(value, torch.Tensor)})
    return True


def batch_bytes(batch: Any) -> int:
    """The size of the tensors in a batch."""
    return sum(leaf.nelement() * leaf.element_size() for _, leaf in leaves(batch) if isinstance(leaf, torch.Tensor))


def copy_small_parts(parts: Mapping[str, Any]) -> Callable[[], None]:
    """Copies the settings of optimizers, and other parts that are small. Returns what puts them back."""
    optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
    groups = [copy.deepcopy([_settings(group) for group in optimizer.param_groups]) for optimizer in optimizers]
    others = [(part, part.state_dict()) for part in parts.values() if not isinstance(part, torch.optim.Optimizer)]
    copies = [(part, copy.deepcopy(state)) for part, state in others if _bytes_of(state) <= SMALL_BYTES]

    def put_back() -> None:
        for optimizer, before in zip(optimizers, groups, strict=True):
            for group, settings in zip(optimizer.param_groups, before, strict=False):
                group.update(settings)
        for part, state in copies:
            part.load_state_dict(state)

    return put_back


def copy_generators(own: Mapping[str, torch.Generator]) -> Callable[[], None]:
    """Copies the state of PyTorch's generators. Returns what puts it back."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    host, named = torch.get_rng_state(), {name: generator.get_state() for name, generator in own.items()}

    def put_back() -> None:
        torch.set_rng_state(host)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        for name, state in named.items():
            own[name].set_state(state)

    return put_back


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _bytes_of(state: Any) -> int:
    """The size of the tensors in a state, which may hold anything else."""
    if isinstance(state, torch.Tensor):
        return int(state.numel() * state.element_size())
    if isinstance(state, Mapping):
        return sum(map(_bytes_of, state.values()))
    return sum(map(_bytes_of, state)) if isinstance(state, list | tuple) else 0
