"""The last events that changed a program, with what the daemon did about each, in words for people."""

import re
import time
from collections.abc import Sized
from dataclasses import dataclass, fields
from functools import cache

from supervisor.core.failures.restart import describe_exit
from supervisor.core.program import effects, events
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.wire.messages import Then
from supervisor.runner.records.observers import ProgramObserver

KEPT = 200  # some 100 KB a program; covers more than an hour of a job that dies every minute
SHOWN_WITH_ERROR = 20  # entries in the log beside an internal error
MAX_DETAIL = 200  # characters


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event that had a consequence. `reason`: why the program waits, ended or failed after it."""

    wall_at: float
    attempt: int
    event: str
    was: str
    state: str
    effects: tuple[str, ...]
    reason: str | None

    def __str__(self) -> str:
        moved = f"{self.was} -> {self.state}" if self.was != self.state else self.state
        return f"{self.event}: {moved}" + "".join(f"; {effect}" for effect in self.effects)


class Timeline(ProgramObserver):
    """The last KEPT entries, in memory; the daemon's log has all state changes."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[TimelineEntry] = []

    def on_decision(
        self, event: events.Event | str | None, before: State, decided: list[effects.Effect], facts: ProgramFacts
    ) -> None:
        if event is not None:
            self.add(event, before, facts.state, facts.attempt, decided, facts.reason)

    def add(
        self,
        event: events.Event | str,
        was: State,
        state: State,
        attempt: int,
        decided: list[effects.Effect],
        reason: str | None,
    ) -> None:
        """Adds an entry if the event had a consequence that people can see."""
        followed = tuple(text for effect in decided if (text := describe_effect(effect)) is not None)
        if was is state and not followed and not isinstance(event, str):
            return
        happened = event if isinstance(event, str) else describe_event(event)
        self._entries.append(TimelineEntry(time.time(), attempt, happened, was.value, state.value, followed, reason))
        del self._entries[:-KEPT]

    def last_entries(self, count: int) -> list[TimelineEntry]:
        """The last `count` entries, oldest first."""
        return self._entries[-count:]


def describe_effect(effect: effects.Effect) -> str | None:
    """What the daemon does, in words: `request a flush (operator)`. None: it concerns nobody but the daemon."""
    match effect:
        case effects.Spawn():
            parts = f" (each batch in {effect.microbatches} parts)" if effect.microbatches > 1 else ""
            return f"start the process{parts}"
        case effects.SelectCheckpoint():
            limits = [f"before step {effect.restore_below_step}"] if effect.restore_below_step is not None else []
            avoided = sorted(effect.avoid | dict(effect.unfit).keys())
            limits += [f"avoiding {' '.join(avoided)}"[:MAX_DETAIL]] if avoided else []
            return "select a checkpoint" + (f" ({', '.join(limits)})" if limits else "")
        case effects.QuarantineCheckpoints():
            return f"quarantine {' '.join(name for name, _ in effect.unfit)}"[:MAX_DETAIL]
        case effects.SendGo():
            return f"train from {effect.restore}" if effect.restore is not None else "train from the beginning"
        case effects.RequestIdentity():
            return "ask the worker for its status"
        case effects.RequestFlush():
            return f"request a flush ({effect.reason}{', then stop' if effect.then is Then.STOP else ''})"
        case effects.Terminate():
            return "send the stop signal"
        case effects.Abort():
            return "save the stacks, then send SIGABRT"
        case effects.Kill():
            return "kill all its processes"
        case effects.RecordWanted():
            return "record that it should run" if effect.wanted else "record that it should stay stopped"
        case effects.RecordEnd():
            return f"record the end: {effect.cause} ({effect.text[:MAX_DETAIL]})"
        case effects.LookAtStartPaths():
            return "look whether its directory and command are there"
        case effects.ReportBreach():
            return f"report a defect of the daemon: {effect.invariant}"
        case effects.PersistHangHistory():
            return None
        case _:
            return describe_event(effect)


def describe_event(event: object) -> str:
    """An event in words: `worker exited (terminated by SIGKILL)`."""
    match event:
        case events.WorkerExited() if isinstance(event.code, int | None):
            oom = f", {event.oom}" if event.oom is not None else ""
            return f"worker exited ({describe_exit(event.code, event.signal)}{oom})"
        case events.NoticeReceived() | events.NoticeChanged():
            notice = event.notice
            details = f"{notice.source}: {notice.kind}, {notice.certainty}"
            return f"{_spaced(type(event).__name__)} ({details}{f', {notice.text}' if notice.text else ''})"
        case events.StepsDone():
            return f"steps done (step {event.step})"
    return _describe_fields(event)


def _describe_fields(event: object) -> str:
    name = _spaced(type(event).__name__)
    try:
        details = [
            (field.name.replace("_", " "), value)
            for field in fields(event)  # type: ignore[arg-type]
            if (value := getattr(event, field.name)) != field.default
        ]
    except TypeError:
        return name  # none of our events: an internal error that it caused is reported with its name
    said = [
        f"{key.replace('_', ' ')} {_shown(value)[:MAX_DETAIL]}"
        for key, value in details
        if key not in ("attempt", "wall at") and not _is_empty(value)  # each entry has its time
    ]
    return f"{name} ({', '.join(said)})" if said else name


@cache
def _spaced(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _is_empty(value: object) -> bool:
    """Whether there is nothing to show; 0 is something."""
    return value is None or value is False or (isinstance(value, Sized) and not len(value))


def _shown(value: object) -> str:
    if isinstance(value, frozenset | tuple):
        return " ".join(sorted(map(_shown, value)) if isinstance(value, frozenset) else map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
