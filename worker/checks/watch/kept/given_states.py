"""What objects give as their state: what `state_dict` reads and `load_state_dict` sets, also of other objects."""

import functools
import types
from collections.abc import Mapping
from typing import Any, cast

from worker.checks.reachability import closure_of, globals_of, held_attributes, is_installed_file
from worker.checks.watch import digests
from worker.checks.watch.code.instructions import attributes_of_others
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.script_objects import names_in_code
from worker.log_file import LogFile


def keep_state_of(kept: Kept, item: Any) -> None:
    """Takes as kept what an object with `state_dict` gives: attributes of that name, and values of that name in it."""
    if isinstance(item, LogFile):
        kept.identities.add(id(item))
    if not (hasattr(type(item), "state_dict") and hasattr(type(item), "load_state_dict")):
        return
    names = _given_and_taken(cast("Any", type(item)), "state_dict", "load_state_dict")
    kept.attributes |= {(id(item), name) for name in names}
    if names:
        gives: types.FunctionType = type(item).state_dict
        for name, value in (*globals_of(gives), *closure_of(gives)):
            if name in names and isinstance(value, digests.PLAIN):
                kept.names.add(name)
            elif name in names and isinstance(value, digests.CONTAINERS):
                kept.identities.add(id(value))
    _keep_of_others(kept, item)
    state = item.state_dict()
    if isinstance(state, Mapping):
        kept.attributes |= {(id(item), str(name)) for name in state} | {(id(item), f"_{name}") for name in state}
    kept.keep_contents(item, state)


def _keep_of_others(kept: Kept, item: Any) -> None:
    """Takes as kept the attributes of the objects inside an object that its `state_dict` reads and its
    `load_state_dict` sets, as those of an environment that has no state of its own."""
    names = _given_and_taken_of_others(cast("Any", type(item)))
    waiting, seen = [item], {id(item)}
    while names and waiting and len(seen) < digests.ENTRIES:
        part = waiting.pop()
        inside = [*held_attributes(part).values()]
        if isinstance(part, digests.CONTAINERS):
            inside += [entry for _, entry in digests.entries_of(part)]
        elif part is not item:  # not what has objects in it: of them only what is read and set itself
            held = held_attributes(part)
            kept.attributes |= {(id(part), name) for name in names & held.keys() if _is_content(held[name])}
        for value in inside:
            if id(value) not in seen and not isinstance(value, (*digests.PLAIN, types.ModuleType, type)):
                seen.add(id(value))
                waiting.append(value)


def _is_content(value: Any) -> bool:
    """Whether it is a plain value or an array, or a container of nothing else."""
    if isinstance(value, digests.CONTAINERS):
        return all(_is_content(entry) for _, entry in digests.entries_of(value))
    return isinstance(value, digests.PLAIN) or digests.is_array(value)


@functools.lru_cache(maxsize=1024)
def _given_and_taken_of_others(kind: Any) -> frozenset[str]:
    """As `_given_and_taken`, of other objects than the one that has the methods."""
    if not _given_and_taken(kind, "state_dict", "load_state_dict"):
        return frozenset()
    return attributes_of_others(kind.state_dict.__code__) & attributes_of_others(kind.load_state_dict.__code__)


def keep_extra_state(kept: Kept, module: Any) -> None:
    """Takes as kept the attributes of which a module of PyTorch makes the extra state that its `state_dict` has."""
    kept.attributes |= {
        (id(module), name) for name in _given_and_taken(cast("Any", type(module)), "get_extra_state", "set_extra_state")
    }


@functools.lru_cache(maxsize=1024)
def _given_and_taken(kind: Any, give: str, take: str) -> frozenset[str]:
    """The attributes that a method of the script's reads, and that its counterpart sets: under whatever name, they are
    in the state."""
    functions = [getattr(kind, name, None) for name in (give, take)]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    if len(codes) < len(functions) or any(is_installed_file(code.co_filename) for code in codes):
        return frozenset()
    given, taken = map(names_in_code, codes)
    return frozenset(given & taken)
