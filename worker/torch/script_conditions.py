"""What a PyTorch script sets before training: its optimizers and schedulers with all their settings, and its seeds.

PyTorch restores all settings of an optimizer and of a scheduler from the checkpoint, only functions not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from worker.state.script_conditions import GOES_ON, Condition, Kind, Plain, is_seed_of_script, limited, plain

_MAX_DEPTH = 6


def read_conditions(parts: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> dict[str, Condition]:
    """The present conditions, by name. Before a restore, they are what the script made."""

    def every() -> Iterator[tuple[str, Condition]]:
        for name, part in parts.items():
            if isinstance(part, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
                yield f"the class of {name}", Condition(type(part).__name__)
            if isinstance(part, torch.optim.Optimizer):
                for number, group in enumerate(part.param_groups):
                    kept = {key: value for key, value in group.items() if key not in ("params", "param_names")}
                    yield from _settings(kept, f"{name}.param_groups[{number}]", is_dict=True)
            elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
                yield from _settings(part.state_dict(), name)
            elif isinstance(part, torch.amp.GradScaler) and part.is_enabled():  # else it has no factors
                for key in ("growth_factor", "backoff_factor", "growth_interval"):
                    value = plain(getattr(part, f"get_{key}")())
                    yield f"{name}.{key}", Condition(value, Kind.RESTORED, f"{name}.set_{key}({value!r})")
        yield from _seeds(generators)

    return limited(every())


def _settings(values: Any, name: str, depth: int = 0, *, is_dict: bool = False) -> Iterator[tuple[str, Condition]]:
    """Yields the plain values, each under the expression with which a script reaches it."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(values, Mapping):
        for key, value in values.items():
            path = f"{name}[{key!r}]" if is_dict or depth or not isinstance(key, str) else f"{name}.{key}"
            yield from _settings(value, path, depth + 1)
    elif isinstance(values, list | tuple):
        if isinstance(values, tuple) and all(isinstance(entry, int | float) for entry in values):
            text = str(tuple(map(plain, values)))  # betas: a tuple is set as a whole
            yield name, Condition(text, Kind.RESTORED, f"{name} = {text}")
            return
        for number, value in enumerate(values):
            yield from _settings(value, f"{name}[{number}]", depth + 1)
    elif (value := _plain(values)) is not None:
        yield name, Condition(value, Kind.RESTORED, f"{name} = {value!r}")


def _plain(value: Any) -> Plain:
    """A number, a text, or a tensor of one element; None for anything else, such as a function that is not saved."""
    if isinstance(value, torch.Tensor):
        return plain(value.item()) if value.numel() == 1 and not value.is_meta else None
    return plain(value) if isinstance(value, bool | int | float | str) else None


def _seeds(generators: Mapping[str, torch.Generator]) -> Iterator[tuple[str, Condition]]:
    seed = torch.initial_seed()
    if is_seed_of_script(seed):
        yield "the seed of torch", Condition(seed, Kind.SEED, f"torch.manual_seed({seed})", GOES_ON)
    for name, generator in generators.items():
        if is_seed_of_script(generator.initial_seed()):
            seed = generator.initial_seed()
            yield f"the seed of {name}", Condition(seed, Kind.SEED, f"{name}.manual_seed({seed})", GOES_ON)
