"""The last things that changed a program's state, with what followed, in words for people."""

import re
import time
from collections.abc import Sized
from dataclasses import dataclass, fields
from functools import cache

from supervisor.core.program.effects import Effect
from supervisor.core.program.events import Event
from supervisor.core.program.facts import State

KEPT = 200  # some 100 KB a program; a job that dies every minute is then told of for an hour
TOLD_WITH_ERROR = 20  # in the log, where an error of the daemon's own is reported
LONGEST = 200  # characters of one detail


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event that had a consequence. `reason`: why the program then waits, ended or failed."""

    wall_at: float
    attempt: int
    event: str
    was: str
    state: str
    effects: tuple[str, ...]
    reason: str | None

    def __str__(self) -> str:
        moved = f"{self.was} -> {self.state}" if self.was != self.state else self.state
        return f"{self.event}: {moved}" + "".join(f"; {each}" for each in self.effects)


class Timeline:
    """A ring of scenes, in memory; the daemon's log has the state changes of all times."""

    __slots__ = ("_scenes",)

    def __init__(self) -> None:
        self._scenes: list[TimelineEntry] = []

    def add(
        self, event: Event | str, was: State, state: State, attempt: int, effects: list[Effect], reason: str | None
    ) -> None:
        """Takes an event in, if anything came of it."""
        if was is state and not effects and not isinstance(event, str):
            return
        happened = event if isinstance(event, str) else describe(event)
        followed = tuple(describe(each) for each in effects)
        self._scenes.append(TimelineEntry(time.time(), attempt, happened, was.value, state.value, followed, reason))
        del self._scenes[:-KEPT]

    def last_entries(self, count: int) -> list[TimelineEntry]:
        """The last so many, oldest first."""
        return self._scenes[-count:]


def describe(happening: object) -> str:
    """An event or order in words: `worker exited (signal 9)`."""
    name = _spaced(type(happening).__name__)
    try:
        details = [
            (each.name, value)
            for each in fields(happening)  # type: ignore[arg-type]
            if (value := getattr(happening, each.name)) != each.default
        ]
    except TypeError:
        return name  # not one of ours: said with an error that it caused
    said = [f"{key} {_shown(value)[:LONGEST]}" for key, value in details if key != "attempt" and not _is_empty(value)]
    return f"{name} ({', '.join(said)})" if said else name


@cache
def _spaced(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _is_empty(value: object) -> bool:
    """Whether there is nothing to say: a 0 is something."""
    return value is None or value is False or (isinstance(value, Sized) and not len(value))


def _shown(value: object) -> str:
    if isinstance(value, frozenset | tuple):
        return " ".join(sorted(map(_shown, value)) if isinstance(value, frozenset) else map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
