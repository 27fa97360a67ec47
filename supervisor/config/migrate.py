"""What becomes of a file written for Supervisor: every line of it kept, kept with another effect, or refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.config import supervisor_keys as foreign
from supervisor.config.load import load
from supervisor.ini.problems import ConfigError, Place, Problem
from supervisor.ini.source import Section, read


class Fate(StrEnum):
    """What becomes of a line."""

    KEPT = "kept"  # means what it meant
    CHANGED = "changed"  # is read, and something about it is different here
    NO_EFFECT = "no effect"  # asks for nothing: may stay
    REFUSED = "refused"  # has to be changed before the file can be used


@dataclass(frozen=True, slots=True)
class Judgement:
    """One line's fate. `what`: the section, or the section and key; `why`: empty if it is simply kept.

    Of a refused line `why` tells all.
    """

    place: Place
    fate: Fate
    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.fate:<9} {': '.join(filter(None, (self.what, self.why)))}"


_BACKOFF = "the pause between failed starts is 1, 2, 4 ... 60 s with jitter, not 1, 2, 3 s"
CHANGED: Mapping[tuple[str, str], str] = {
    ("supervisord", "logfile"): "the lines are JSON",
    ("program", "startretries"): _BACKOFF,
    (
        "program",
        "startsecs",
    ): "fractions are taken too, and a program that fails later is started again without a limit, "
    "at most once a second",
    (
        "inet_http_server",
        "password",
    ): "compared in constant time; supervisord --hash-password makes a salted hash of it",
    (
        "unix_http_server",
        "password",
    ): "compared in constant time; supervisord --hash-password makes a salted hash of it",
}
"""Keys whose effect is not quite Supervisor's, by kind of section."""

_RESTARTS = CHANGED["program", "startsecs"]
LISTENER_CHANGED: Mapping[str, str] = {
    "startretries": _BACKOFF,
    "startsecs": _RESTARTS,
    "stdout_logfile": "AUTO is NONE: standard output is the protocol; a path gets a copy of it",
}
"""The same for event listeners, which are programs too."""

UNSET: Mapping[str, str] = {
    "logfile": "the daemon's log is .stepkeeper/supervisord.log beside the file, not ./supervisord.log",
    "pidfile": "the pid file is .stepkeeper/supervisord.pid beside the file, not ./supervisord.pid",
    "childlogdir": "logs of programs that name none are .stepkeeper/log/NAME-stdout.log beside the file and stay "
    "after a restart; in Supervisor they are temporary",
}
"""Keys of [supervisord] whose default is another one."""

LISTENER_UNSET: Mapping[str, str] = {
    "buffer_size": "1000 events may wait, not 10",
    "stdout_logfile": "standard output, which is the protocol, has no log",
}
"""The same for [eventlistener:x]."""

_UNSUPPORTED = {"supervisord": foreign.SUPERVISORD, "program": foreign.PROGRAM, "eventlistener": foreign.PROGRAM}


def judge(path: Path, environment: Mapping[str, str]) -> list[Judgement]:
    """Every line of the file and of those it includes, in order. Raises ConfigError if the file can't be read."""
    source = read(path, environment)
    problems = _problems(path, environment)
    at = {problem.place for problem in problems}
    judged = [Judgement(each.place, Fate.REFUSED, "", each.text) for each in problems]
    for section in source.sections.values():
        judged += [each for each in _section(section) if each.place not in at]
    return sorted(judged, key=lambda each: (str(each.place.file), each.place.line or 0))


def _problems(path: Path, environment: Mapping[str, str]) -> tuple[Problem, ...]:
    try:
        load(path, environment)
    except ConfigError as error:
        return error.problems
    return ()


def _section(section: Section) -> Iterator[Judgement]:
    kind, header = section.name.partition(":")[0], f"[{section.name}]"
    if section.name == foreign.STOCK_RPC_SECTION:
        yield Judgement(section.place, Fate.NO_EFFECT, header, "the interface is always there")
    elif kind in foreign.SECTIONS:
        return  # refused as a whole, at its header
    else:
        defaults = {"supervisord": UNSET, "eventlistener": LISTENER_UNSET}.get(kind, {})
        unset = [why for key, why in defaults.items() if key not in section.entries]
        yield Judgement(section.place, Fate.CHANGED if unset else Fate.KEPT, header, "; ".join(unset))
    for key, entry in section.entries.items():
        what = f"{header} {key}"
        if key in _UNSUPPORTED.get(kind, {}) or section.name == foreign.STOCK_RPC_SECTION:
            yield Judgement(entry.place, Fate.NO_EFFECT, what)
        elif why := (LISTENER_CHANGED.get(key) if kind == "eventlistener" else CHANGED.get((kind, key))):
            yield Judgement(entry.place, Fate.CHANGED, what, why)
        else:
            yield Judgement(entry.place, Fate.KEPT, what)
