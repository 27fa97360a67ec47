"""Plain values that a `tf.function` has read as Python's when it was traced: `beta = 0.1 * epoch` in the step.

TensorFlow keeps them as constants, so what changes later changes nothing, until a restart traces the function again,
with what the value is then. So values that differ from look to look while their function was not traced again are
named, also those that checkpoints hold.
"""

import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.checks.reachability import closure_of
from worker.checks.watch.code.python_calls import names_traced
from worker.checks.watch.digests import PLAIN, digest_plain
from worker.checks.watch.kept.kept_values import Kept, Reached
from worker.checks.watch.reached_values import Search
from worker.checks.watch.script_objects import is_traced


@dataclass(frozen=True, slots=True)
class Frozen:
    """A value that a function has as a constant. `path`: its name; `function`: that of the function."""

    path: str
    function: str


class TracedConstants:
    """Compares from look to look."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """`state`: the values of `run.state`."""
        self._state = state
        self._before: dict[str, int] = {}  # digests by name
        self._times_traced: dict[str, tuple[int, int]] = {}  # by name, with the id of the function

    def changed(self, search: Search, kept: Kept, until: float) -> Iterator[Frozen]:
        """What differs from the last look. `search`, with `kept`: what the loop reaches now; `until`: as of another."""
        state = {
            f"run.state[{name!r}]": Reached(name, "state", digest_plain(value), 0, binding=name)
            for name, value in self._state().items()
            if isinstance(value, PLAIN)
        }
        now = {
            path: reached
            for path, reached in (search.values | search.kept | state).items()
            if reached.kind in ("value", "setting", "state")
        }
        before, self._before = self._before, {path: reached.digest for path, reached in now.items()}
        other = {path: reached for path, reached in now.items() if before.get(path, reached.digest) != reached.digest}
        for function, traced in search.traced.items():
            now_traced = id(traced), _times_traced(traced)
            known, self._times_traced[function] = self._times_traced.get(function), now_traced
            if other and now_traced[1] and known == now_traced:  # with 0, it runs eagerly, or inside another one
                yield from (Frozen(path, function) for path in _read_by(function, traced, other, search, kept, until))


def _read_by(
    path: str, function: Any, values: Mapping[str, Reached], search: Search, kept: Kept, until: float
) -> list[str]:
    """Which of some values a function reads."""
    roots = _roots_of(path, function)
    names = _names_read(getattr(roots[0][1], "__code__", None), search.codes)
    read = {path: value for path, value in values.items() if value.kind == "setting" or value.binding in names}
    of_state = [path for path, value in read.items() if value.kind == "state" and "state" in names]
    others = {path: value for path, value in read.items() if value.kind != "state"}
    if not others:
        return of_state
    own = Search(Kept(kept.identities), until).run(roots)  # another object may have an attribute of that name
    reached = {(value.owner, value.binding) for value in own.values.values()}
    return of_state + [path for path, value in others.items() if (value.owner, value.binding) in reached]


_CALLED = frozenset({"__call__", "call", "forward"})
"""Methods that are called without their name."""


def _roots_of(path: str, function: Any) -> list[tuple[str, Any]]:
    """What a function may read: for the method of an object, its object too, which TensorFlow holds weakly."""
    inner = function.python_function
    held = [value for _, value in closure_of(inner)] if isinstance(inner, types.FunctionType) else []
    of_class = [value.python_function for value in held if is_traced(value)]
    objects = [value() for value in held if isinstance(value, weakref.ref)]
    target = next((value for value in objects if not isinstance(value, types.FunctionType | type(None))), None)
    if target is None or not of_class:
        return [(path, inner)]
    return [(path, of_class[0]), (path.rpartition(".")[0], target)]


def _names_read(own: types.CodeType | None, codes: Iterable[types.CodeType]) -> frozenset[str]:
    """The names in a function's own code and in that of the functions that it calls, as far as their names show it."""
    left, names = list(codes), _CALLED.union(names_traced(own) if own is not None else ())
    while called := [code for code in left if code.co_name in names]:
        left = [code for code in left if code not in called]
        names = names.union(*map(names_traced, called))
    return names - _CALLED


def _times_traced(function: Any) -> int:
    count = getattr(function, "experimental_get_tracing_count", None)
    return int(count()) if isinstance(count, types.MethodType) else 0
