"""Which programs depend on which others (`depends_on`, `depends_on_end`), and when those are ready."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from supervisor.core.program.facts import UP, State

Graph = Mapping[str, frozenset[str]]
"""By program: the programs that it depends on."""

_READY = UP | {State.SUCCEEDED}
_ENDED = frozenset({State.SUCCEEDED, State.EXITED})
_OVER = frozenset({State.STOPPED, State.EXITED, State.FAILED})


def resolve_name(name: str, groups: Mapping[str, str]) -> frozenset[str]:
    """The programs that a name stands for: one of that name, or all of a group. `groups`: by program, its group."""
    if name in groups:
        return frozenset({name})
    group = name.removesuffix("*").removesuffix(":")
    return frozenset(program for program, its_group in groups.items() if its_group == group)


def find_cycle(graph: Graph) -> tuple[str, ...] | None:
    """Programs that depend on each other in a cycle, the first one repeated at the end; None if there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(reversed(error.args[1]))  # graphlib lists predecessors first
    return None


def dependents(graph: Graph) -> dict[str, frozenset[str]]:
    """By program: those that depend on it."""
    dependent_names: dict[str, set[str]] = {name: set() for name in graph}
    for name, needed in graph.items():
        for needed_name in needed:
            dependent_names.setdefault(needed_name, set()).add(name)
    return {name: frozenset(names) for name, names in dependent_names.items()}


def all_needed(graph: Graph, name: str) -> frozenset[str]:
    """Everything that a program depends on, directly or not."""
    needed: set[str] = set()
    ahead = list(graph.get(name, ()))
    while ahead:
        program = ahead.pop()
        if program not in needed:
            needed.add(program)
            ahead += graph.get(program, ())
    return frozenset(needed - {name})


def is_ready(state: State, was_done: bool) -> bool:
    """Whether dependents may start: a plain program outlived startsecs, a job trains, or either has succeeded.

    `was_done`: it had succeeded before this daemon started.
    """
    return state in _READY or (state is State.STOPPED and was_done)


def has_ended(state: State, was_done: bool) -> bool:
    """Whether those that wait for its end may start: a plain program or a job has ended by itself, well or not.

    `was_done`: it had succeeded before this daemon started.
    """
    return state in _ENDED or (state is State.STOPPED and was_done)


def is_hopeless(state: State, will_start: bool) -> bool:
    """Whether only a person can make it ready, which it is not. `will_start`: it is wanted, and not given up."""
    return state in _OVER and not (will_start and state is State.STOPPED)


def describe_unready(unready: Iterable[tuple[str, State | None]]) -> str:
    """What is waited for, each with its state; None if it is not in use."""
    said = (f"{name} ({'not in use' if state is None else state})" for name, state in sorted(unready))
    return f"waits for {', '.join(said)}"
