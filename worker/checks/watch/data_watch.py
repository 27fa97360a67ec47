"""Watches what the functions of a dataset change while it is read: `self.served += 1` in a generator.

A dataset is read ahead of training, by threads of its own, so no value that they change belongs to a step, and a
restart begins with the first. Dictionaries, sets and arrays are not compared: most are caches of what was read.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from worker.checks.watch.code.bytecode import flow_of
from worker.checks.watch.kept.kept_values import Kept, Reached
from worker.checks.watch.reached_values import Search

_COMPARED = ("value", "iterator", "container", "queue")


class DataWatch:
    """Compares from look to look. `codes`: of the script's functions that make the data."""

    def __init__(self, roots: Callable[[], Sequence[tuple[str, Any]]]) -> None:
        """`roots`: these functions, and the objects whose methods they are."""
        self.codes: set[types.CodeType] = set()
        self._roots = roots
        self._before: dict[str, Reached] = {}

    def changed(self, of_loop: Search, kept: Kept, until: float) -> Iterator[Reached]:
        """What differs from the last look. What the loop reaches (`of_loop`) is judged there. `until`: as of Search."""
        roots = self._roots()
        if not roots:
            return
        search = Search(kept, until, is_of_data=True).run(roots)
        self.codes |= search.codes
        before, self._before = self._before, search.values
        known = {(reached.owner, reached.binding) for reached in of_loop.values.values() if reached.owner is not None}
        for path, now in search.values.items():
            then = before.get(path)
            if then is None or then.digest == now.digest or now.kind not in _COMPARED or path in of_loop.values:
                continue
            if (now.owner, now.binding) not in known and not kept.has(now) and not self._begins_each_pass(now.binding):
                yield now

    def _begins_each_pass(self, name: str | None) -> bool:
        """Whether a function assigns an attribute or a name of the module before anything else."""
        return name is not None and any(
            flow_of(code).assigns_first(name, is_attribute=is_attribute)
            for code in self.codes
            if code.co_name not in ("__init__", "load_state_dict") and name in code.co_names
            for is_attribute in (True, False)
            if _stores(code, name, is_attribute=is_attribute)
        )


def _stores(code: types.CodeType, name: str, *, is_attribute: bool) -> bool:
    """Whether a function assigns such an attribute, or such a name of its module."""
    operations = ("STORE_ATTR",) if is_attribute else ("STORE_GLOBAL", "STORE_NAME")
    return any(step.opname in operations and step.argval == name for step in flow_of(code).control.instructions)
