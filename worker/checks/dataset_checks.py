"""Finds what a dataset draws that could not be drawn again after a restart."""

import dis
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks import missing_variables, reachability
from worker.checks.findings import Finding
from worker.internals.dataset_internals import buffer_size_of, functions_in, original_dataset, seeds_of
from worker.state.dataset_parts import parts_of_dataset, random_parts
from worker.state.dataset_passes import seeds_taken_since

_GLOBAL_GENERATORS = {id(random.getstate.__self__): "random", id(np.random.mtrand._rand): "numpy.random"}  # type: ignore[attr-defined]
_NO_SEED = (
    "set deterministic = true and call worker.strategy() before the dataset is made, or call tf.random.set_seed before "
    "it, or give it seed="
)
_DRAWN_AHEAD = (
    "a dataset is read ahead of training, so no state of a generator belongs to a step: draw from "
    "numpy.random.default_rng(seed) made inside the function, or with tf.random.stateless_* from the example's index"
)
_SHAPE = "apply the shuffle after repeat, concatenate and cache, or use one pass (repeat) and total_steps"
_MADE_ANEW = (
    "give run.batches the function that makes it: run.batches(lambda epoch: make_dataset()); or make the dataset "
    "before the loop"
)
_CAPTURED = "shuffle the datasets after they are put together, not in the function"


def find_in_dataset(data: Any, several_passes: bool = True) -> list[Finding]:
    """What of a dataset would not be the same after a restart. `several_passes`: whether it is read more than once."""
    dataset = original_dataset(data)
    if not isinstance(dataset, tf.data.Dataset):
        return []
    findings = find_unseeded(dataset)
    if several_passes:
        findings += [
            Finding(f"the order of {describe(part.node)} in later passes: a pass may end before it is read", _SHAPE)
            for part in random_parts(dataset)
            if part.total is None
        ]
    for node in parts_of_dataset(dataset):
        findings += find_in_functions(functions_in(node))
    return findings


def find_unseeded(dataset: tf.data.Dataset) -> list[Finding]:
    """The parts of a dataset that have another order in each process."""
    return [
        Finding(f"the order of {describe(node)}, which has no seed", _NO_SEED)
        for node in parts_of_dataset(dataset)
        if seeds_of(node) == (0, 0)
    ]


def find_made_in_epoch(data: Any, before_head: Any) -> list[Finding]:
    """What of a dataset has its seed from TensorFlow's sequence since `before_head`, the state of that sequence at the
    beginning of an epoch: each epoch makes the dataset anew, and a restart begins the sequence again."""
    dataset = original_dataset(data)
    if not isinstance(dataset, tf.data.Dataset):
        return []
    taken = seeds_taken_since(before_head)
    return [
        Finding(f"the order of {describe(part.node)}, which each epoch makes anew", _MADE_ANEW)
        for part in random_parts(dataset)
        if (seeds := seeds_of(part.node)) is not None and seeds[1] in taken
    ]


def find_in_functions(functions: Iterable[Any]) -> list[Finding]:
    """What the functions of a dataset, and what they call, draw from a global generator or a shuffled dataset."""
    findings = []
    for item in missing_variables.reachable_objects([("", function) for function in functions]):
        if isinstance(item, types.FunctionType) and (name := _drawn_globally(item)) is not None:
            findings.append(
                Finding(f"what {_place(item)} draws from {name}, Python's or NumPy's global generator", _DRAWN_AHEAD)
            )
        elif isinstance(item, tf.data.Dataset):
            findings += [
                Finding(f"the order of {describe(part.node)}, which a function of the dataset reads", _CAPTURED)
                for part in random_parts(item)
            ]
    return findings


def script_functions(data: Any) -> list[reachability.Root]:
    """The script's functions that make the elements of a dataset, and the objects whose methods they are, by name."""
    dataset = original_dataset(data)
    if not isinstance(dataset, tf.data.Dataset):
        return []
    functions = [("", function) for node in parts_of_dataset(dataset) for function in functions_in(node)]
    return [
        (getattr(item, "__qualname__", type(item).__name__).replace("<locals>.", ""), item)
        for item in missing_variables.reachable_objects(functions)
        if reachability.is_script_class(type(item))
        or (isinstance(item, types.FunctionType) and not reachability.is_of_library(item.__module__ or ""))
    ]


def describe(node: Any) -> str:
    """A part of a dataset, as a script makes it: `Dataset.shuffle(48)`."""
    kind = type(node).__name__.strip("_").removesuffix("Dataset").lower()
    size = buffer_size_of(node)
    return f"Dataset.{kind}({'' if size is None else size})"


def _place(function: types.FunctionType) -> str:
    return f"{function.__qualname__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"


def _drawn_globally(function: types.FunctionType) -> str | None:
    """The function of a global generator that a function calls, unless it seeds that generator itself."""
    if reachability.is_of_library(function.__module__ or ""):
        return None
    values = list(_named_values(function, function.__code__))
    bound = [value for value in values if isinstance(value, types.MethodType | types.BuiltinMethodType)]
    if any(value is np.random.seed for value in values) or any(value.__name__ == "seed" for value in bound):
        return None
    for value in bound:
        if (owner := id(getattr(value, "__self__", None))) in _GLOBAL_GENERATORS:
            return f"{_GLOBAL_GENERATORS[owner]}.{value.__name__}"
    return None


def _named_values(function: types.FunctionType, code: types.CodeType) -> Iterator[Any]:
    """What the names in a function's code mean, with attributes of modules (`np.random.rand`)."""
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    value: Any = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = function.__globals__.get(step.argval)
        elif step.opname == "LOAD_DEREF" and step.argval in free:
            value = _content(free[step.argval])
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
            value = getattr(value, step.argval, None)
        else:
            value = None
        yield value
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _named_values(function, const)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
