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
from worker.checks.watch.digests import PLAIN, digest_plain
from worker.checks.watch.kept_values import Kept
from worker.checks.watch.reached_values import Search
from worker.checks.watch.script_objects import names_in_code


@dataclass(frozen=True, slots=True)
class Frozen:
    """A value that a function has as a constant. `path`: its name; `function`: that of the function."""

    path: str
    function: str


@dataclass(frozen=True, slots=True)
class _Traced:
    """What a function reads, by name, when it has been traced `count` times."""

    count: int
    digests: Mapping[str, int]


class TracedConstants:
    """Compares from look to look."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """`state`: the values of `run.state`."""
        self._state = state
        self._before: dict[str, _Traced] = {}

    def changed(self, functions: Mapping[str, Any], until: float) -> Iterator[Frozen]:
        """What differs from the last look. `functions`: those of TensorFlow that the loop reaches, by name. `until`: as
        of Search."""
        for path, function in functions.items():
            if not (count := _times_traced(function)):
                continue  # it runs eagerly, or inside another one
            now = _Traced(count, self._read_by(path, function, until))
            before = self._before.get(path)
            self._before[path] = now
            if before is not None and before.count == count:
                for name, digest in now.digests.items():
                    if before.digests.get(name, digest) != digest:
                        yield Frozen(name, path)

    def _read_by(self, path: str, function: Any, until: float) -> dict[str, int]:
        roots = _roots_of(path, function)
        search = Search(Kept(), until).run(roots)
        names = _names_read(getattr(roots[0][1], "__code__", None), search.codes)
        read = {
            name: reached.digest
            for name, reached in search.values.items()
            if reached.kind == "setting" or (reached.kind == "value" and reached.binding in names)
        }
        if "state" in names:
            entries = ((name, value) for name, value in self._state().items() if name in names)
            read |= {f"run.state[{name!r}]": digest_plain(value) for name, value in entries if isinstance(value, PLAIN)}
        return read


_CALLED = frozenset({"__call__", "call", "forward"})
"""Methods that are called without their name."""


def _roots_of(path: str, function: Any) -> list[tuple[str, Any]]:
    """What a function may read: for the method of an object, its object too, which TensorFlow holds weakly."""
    inner = function.python_function
    held = [value for _, value in closure_of(inner)] if isinstance(inner, types.FunctionType) else []
    of_class = [value.python_function for value in held if hasattr(type(value), "python_function")]
    objects = [value() for value in held if isinstance(value, weakref.ref)]
    target = next((value for value in objects if not isinstance(value, types.FunctionType | type(None))), None)
    if target is None or not of_class:
        return [(path, inner)]
    return [(path, of_class[0]), (path.rpartition(".")[0], target)]


def _names_read(own: types.CodeType | None, codes: Iterable[types.CodeType]) -> frozenset[str]:
    """The names in a function's own code and in that of the functions that it calls, as far as their names show it."""
    left, names = list(codes), _CALLED.union(names_in_code(own) if own is not None else ())
    while called := [code for code in left if code.co_name in names]:
        left = [code for code in left if code not in called]
        names = names.union(*map(names_in_code, called))
    return names - _CALLED


def _times_traced(function: Any) -> int:
    count = getattr(function, "experimental_get_tracing_count", None)
    return int(count()) if isinstance(count, types.MethodType) else 0
