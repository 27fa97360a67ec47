"""Finds the state that a PyTorch loop uses but its checkpoints would not hold: an optimizer, a scheduler, a model."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from worker.checks.findings import Finding
from worker.checks.reachability import (
    GLOBAL_GENERATORS,
    Root,
    abbreviate,
    first_entries,
    generators_of_class,
    held_attributes,
    is_script_class,
    plain_referents,
    walk,
)
from worker.checks.watch.kept.given_states import keep_extra_state, keep_state_of
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.script_objects import names_in_code
from worker.state.plain_values import class_module
from worker.state.random_generators import GENERATORS

_NOT_FOLLOWED = (
    str, bytes, int, float, torch.Tensor, types.ModuleType, type, torch.utils.data.Dataset, torch.device, torch.dtype,
)  # fmt: skip

_OF_MODULES = frozenset(vars(torch.nn.Module()))
"""Attributes in which modules have their parts."""

_NOT_SEARCHED = (str, bytes, int, float, torch.Tensor, torch.nn.Module, types.ModuleType, type)
"""What holds no generator that a dataset would draw from."""


def find_missing(
    parts: Mapping[str, Any],
    generators: Iterable[Any],
    roots: Iterable[Root],
    exempt: Iterable[Any],
    known: Iterable[Any] = (),
) -> tuple[str, ...]:
    """Names of the objects with state that are reachable from `roots` and not among what the run saves.

    `parts` and `generators`: what it saves. `exempt`: objects that need not be saved, with what they refer to. `known`:
    objects that are not searched; what they refer to is, if the loop reaches it otherwise.
    """
    saved = {id(part) for part in (*parts.values(), *generators, *known, *GLOBAL_GENERATORS, torch.default_generator)}
    tensors = _tensors_of(parts.values())
    visited: set[int] = set()
    for _ in _stateful([("", item) for item in exempt], visited, frozenset()):
        pass
    names: dict[str, None] = {}
    for item, root in _stateful((*roots, *parts.items()), visited, saved):
        if id(item) not in saved and not _is_covered(item, tensors):
            names[f"{type(item).__name__} (reached as {root})"] = None
            tensors |= _tensors_of([item])  # its parts need no line of their own
    return abbreviate(list(names))


def _tensors_of(items: Iterable[Any]) -> set[int]:
    """The ids of the parameters and buffers of modules."""
    modules = [item for item in items if isinstance(item, torch.nn.Module)]
    return {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}


def _is_covered(item: Any, tensors: set[int]) -> bool:
    """Whether a module's state is part of saved modules: the same model, wrapped or in part; or whether it has none."""
    return isinstance(item, torch.nn.Module) and all(
        id(tensor) in tensors for tensor in (*item.parameters(), *item.buffers())
    )


def _stateful(roots: Iterable[Root], visited: set[int], saved: Iterable[int]) -> Iterator[tuple[Any, str]]:
    """Yields each object with state that is reachable from the roots once, with the name of its root.

    What is saved is not searched: a scheduler refers to its optimizer, an averaged model to its copy.
    """
    known = frozenset(saved)

    def is_searched(item: Any) -> bool:
        return item is not None and not isinstance(item, _NOT_FOLLOWED) and id(item) not in known

    def parts_of(root: str, item: Any) -> Iterable[Root]:
        if isinstance(item, torch.nn.Module):
            return ((root, held) for held in _hidden_in(item))
        if isinstance(item, torch.optim.Optimizer):
            return ((f"{root}.{name}", held) for name, held in _hidden_in_optimizer(item))
        if isinstance(item, type):
            return ((root, generator) for generator in generators_of_class(item))
        return ((root, part) for part in _referents(item)) if is_searched(item) and not _has_state(item) else ()

    for root, item in walk(roots, parts_of, visited):
        if is_searched(item) and _has_state(item):
            yield item, root


def _hidden_in(model: torch.nn.Module) -> Iterator[Any]:
    """What has a state and is no part of a model, whose `state_dict` lacks it: generators, optimizers and lists of
    modules that the script's modules hold as attributes."""
    for module in model.modules():
        for name, value in list(vars(module).items()) if is_script_class(type(module)) else ():
            if name not in _OF_MODULES:
                held = plain_referents(value) if isinstance(value, list | tuple | dict) else None
                yield from filter(_has_state, (value,) if held is None else held)


def _hidden_in_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[Root]:
    """The optimizers that one of the script's has inside, as SAM does, and of which its `state_dict` takes nothing."""
    if not is_script_class(type(optimizer)):
        return
    gives = type(optimizer).state_dict
    taken = () if gives is torch.optim.Optimizer.state_dict else names_in_code(gives.__code__)
    for name, held in vars(optimizer).items():
        is_other = isinstance(held, torch.optim.Optimizer) and held.state is not optimizer.state
        if is_other and name not in taken and any(held.state.values()):
            yield name, held


def _has_state(item: Any) -> bool:
    if isinstance(item, torch.utils.data.DataLoader):
        return False
    if _is_generator(item):
        return True
    if isinstance(item, torch.amp.GradScaler):
        return bool(item.is_enabled())
    return callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None))


def _referents(item: Any) -> Iterable[Any]:
    """The objects that an object refers to, as far as the search follows them."""
    plain = plain_referents(item)
    if plain is not None:
        return plain
    if isinstance(item, torch.utils.data.DataLoader):
        return (item.generator, getattr(item.sampler, "generator", None))
    if isinstance(item, types.SimpleNamespace) or is_script_class(type(item)):
        return [*held_attributes(item).values(), *generators_of_class(type(item))]
    return ()


def keep_parts(kept: Kept, parts: Mapping[str, Any]) -> None:
    """Adds what the parts of a run hold to what is kept: tensors by identity, the rest by its name in the state."""
    for part in parts.values():
        if isinstance(part, torch.nn.Module):
            kept.identities |= {id(tensor) for tensor in part.state_dict(keep_vars=True).values()}
            for module in part.modules():
                keep_extra_state(kept, module)
        elif isinstance(part, torch.optim.Optimizer):
            kept.identities |= {id(held) for held in (part.state, part.param_groups, *part.param_groups)}
            if not is_script_class(type(part)):  # such a one may keep more in attributes of its own
                kept.identities.add(id(part))
        elif class_module(type(part)).startswith("torch."):
            kept.identities.add(id(part))
        else:
            keep_state_of(kept, part)


def functions_in(parts: Mapping[str, Any]) -> Iterator[Root]:
    """The functions that schedulers and optimizers call, as `LambdaLR` and hooks do: what they carry is in no
    `state_dict`."""
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            for value in list(vars(part).values()):
                held = plain_referents(value) if isinstance(value, list | tuple | dict) else (value,)
                for entry in held or ():
                    if isinstance(entry, types.FunctionType):
                        yield f"{name}.{entry.__name__}", entry
                    elif isinstance(entry, torch.optim.lr_scheduler.LRScheduler):
                        yield from functions_in({name: entry})


def find_generators_of_dataset(dataset: Any, saved: Iterable[Any], *, in_processes: bool) -> list[Finding]:
    """The generators that a dataset of numbered examples holds, and objects in it: those that no checkpoint has.

    `saved`: generators that a checkpoint has. `in_processes`: whether loader processes read it, with copies of them.
    """
    known = () if in_processes else saved
    ids = {id(global_generator) for global_generator in (*known, *GLOBAL_GENERATORS, torch.default_generator)}
    return [
        Finding(
            f"the {type(generator).__name__} {place}, from which the dataset draws",
            _remedy_for_generator(place, in_processes),
        )
        for place, generator in walk([(type(dataset).__name__, dataset)], _parts_of_dataset)
        if _is_generator(generator) and id(generator) not in ids
    ]


def generators_saved_by(dataset: Any) -> list[Any]:
    """The generators that a dataset holds, of which its `state_dict` has the names of the attributes; all, if that is
    no function of the script's."""
    gives = getattr(type(dataset), "state_dict", None)
    names = names_in_code(gives.__code__) if isinstance(gives, types.FunctionType) else None
    return [
        generator
        for place, generator in walk([(type(dataset).__name__, dataset)], _parts_of_dataset)
        if _is_generator(generator) and (names is None or not names.isdisjoint(re.split(r"[.\[\]']+", place)))
    ]


def _remedy_for_generator(place: str, in_processes: bool) -> str:
    if in_processes:
        return (
            "each loader process draws from a copy, which begins anew after a restart: draw from torch's, NumPy's or "
            "Python's global generator there, which are seeded for each batch"
        )
    name, path = place.rpartition(".")[2].partition("[")[0], place[len(place.split(".")[0]) :]
    return f'give it to the run: worker.torch.Run(..., generators={{"{name}": dataset{path}}})'


def _parts_of_dataset(path: str, item: Any) -> Iterator[Root]:
    """What is searched for generators in a dataset: datasets and objects of other classes in it, by their paths."""
    if isinstance(item, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in first_entries(item.items()))
    elif isinstance(item, list | tuple):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(first_entries(item)))
    elif isinstance(item, set):
        yield from ((path, part) for part in first_entries(item))
    elif not (_is_generator(item) or isinstance(item, _NOT_SEARCHED)) and (
        isinstance(item, torch.utils.data.Dataset) or is_script_class(type(item))
    ):
        yield from ((f"{path}.{name}", part) for name, part in list(getattr(item, "__dict__", {}).items()))


def _is_generator(item: Any) -> bool:
    return isinstance(item, (*GENERATORS, torch.Generator))


def keep_attributes(kept: Kept, items: Iterable[Any]) -> None:
    """Adds objects that are saved with all their attributes to what is kept."""
    for item in items:
        attributes = getattr(item, "__dict__", {})
        kept.identities |= {id(item), *(id(value) for value in attributes.values())}
        kept.attributes |= {(id(item), name) for name in attributes}


def find_unread_loaders(roots: Iterable[Root]) -> list[Finding]:
    """DataLoaders that the loop reaches and shuffles, in a run that never reads through `run.batches`."""
    loaders = [
        name
        for name, value in roots
        if isinstance(value, torch.utils.data.DataLoader) and isinstance(value.sampler, torch.utils.data.RandomSampler)
    ]
    remedy = 'write "for batch in run.batches(loader):", which continues where training stopped'
    return [Finding(f"the position in the DataLoader {name}, which the loop reads itself", remedy) for name in loaders]
