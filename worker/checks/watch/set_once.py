"""Values that the first pass of a loop sets, or what stands between the `with` of the run and its loops, and no later
pass changes, such as the mean of the first batch.

They do not change from one step boundary to the next, so comparing those tells nothing of them: a restart sets them in
its own first pass, from another batch, or not at all where that asks for the first epoch. Many are set so and come out
the same, a flag or a table, and nobody wants to hear of these. So a job's directory keeps what they were, and the first
steps after a restart compare: what differs is named. Texts name files, hosts and times, and differ without an effect: a
text or a function is named only if an earlier process has replaced the one that the script sets before, and this one
has not. It is written with the first step already, when nobody knows yet which of them change later, as a checkpoint of
that step may be the one that is restored.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.formats import NewerFormat, check_format, refuse_newer
from worker.checks.watch.kept.kept_values import Reached

FORMAT = 1
MOST_VALUES = 1000
MAX_BYTES = 1 << 20

Values = Mapping[str, Reached]
IsLost = Callable[[Reached, Reached | None], bool]
"""Whether a value, which was another before the pass, would not come back after a restart."""


class SetOnce:
    """Those of one process. Call `begin`, then `first` and `later` with what is seen at the steps."""

    def __init__(self, recorded: Mapping[str, int]) -> None:
        """`recorded`: by name, what they were in the processes before."""
        self._recorded = recorded
        self._before: Values = {}
        self._objects: Collection[int] = ()
        self._digests: dict[str, int] = {}
        self.begun: frozenset[str] = frozenset()
        """The names that what stands before the loops has made."""
        self._changed: set[str] = set()  # what a later pass has set to something else, or would make anew
        self._untouched: set[str] = set()  # what the first pass of this process has left as it was

    def begin(self, values: Values, objects: Collection[int] = ()) -> None:
        """What there is before the first pass, or, called again, behind its head. `objects`: ids of those that have
        attributes, or may get some."""
        self._before, self._objects = {**values, **self._before}, {*objects, *self._objects}

    def drawn(self, values: Values) -> list[Reached]:
        """The caches that the first pass has filled with random numbers."""
        caches = [now for now in values.values() if now.kind == "cache"]
        return [now for now in caches if (was := self._before.get(now.path)) is not None and was.digest != now.digest]

    def first(self, values: Values, is_lost: IsLost, begun: Mapping[str, Reached] | None = None) -> None:
        """What there is at the end of the first pass. `begun`: by name, what stands between the `with` of the run and
        its loops has made."""
        self.begun = frozenset(begun or ())
        self._digests |= {path: now.digest for path, now in (begun or {}).items()}
        before, self._before = self._before, {}
        # another name may lead to an attribute by now; of the loop's own names its code tells which are new
        attributes = {(was.owner, was.binding): was for was in before.values() if was.owner is not None}
        owners = {was.owner for was in attributes.values()}.union(self._objects)
        for path, now in values.items():
            was = before.get(path)
            if was is None and now.owner is not None:
                was = attributes.get((now.owner, now.binding))
            if was is None:
                is_new = now.owner in owners or _is_of_object_made_late(path, before)
            else:
                is_new = now.digest != was.digest
                self._untouched |= set() if is_new else {path}
            is_replaced = was is not None and was.is_text_or_function and now.is_text_or_function
            is_named = now.binding is not None or now.numbers is not None
            if is_new and (now.is_comparable or is_replaced) and is_named and is_lost(now, was):
                self._digests[path] = now.digest

    def later(self, values: Values, is_lost: IsLost) -> None:
        """What there is at the end of another pass."""
        for path in list(self._digests):
            now = values.get(path)
            if now is None or now.digest != self._digests[path] or not (path in self.begun or is_lost(now, now)):
                del self._digests[path]
                self._changed.add(path)

    @property
    def digests(self) -> dict[str, int]:
        """By name, what they were in the first process that set them."""
        recorded = {path: digest for path, digest in self._recorded.items() if path not in self._changed}
        return {**self._digests, **recorded}

    def differing(self, values: Values, is_lost: IsLost) -> list[Reached]:
        """Those that are others than in the processes before."""
        return [
            now
            for path, digest in self._recorded.items()
            if path not in self._changed
            and (now := values.get(path)) is not None
            and now.digest != digest
            and (path in self._untouched or not now.is_text_or_function)
            and (path in self.begun or is_lost(now, now))
        ]


def _is_of_object_made_late(path: str, before: Values) -> bool:
    """Whether it is in an object where None was before the pass."""
    parts = path.split(".")
    around = (before.get(".".join(parts[:count])) for count in range(1, len(parts)))
    return any(
        reached is not None and reached.kind in ("value", "default") and reached.value is None for reached in around
    )


def read_set_once(directory: Path) -> dict[str, int]:
    """What a job's directory keeps; nothing if the file is missing or is none that this version can read."""
    try:
        body = json.loads(durable.read_file(directory / layout.SET_ONCE, MAX_BYTES))
        check_format(body, FORMAT, layout.SET_ONCE)
        return {str(name): int(digest, 16) for name, digest in body["digests"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, NewerFormat, RecursionError):
        return {}


def keep_set_once(directory: Path, digests: Mapping[str, int]) -> None:
    """Replaces what the directory keeps, also what an earlier training left there. For a thread of its own: a disk may
    stand still. Where it can't be written, a restart has less to compare."""
    if digests != read_set_once(directory):
        with contextlib.suppress(OSError):
            write_set_once(directory, digests)


def write_set_once(directory: Path, digests: Mapping[str, int]) -> None:
    """Raises OSError; NewerFormat if a later version's is there."""
    with contextlib.suppress(FileNotFoundError):
        refuse_newer(durable.read_file(directory / layout.SET_ONCE, MAX_BYTES), FORMAT, layout.SET_ONCE)
    some = {name: f"{digest:x}" for name, digest in sorted(digests.items())[:MOST_VALUES]}
    content = json.dumps({"format": FORMAT, "digests": some}, indent=1) + "\n"
    durable.write_file(directory / layout.SET_ONCE, content.encode())
