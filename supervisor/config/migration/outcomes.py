"""What becomes of a file written for Supervisor: every line of it kept, kept with another effect, or refused."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.config import dependent_startup, supervisor_keys
from supervisor.config.load import check_config
from supervisor.config.schema.quantities import octal
from supervisor.config.schema.texts import environment as parse_environment
from supervisor.config.schema.words import FALSE
from supervisor.ini.placeholders import ExpansionError, common_placeholders, expand_placeholders, program_placeholders
from supervisor.ini.problems import Location
from supervisor.ini.reader import IniKey, IniSection, read_ini


class MigrationOutcome(StrEnum):
    """What becomes of a line."""

    KEPT = "kept"  # means what it meant
    CHANGED = "changed"  # is read, and something about it is different here
    NO_EFFECT = "no effect"  # asks for nothing: may stay
    REFUSED = "refused"  # has to be changed before the file can be used


@dataclass(frozen=True, slots=True)
class MigratedLine:
    """One line's fate. `what`: the section, or the section and key; `why`: empty if it is simply kept.

    Of a refused line `why` tells all.
    """

    location: Location
    outcome: MigrationOutcome
    subject: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.location}: {self.outcome:<9} {': '.join(filter(None, (self.subject, self.reason)))}"


_CRASHES = (
    "a program that crashes after its start-up starts again at once three times in a row, then after 1, 2, 4 ... 60 s, "
    "until one has lasted a minute; in Supervisor once a second"
)
_WANTED = (
    "holds until supervisorctl says otherwise: a program that was stopped stays stopped when the daemon or the host "
    "starts again, and one that was started is started"
)
_RETRIES = "the pause between failed starts is 1, 2, 4 ... 60 s, an eighth more or less, not 1, 2, 3 s"
_HASHED = "compared in constant time; supervisord --hash-password makes a salted hash of it"

_ORDER = (
    "when the daemon leaves, groups of a higher number are told to stop first, but nobody waits until they are gone; "
    "depends_on does"
)

CHANGED: Mapping[tuple[str, str], str] = {
    ("supervisord", "logfile"): "the lines are JSON; log_format = supervisor makes them Supervisor's",
    ("supervisord", "childlogdir"): "logs are called NAME-stdout.log, and stay after a restart",
    ("program", "priority"): _ORDER,
    ("program", "startretries"): _RETRIES,
    ("program", "autorestart"): _CRASHES,
    ("program", "autostart"): _WANTED,
    ("program", dependent_startup.ENABLED): "as autostart = true: the daemon itself waits for what the program depends "
    "on, and the listener supervisord-dependent-startup is not needed",
    ("program", dependent_startup.WAIT_FOR): "as depends_on for `running`, depends_on_end for `exited`",
    ("program", dependent_startup.INHERIT_PRIORITY): "what a program depends on starts before it, whatever its "
    "priority",
    ("group", "priority"): _ORDER,
    ("inet_http_server", "password"): _HASHED,
    ("unix_http_server", "password"): _HASHED,
    ("eventlistener", "startretries"): _RETRIES,
    ("eventlistener", "autorestart"): _CRASHES,
    ("eventlistener", "autostart"): _WANTED,
}
"""Keys whose effect is not quite Supervisor's, whatever their value, by kind of section."""

UNSET: Mapping[tuple[str, str], str] = {
    ("supervisord", "state_dir"): "a new folder, .stepkeeper beside the file, keeps what outlives the daemon (what is "
    "wanted, the history); state_dir = FOLDER names another",
    ("supervisord", "logfile"): "the daemon's log is .stepkeeper/supervisord.log beside the file, in JSON lines (or "
    "with log_format = supervisor in Supervisor's), not ./supervisord.log",
    ("supervisord", "pidfile"): "the pid file is .stepkeeper/supervisord.pid beside the file, not ./supervisord.pid",
    ("supervisord", "childlogdir"): "logs of programs that name none are .stepkeeper/log/NAME-stdout.log beside the "
    "file and stay after a restart; in Supervisor they are temporary",
    ("program", "startretries"): _RETRIES,
    ("program", "autorestart"): _CRASHES,
    ("program", "autostart"): f"autostart {_WANTED}",
    ("eventlistener", "buffer_size"): "1000 events may wait, not 10",
    ("eventlistener", "stdout_logfile"): "standard output, which is the protocol, has no log",
}
"""The same of keys that are left out. What holds for every program is said at the first one."""

PATHS: Mapping[str, frozenset[str]] = {
    "supervisord": frozenset({"logfile", "pidfile", "childlogdir", "directory"}),
    "program": frozenset({"directory", "stdout_logfile", "stderr_logfile"}),
    "eventlistener": frozenset({"directory", "stdout_logfile", "stderr_logfile"}),
    "unix_http_server": frozenset({"file"}),
    "supervisorctl": frozenset({"history_file"}),
}
"""Keys of Supervisor's that are paths, by kind of section."""

_WORDS = frozenset({"auto", "none", "off", "syslog", "journal"})  # where a path could stand
_UNSUPPORTED = {
    "supervisord": supervisor_keys.SUPERVISORD,
    "program": supervisor_keys.PROGRAM,
    "eventlistener": supervisor_keys.PROGRAM,
}


def explain_migration(path: Path, environment: Mapping[str, str]) -> list[MigratedLine]:
    """Every line of the file and of those it includes, in order. Raises ConfigError if the file can't be read.

    A line of which several things are to be said is there several times.
    """
    source = read_ini(path, environment)
    looked = check_config(path, environment)
    judged = [MigratedLine(problem.location, MigrationOutcome.REFUSED, "", problem.text) for problem in looked.problems]
    judged += [
        MigratedLine(
            warning.location,
            MigrationOutcome.CHANGED if warning.is_change else MigrationOutcome.NO_EFFECT,
            "",
            warning.text,
        )
        for warning in looked.warnings
    ]
    at, remarks = {line.location for line in judged}, set[str]()
    for section in source.sections.values():
        lines = [*_of_header(section, remarks), *_of_keys(section, environment)]
        judged += [line for line in lines if line.location not in at]
    return sorted(judged, key=lambda line: (str(line.location.file), line.location.line or 0))


def _of_header(section: IniSection, remarks: set[str]) -> Iterator[MigratedLine]:
    """What is to be said of a section as a whole. `remarks`: what was said of a program, and holds for all."""
    kind, header = section.name.partition(":")[0], f"[{section.name}]"
    if section.name == supervisor_keys.STOCK_RPC_SECTION:
        yield MigratedLine(section.location, MigrationOutcome.NO_EFFECT, header, "the interface is always there")
        return
    if kind in supervisor_keys.SECTIONS:
        return  # refused as a whole
    whys = [why for (its_kind, key), why in UNSET.items() if its_kind == kind and key not in section.entries]
    if kind == "program":
        whys = [why for why in whys if why not in remarks]
        remarks.update(whys)
    yield from _said(section.location, header, whys)


def _of_keys(section: IniSection, environment: Mapping[str, str]) -> Iterator[MigratedLine]:
    kind = section.name.partition(":")[0]
    for key, entry in section.entries.items():
        what = f"[{section.name}] {key}"
        if section.name == supervisor_keys.STOCK_RPC_SECTION:
            yield MigratedLine(entry.location, MigrationOutcome.NO_EFFECT, what)
        elif kind in supervisor_keys.SECTIONS or kind in supervisor_keys.IGNORED:
            continue  # its header tells all
        elif key in _UNSUPPORTED.get(kind, {}):
            why = "logs are never deleted at a start" if key == "nocleanup" else ""
            yield MigratedLine(entry.location, MigrationOutcome.NO_EFFECT, what, why)
        else:
            yield from _said(entry.location, what, [*_changes(section, kind, key, entry, environment)])


def _said(place: Location, what: str, whys: list[str]) -> Iterator[MigratedLine]:
    if not whys:
        yield MigratedLine(place, MigrationOutcome.KEPT, what)
    for why in whys:
        yield MigratedLine(place, MigrationOutcome.CHANGED, what, why)


def _changes(section: IniSection, kind: str, key: str, entry: IniKey, environment: Mapping[str, str]) -> Iterator[str]:
    """What is different about a key with this value."""
    value = _expanded(entry, environment)
    word = value.lower()
    if key not in supervisor_keys.SUPERVISORS.get(kind, {key}) | dependent_startup.KEYS:
        yield "is a key of stepkeeper's own, which Supervisor ignores: it has an effect here"
    always = CHANGED.get((kind, key))
    if always is not None and not (key == "autorestart" and word in FALSE):
        yield always
    if key in ("stdout_logfile", "stderr_logfile") and value == os.devnull:
        yield "the same as NONE: supervisorctl tail says that there is no log"
    elif kind == "eventlistener" and key == "stdout_logfile":
        yield "AUTO is NONE: standard output is the protocol; a path gets a copy of it"
    elif key in PATHS.get(kind, ()) and word not in _WORDS and not os.path.isabs(os.path.expanduser(value)):  # noqa: PTH111, PTH117 - text
        yield (
            f"is {os.path.abspath(entry.folder / value)}: relative paths start from the folder of their file, in "  # noqa: PTH100 - keeps links
            f"Supervisor from the one that supervisord is started in"
        )
    if key == "directory" and kind != "supervisord" and value.startswith("~"):
        yield f"is {os.path.expanduser(value)}; in Supervisor a folder of the name {value.partition('/')[0]}"  # noqa: PTH111 - text
    if key == "environment" and (names := _read_otherwise(value)):
        yield (
            f"{', '.join(names)}: the value goes on to the next comma; in Supervisor, without quotation marks, only to "
            f"the first character other than ASCII letters, digits and _/.+-():"
        )
    if kind == "supervisord" and key in ("logfile", "pidfile") and value == os.devnull:
        yield "the same as NONE"
    if (kind, key) == ("supervisord", "loglevel") and word in ("trace", "blather"):
        yield "is the same as debug"
    if (kind, key) == ("unix_http_server", "chmod") and "username" not in section.entries and _admits_others(value):
        yield (
            "whom the mode lets in may look; changing things takes root, the daemon's user or the owner (chown), or a "
            "username and password"
        )


def _read_otherwise(text: str) -> list[str]:
    """The variables that Supervisor does not read as we do."""
    lexer = shlex.shlex(text)
    lexer.wordchars += "/.+-():"
    try:
        ours, words = parse_environment(text), list(lexer)
    except ValueError:
        return []  # one of both refuses it
    theirs: dict[str, str] = {}
    for at in range(0, len(words), 4):  # KEY, =, VALUE and a comma, or whatever stands in its place
        if len(words) < at + 3 or words[at + 1] != "=":
            return []  # it refuses this
        theirs[words[at]] = words[at + 2].strip("\"'")
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _admits_others(mode: str) -> bool:
    try:
        return bool(octal(mode) & 0o077)
    except ValueError:
        return False  # it is refused


def _expanded(entry: IniKey, environment: Mapping[str, str]) -> str:
    """The value, its placeholders filled as far as that goes without knowing which process it is for."""
    try:
        return expand_placeholders(
            entry.value, common_placeholders(entry.folder, environment) | program_placeholders("NAME", "GROUP", 0, 1)
        )
    except ExpansionError:
        return entry.value
