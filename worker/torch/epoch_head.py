"""Copies what the head of an epoch's body may change of PyTorch's state, to undo a head that runs again."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

SMALL_BYTES = 16 << 20  # of one part; heads step schedulers and reset counters, and do not rewrite whole models


def copy_parts(parts: Mapping[str, Any]) -> Callable[[], None]:
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
    if isinstance(state, torch.Tensor):
        return int(state.numel() * state.element_size())
    if isinstance(state, Mapping):
        return sum(map(_bytes_of, state.values()))
    return sum(map(_bytes_of, state)) if isinstance(state, list | tuple) else 0
