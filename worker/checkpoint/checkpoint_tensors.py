"""Which tensors a `tf.train.Checkpoint` writes, under which keys, in which order.

TensorFlow's own saver says so, and gives the object graph that a restore needs. It walks over all objects twice and
builds that graph anew for each save, while training waits. So what it said is kept as long as the tracked objects and
their names are the same, where nothing but variables contributes: those are read at each save.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from supervisor.protocol.tensorbundle.verify import OBJECT_GRAPH
from worker.internals.tensorflow_internals import (
    BaseResourceVariable,
    gather_serialized_tensors,
    is_mirrored,
    may_save_itself,
    save_method_of,
)

Nodes = list[tuple[Any, Any, list[tuple[str, int]]]]
"""The tracked objects in the order of their discovery; of each its variable if it holds or is one, and the names and
numbers of its children."""


class SnapshotImpossible(Exception):
    """The state can only be written while training waits; the text says why."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What TensorFlow's saver said of one tensor. `tensor`: itself, or a specification that reads it. `variable`: the
    one that it is the value of, if that lies in host memory. `is_mirrored`: whether a strategy keeps it the same on all
    replicas."""

    key: str
    part: str
    tensor: Any
    variable: Any
    is_mirrored: bool


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What it said of some objects."""

    nodes: Nodes
    entries: list[_Entry]


class CheckpointTensors:
    """The tensors of one `tf.train.Checkpoint`. Not for two threads at once."""

    def __init__(self, tracked: tf.train.Checkpoint) -> None:
        self.tracked = tracked
        self._gathered: _Gathered | None = None
        self.mirrored: frozenset[str] = frozenset()
        """Keys of the tensors of the last `read` that are the same on all replicas, whatever trains them."""

    def read(self) -> Iterator[tuple[str, str, tf.Tensor]]:
        """Key, slice and present value of each. Call it between steps. Raises SnapshotImpossible."""
        nodes = _walk(self.tracked)
        if self._gathered is None or not _are_same(self._gathered.nodes, nodes):
            self._gathered = _Gathered(nodes, _gather(self.tracked))
        entries = self._gathered.entries
        self.mirrored = frozenset(_name_of(entry) for entry in entries if entry.is_mirrored)
        if not _are_variables(nodes):
            self._gathered = None
        for entry in entries:
            name, place, tensor = _read(entry)
            if tensor is not None:  # None: part of the object graph, without a value
                yield name, place, tensor

    def variable_bytes(self) -> int:
        """About what a copy of them takes: the size of all variables, none of which is read."""
        variables = {}
        for node, _, _ in _walk(self.tracked):
            variable = node.value if isinstance(node, tf.keras.Variable) else node
            if isinstance(variable, tf.Variable):
                variables[id(variable)] = variable
        return sum((variable.shape.num_elements() or 0) * variable.dtype.size for variable in variables.values())


@dataclass(frozen=True, slots=True)
class PlainState:
    """The state of a program that has it in variables in host memory alone: these, by their key in a checkpoint, and
    the objects that it tracks with their names, as TensorFlow describes them there."""

    variables: Mapping[str, Any]
    graph: bytes


def plain_state(tracked: tf.train.Checkpoint) -> PlainState | None:
    """None if something else has state, too. Raises SnapshotImpossible."""
    if not _are_variables(_walk(tracked)):
        return None
    variables, graph = {}, None
    for entry in _gather(tracked):
        if entry.key == OBJECT_GRAPH:
            graph = bytes(entry.tensor.numpy())
        elif entry.variable is None or getattr(entry.tensor, "slice_spec", None) or entry.part:
            return None
        else:
            variables[_name_of(entry)] = entry.variable
    return None if graph is None else PlainState(variables, graph)


def holds_more_than_variables(tracked: tf.train.Checkpoint) -> str | None:
    """The class of a tracked object that saves itself in a way of its own; None if all state is in variables."""
    for node, _, _ in _walk(tracked):
        if not isinstance(node, tf.Variable | tf.keras.Variable) and _has_state(node):
            return type(node).__name__
    return None


def _walk(tracked: tf.train.Checkpoint) -> Nodes:
    view, numbers = tf.train.TrackableView(tracked), {id(tracked): 0}
    waiting: list[Any] = [tracked]
    nodes: Nodes = []
    for parent in waiting:
        children = []
        for name, child in view.children(parent).items():
            if id(child) not in numbers:
                numbers[id(child)] = len(waiting)
                waiting.append(child)
            children.append((name, numbers[id(child)]))
        nodes.append((parent, _variable(parent), children))
    return nodes


def _are_same(one: Nodes, other: Nodes) -> bool:
    return len(one) == len(other) and all(
        before[0] is now[0] and before[1] is now[1] and before[2] == now[2]
        for before, now in zip(one, other, strict=True)
    )


def _are_variables(nodes: Nodes) -> bool:
    """Whether all objects that contribute tensors are plain variables, whose entries read the value of the moment."""
    return all(variable is not None or not _has_state(node) for node, variable, _ in nodes)


def _variable(item: Any) -> Any:
    """The variable that a tracked object is, or holds if it is one of Keras; None if that saves in a way of its own."""
    save = save_method_of(type(item))
    if isinstance(item, tf.keras.Variable) and save is save_method_of(tf.keras.Variable):
        item = item.value
        save = save_method_of(type(item))
    return item if isinstance(item, BaseResourceVariable) and save is save_method_of(BaseResourceVariable) else None


def _has_state(item: Any) -> bool:
    """Whether an object may save something itself. Keras 2's optimizers have variables that are nobody's children."""
    return hasattr(item, "get_slot_names") or may_save_itself(item)


def _gather(tracked: tf.train.Checkpoint) -> list[_Entry]:
    try:
        gathered, registered = gather_serialized_tensors(tracked)
    except (AttributeError, TypeError) as error:
        raise SnapshotImpossible(f"TensorFlow {tf.__version__} has a saver unknown to stepkeeper: {error}") from error
    if registered:
        raise SnapshotImpossible(f"it tracks objects with a saver of their own ({', '.join(map(str, registered))})")
    return [
        _Entry(key, part, one, _host_variable(node), is_mirrored(node))
        for node, entries in gathered.items()
        for key, entry in entries.items()
        for part, one in (entry.items() if isinstance(entry, dict) else [("", entry)])
    ]


def _name_of(entry: _Entry) -> str:
    """The key in the file."""
    return (entry.tensor.name if hasattr(entry.tensor, "slice_spec") else None) or entry.key


def _host_variable(node: Any) -> Any:
    """A variable in host memory whose value is there by now."""
    variable = _variable(node)
    is_there = variable is not None and "CPU" in variable.device and variable.is_initialized()
    return variable if is_there else None


def _read(entry: _Entry) -> tuple[str, str, tf.Tensor | None]:
    """Key, slice and tensor of an entry."""
    if not hasattr(entry.tensor, "slice_spec"):
        return entry.key, entry.part, entry.tensor
    name, place = _name_of(entry), (entry.tensor.slice_spec or entry.part).strip()
    if entry.variable is not None:  # as the specification does it, which takes ten times as long
        handle = entry.variable.handle
        tf.raw_ops.DisableCopyOnRead(resource=handle)
        return name, place, tf.raw_ops.ReadVariableOp(resource=handle, dtype=entry.variable.dtype)
    with tf.device(entry.tensor.device):
        return name, place, entry.tensor.tensor
