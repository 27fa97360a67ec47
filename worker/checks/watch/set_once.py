"""Values that the first pass of a loop sets and no later one changes, such as the mean of the first batch.

They do not change from one step boundary to the next, so comparing those tells nothing of them: a restart sets them in
its own first pass, from another batch, or not at all where that asks for the first epoch. Many are set so and come out
the same, a flag or a table, and nobody wants to hear of these. So a job's directory keeps what they were, and the first
steps after a restart compare: what differs is named.
"""

import contextlib
import json
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.formats import NewerFormat, check_format, refuse_newer
from worker.checks.watch.kept_values import Reached

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
        self._before: Values | None = None
        self._digests: dict[str, int] = {}

    def begin(self, values: Values) -> None:
        """What there is before the first pass."""
        self._before = values

    def first(self, values: Values, is_lost: IsLost) -> None:
        """What there is at the end of the first pass."""
        before, self._before = self._before or {}, None
        attributes = {(reached.owner, reached.binding): reached for reached in before.values()}
        owners = {owner for owner, _ in attributes}
        for path, now in values.items():
            was = before.get(path) or attributes.get((now.owner, now.binding))  # another name may lead to it by now
            is_new = now.owner in owners if was is None else was.digest != now.digest
            if is_new and _is_comparable(now) and now.binding is not None and is_lost(now, was):
                self._digests[path] = now.digest

    def later(self, values: Values, is_lost: IsLost) -> None:
        """What there is at the end of another pass."""
        for path in list(self._digests):
            now = values.get(path)
            if now is None or now.digest != self._digests[path] or not is_lost(now, now):
                del self._digests[path]

    @property
    def digests(self) -> dict[str, int]:
        """By name, what they were in the first process that set them."""
        return {**self._digests, **self._recorded}

    def differing(self, values: Values, is_lost: IsLost) -> list[Reached]:
        """Those that are others than in the processes before."""
        return [
            now
            for path, digest in self._recorded.items()
            if (now := values.get(path)) is not None and now.digest != digest and is_lost(now, now)
        ]


def _is_comparable(reached: Reached) -> bool:
    """Whether it is a number or an array: texts name files, hosts and times, and differ without an effect."""
    return reached.kind == "array" or (reached.kind == "value" and isinstance(reached.value, numbers.Number))


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
