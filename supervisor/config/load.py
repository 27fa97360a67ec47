"""A configuration file to its model, or to the list of everything that is wrong with it."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from supervisor.config import relations
from supervisor.config import supervisor_keys as foreign
from supervisor.config.groups import build_groups
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.model import Config
from supervisor.config.program import LISTENER_PRIORITY, Group, Surroundings, build_processes
from supervisor.config.schema.check import Checked, Unknown
from supervisor.config.schema.values import environment as parse_environment
from supervisor.ini.expand import names
from supervisor.ini.problems import ConfigError, Place, Problem, nearest
from supervisor.ini.source import Entry, Section, Source, read

_KINDS = {"supervisord", "unix_http_server", "inet_http_server", "supervisorctl", "include"}
_NAMED = ("program", "group", "eventlistener")
_SERVERS = ("unix_http_server", "inet_http_server")
STATE_DIR = ".stepkeeper"
NOTHING: Mapping[str, Entry] = {}

Server = TypeVar("Server", UnixServerConfig, InetServerConfig)


def load(path: Path, environment: Mapping[str, str], said: Mapping[str, Entry] = NOTHING) -> Config:
    """The file's configuration. `environment`: what `%(ENV_X)s` stands for; `said`: keys of [supervisord] instead.

    Raises ConfigError with every problem of the file and of those it includes, in the order of their lines.
    """
    looked = look(path, environment, said)
    if looked.problems or looked.config is None:
        raise ConfigError(looked.problems)
    return looked.config


@dataclass(frozen=True, slots=True)
class Looked:
    """What is in a file. `config` is usable if there are no problems; `remarks` stand in nobody's way."""

    config: Config | None
    problems: tuple[Problem, ...]
    remarks: tuple[Problem, ...]


def look(path: Path, environment: Mapping[str, str], said: Mapping[str, Entry] = NOTHING) -> Looked:
    """The file's configuration as far as there is one, and all that is to be said of it, in the order of lines.

    Raises ConfigError if the file itself can't be read.
    """
    source = read(path, environment)
    if (section := source.sections.get("supervisord")) is not None:
        section.entries |= said
    reading = _Reading(source, dict(environment), source.problems)
    config = reading.config()
    return Looked(config, tuple(sorted(source.problems, key=_in_order)), reading.ordered_remarks())


def _in_order(problem: Problem) -> tuple[str, int]:
    return (str(problem.place.file), problem.place.line or 0)


@dataclass(slots=True)
class _Reading:
    source: Source
    environment: dict[str, str]
    problems: list[Problem]
    programs: dict[str, Checked] = field(default_factory=dict)
    """The section each process comes from, by the process' name."""
    remarks: list[Problem] = field(default_factory=list)

    def config(self) -> Config | None:
        for name, section in self.source.sections.items():
            self._refuse_foreign(name, section)
        daemon = self._supervisord()
        unix = self._servers("unix_http_server", UnixServerConfig, relations.of_socket)
        inet = self._servers("inet_http_server", InetServerConfig, relations.of_address)
        ctl = self._supervisorctl()
        # a broken daemon section is no reason to keep quiet about the programs
        usable = daemon or SupervisordConfig.build(_folders(self.source.folder / STATE_DIR))
        programs = self._programs(usable)
        relations.between(usable, programs, self.programs, self.source.sections)
        if daemon is None:
            return None
        return Config(
            path=self.source.path,
            supervisord=daemon,
            unix_http_servers=unix,
            inet_http_servers=inet,
            supervisorctl=ctl or CtlConfig.build({}),
            programs={each.name: each for each in sorted(programs.values(), key=_by_start)},
            remarks=self.ordered_remarks(),
        )

    def ordered_remarks(self) -> tuple[Problem, ...]:
        """What is to be said and stands in nobody's way."""
        return tuple(sorted(self.remarks, key=_in_order))

    def _supervisord(self) -> SupervisordConfig | None:
        section = self.source.sections.get("supervisord")
        if section is None:
            text = "there is no [supervisord] section; add a line '[supervisord]' (nothing need stand below it)"
            self.problems.append(Problem(Place(self.source.path), text))
            section = Section("supervisord", Place(self.source.path))
        checked, known = self._checked(section), set(SupervisordConfig.ini_keys())
        checked.refuse_unknown(known, foreign.SUPERVISORD)
        checked.expand({"environment"}, self._names())
        with contextlib.suppress(ValueError):  # the model's own check of the key complains
            # what the section sets is there for every %(ENV_X)s of the file
            self.environment |= parse_environment(checked.texts.get("environment", ""))
        checked.expand(known - {"environment"}, self._names())
        here, to_syslog = self.source.folder, {"log_to_syslog": False}
        if checked.texts.get("logfile", "").lower() == "syslog":
            checked.texts["logfile"], to_syslog["log_to_syslog"] = "NONE", True
        if checked.texts.get("logfile") == os.devnull:
            checked.texts["logfile"] = "NONE"  # there is nothing to rotate, and nothing to read
        if checked.texts.get("pidfile") == os.devnull:
            checked.texts["pidfile"] = "NONE"  # a pid file is deleted in the end
        daemon = checked.build(SupervisordConfig, _folders(here / STATE_DIR) | to_syslog)
        if daemon is not None and "state_dir" in checked:
            daemon = checked.build(SupervisordConfig, _folders(daemon.state_dir) | to_syslog)
        with contextlib.suppress(Unknown):
            told = daemon or checked.as_far_as_known(SupervisordConfig, _folders(here / STATE_DIR) | to_syslog)
            relations.of_daemon(told, checked)
        return daemon

    def _servers(self, kind: str, model: type[Server], check: Callable[[Server, Checked], None]) -> tuple[Server, ...]:
        """The servers of one kind: of the section [kind], and of further ones, [kind:NAME]."""
        built: list[tuple[Server, str]] = []
        for name, section in self.source.sections.items():
            if name.partition(":")[0] != kind:
                continue
            checked, keys = self._checked(section), set(model.ini_keys())
            checked.refuse_unknown(keys, {})
            checked.expand(keys, self._names())
            server = checked.build(model, {})
            for relation in (check, relations.of_login):
                with contextlib.suppress(Unknown):
                    relation(server or checked.as_far_as_known(model, {}), checked)
            if server is not None:
                relations.of_doors(server, checked, built)
                built.append((server, name))
        return tuple(server for server, _ in built)

    def _supervisorctl(self) -> CtlConfig | None:
        """What the section says. The daemon does not need it: what is wrong in it is only remarked upon."""
        section = self.source.sections.get("supervisorctl")
        if section is None:
            return None
        checked = Checked(section, self.remarks)
        checked.refuse_unknown(set(CtlConfig.ini_keys()), {})
        checked.expand(set(CtlConfig.ini_keys()), self._names())
        return checked.build(CtlConfig, {})

    def _programs(self, daemon: SupervisordConfig) -> dict[str, ProgramConfig]:
        built: dict[str, ProgramConfig] = {}
        surroundings = Surroundings(daemon, self._names())
        sections = self._named("program")
        groups = build_groups(self._named("group"), sections.keys(), self._names())
        for name, checked in sections.items():
            self._take(built, build_processes(name, groups.get(name, Group(name)), checked, surroundings), checked)
        taken = {*sections, *(group.name for group in groups.values())}
        for name, checked in self._named("eventlistener").items():
            if name in taken:
                checked.complain(f"has the name of another group, [program:{name}] or [group:{name}]; choose another")
                continue
            pool = Group(name, None if "priority" in checked else LISTENER_PRIORITY, is_pool=True)
            self._take(built, build_processes(name, pool, checked, surroundings), checked)
        return built

    def _take(self, built: dict[str, ProgramConfig], processes: list[ProgramConfig], checked: Checked) -> None:
        for process in processes:
            if process.name in built:
                other = self.programs[process.name].written.name
                checked.complain(f"has a process {process.name}, and so has [{other}]; give it another process_name")
            self.programs[process.name] = checked
            built[process.name] = process

    def _named(self, kind: str) -> dict[str, Checked]:
        """The sections [kind:NAME] by their names."""
        found = ((name.partition(":"), section) for name, section in self.source.sections.items())
        return {
            name: self._checked(section) for (its_kind, colon, name), section in found if its_kind == kind and colon
        }

    def _checked(self, section: Section) -> Checked:
        return Checked(section, self.problems)

    def _names(self) -> dict[str, str]:
        return names(self.source.folder, self.environment)

    def _refuse_foreign(self, name: str, section: Section) -> None:
        kind, colon, _ = name.partition(":")
        if name in _KINDS or (kind in _NAMED and colon) or kind in _SERVERS:
            return
        if kind in foreign.IGNORED:
            self.remarks.append(Problem(section.place, f"[{name:.80}] is ignored: {foreign.IGNORED[kind]}"))
            return
        if name == foreign.STOCK_RPC_SECTION and _is_stock(section):
            return
        remedy = foreign.SECTIONS.get(kind)
        if remedy is not None:
            text = f"[{name:.80}] is a section of Supervisor's that stepkeeper does not support; {remedy}"
        elif name in _NAMED:
            text = f"[{name}] has no name; write [{name}:NAME]"
        else:
            meant = nearest(kind, [*_KINDS, *_NAMED])
            is_named = meant in _NAMED
            hint = f"; did you mean [{f'{meant}:' + name.partition(':')[2] if is_named else meant}]?"
            text = f"there is no section [{name:.80}]" + (hint if meant else "; delete it, or put a ; before its lines")
        self.problems.append(Problem(section.place, text))


def _by_start(program: ProgramConfig) -> tuple[int, str, int, str]:
    return (program.group_priority, program.group, program.priority, program.process)


def _folders(state_dir: Path) -> dict[str, Path]:
    return {
        "state_dir": state_dir,
        "runtime_dir": state_dir / "run",
        "childlogdir": state_dir / "log",
        "notice_dir": state_dir / "notices",
        "logfile": state_dir / "supervisord.log",
        "pidfile": state_dir / "supervisord.pid",
    }


def _is_stock(section: Section) -> bool:
    return {key: entry.value for key, entry in section.entries.items()}.items() <= foreign.STOCK_RPC.items()
