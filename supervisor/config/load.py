"""A configuration file to its model, or to the list of everything that is wrong with it."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from supervisor.config import relations
from supervisor.config import supervisor_keys as foreign
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.program import LISTENER_PRIORITY, ProcessGroup, ProgramContext, build_groups, build_processes
from supervisor.config.schema.check import SectionReader, UnknownValue
from supervisor.config.schema.section import SectionModel, internal, section_model
from supervisor.config.schema.values import environment as parse_environment
from supervisor.ini.placeholders import common_placeholders
from supervisor.ini.problems import ConfigError, Location, Problem, nearest_word
from supervisor.ini.reader import IniKey, IniSection, IniText, read_ini

_KINDS = {"supervisord", "unix_http_server", "inet_http_server", "supervisorctl", "include"}
_NAMED = ("program", "group", "eventlistener")
_SERVERS = ("unix_http_server", "inet_http_server")
STATE_DIR = ".stepkeeper"
NO_OVERRIDES: Mapping[str, IniKey] = {}

Server = TypeVar("Server", UnixServerConfig, InetServerConfig)


@section_model
class Config(SectionModel):
    """The whole configuration. `programs` is in the order of start: by priority of the group, then of the program."""

    path: Path = internal("The file it was read from.")
    supervisord: SupervisordConfig = internal("Section [supervisord].")
    unix_http_servers: tuple[UnixServerConfig, ...] = internal("Section [unix_http_server], and further ones.", ())
    inet_http_servers: tuple[InetServerConfig, ...] = internal("Section [inet_http_server], and further ones.", ())
    supervisorctl: CtlConfig = internal("Section [supervisorctl].", CtlConfig.build({}))
    programs: dict[str, ProgramConfig] = internal("Every process of the sections [program:NAME], by name.", {})
    warnings: tuple[Problem, ...] = internal("What is to be said of the file, though it can be used.", ())


def load_config(path: Path, environment: Mapping[str, str], said: Mapping[str, IniKey] = NO_OVERRIDES) -> Config:
    """The file's configuration. `environment`: what `%(ENV_X)s` stands for; `said`: keys of [supervisord] instead.

    Raises ConfigError with every problem of the file and of those it includes, in the order of their lines.
    """
    looked = check_config(path, environment, said)
    if looked.problems or looked.config is None:
        raise ConfigError(looked.problems)
    return looked.config


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """What is in a file. `config` is usable if there are no problems; `remarks` stand in nobody's way."""

    config: Config | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check_config(
    path: Path, environment: Mapping[str, str], said: Mapping[str, IniKey] = NO_OVERRIDES
) -> CheckedConfig:
    """The file's configuration as far as there is one, and all that is to be said of it, in the order of lines.

    Raises ConfigError if the file itself can't be read.
    """
    source = read_ini(path, environment)
    if (section := source.sections.get("supervisord")) is not None:
        section.entries |= said
    reading = _ConfigReader(source, dict(environment), source.problems)
    config = reading.read_config()
    return CheckedConfig(config, tuple(sorted(source.problems, key=_file_and_line)), reading.sorted_warnings())


def _file_and_line(problem: Problem) -> tuple[str, int]:
    return (str(problem.location.file), problem.location.line or 0)


@dataclass(slots=True)
class _ConfigReader:
    source: IniText
    environment: dict[str, str]
    problems: list[Problem]
    programs: dict[str, SectionReader] = field(default_factory=dict)
    """The section each process comes from, by the process' name."""
    warnings: list[Problem] = field(default_factory=list)

    def read_config(self) -> Config | None:
        for name, section in self.source.sections.items():
            self._report_unknown_section(name, section)
        daemon = self._read_supervisord()
        unix = self._read_servers("unix_http_server", UnixServerConfig, relations.check_socket)
        inet = self._read_servers("inet_http_server", InetServerConfig, relations.check_address)
        ctl = self._read_supervisorctl()
        # a broken daemon section is no reason to keep quiet about the programs
        usable = daemon or SupervisordConfig.build(_default_paths(self.source.folder / STATE_DIR))
        programs = self._read_programs(usable)
        relations.check_across_sections(usable, programs, self.programs, self.source.sections)
        if daemon is None:
            return None
        return Config(
            path=self.source.path,
            supervisord=daemon,
            unix_http_servers=unix,
            inet_http_servers=inet,
            supervisorctl=ctl or CtlConfig.build({}),
            programs={each.name: each for each in sorted(programs.values(), key=_start_order)},
            warnings=self.sorted_warnings(),
        )

    def sorted_warnings(self) -> tuple[Problem, ...]:
        """What is to be said and stands in nobody's way."""
        return tuple(sorted(self.warnings, key=_file_and_line))

    def _read_supervisord(self) -> SupervisordConfig | None:
        section = self.source.sections.get("supervisord")
        if section is None:
            text = "there is no [supervisord] section; add a line '[supervisord]' (nothing need stand below it)"
            self.problems.append(Problem(Location(self.source.path), text))
            section = IniSection("supervisord", Location(self.source.path))
        checked, known = self._section_reader(section), set(SupervisordConfig.ini_keys())
        checked.report_unknown_keys(known, foreign.SUPERVISORD)
        checked.expand_values({"environment"}, self._placeholders())
        with contextlib.suppress(ValueError):  # the model's own check of the key complains
            # what the section sets is there for every %(ENV_X)s of the file
            self.environment |= parse_environment(checked.texts.get("environment", ""))
        checked.expand_values(known - {"environment"}, self._placeholders())
        here, to_syslog = self.source.folder, {"log_to_syslog": False}
        if checked.texts.get("logfile", "").lower() == "syslog":
            checked.texts["logfile"], to_syslog["log_to_syslog"] = "NONE", True
        if checked.texts.get("logfile") == os.devnull:
            checked.texts["logfile"] = "NONE"  # there is nothing to rotate, and nothing to read
        if checked.texts.get("pidfile") == os.devnull:
            checked.texts["pidfile"] = "NONE"  # a pid file is deleted in the end
        daemon = checked.build_model(SupervisordConfig, _default_paths(here / STATE_DIR) | to_syslog)
        if daemon is not None and "state_dir" in checked:
            daemon = checked.build_model(SupervisordConfig, _default_paths(daemon.state_dir) | to_syslog)
        with contextlib.suppress(UnknownValue):
            told = daemon or checked.build_partial(SupervisordConfig, _default_paths(here / STATE_DIR) | to_syslog)
            relations.check_daemon(told, checked)
        return daemon

    def _read_servers(
        self, kind: str, model: type[Server], check: Callable[[Server, SectionReader], None]
    ) -> tuple[Server, ...]:
        """The servers of one kind: of the section [kind], and of further ones, [kind:NAME]."""
        built: list[tuple[Server, str]] = []
        for name, section in self.source.sections.items():
            if name.partition(":")[0] != kind:
                continue
            checked, keys = self._section_reader(section), set(model.ini_keys())
            checked.report_unknown_keys(keys, {})
            checked.expand_values(keys, self._placeholders())
            server = checked.build_model(model, {})
            for relation in (check, relations.check_login):
                with contextlib.suppress(UnknownValue):
                    relation(server or checked.build_partial(model, {}), checked)
            if server is not None:
                relations.check_duplicate_address(server, checked, built)
                built.append((server, name))
        return tuple(server for server, _ in built)

    def _read_supervisorctl(self) -> CtlConfig | None:
        """What the section says. The daemon does not need it: what is wrong in it is only remarked upon."""
        section = self.source.sections.get("supervisorctl")
        if section is None:
            return None
        checked = SectionReader(section, self.warnings)
        checked.report_unknown_keys(set(CtlConfig.ini_keys()), {})
        checked.expand_values(set(CtlConfig.ini_keys()), self._placeholders())
        return checked.build_model(CtlConfig, {})

    def _read_programs(self, daemon: SupervisordConfig) -> dict[str, ProgramConfig]:
        built: dict[str, ProgramConfig] = {}
        surroundings = ProgramContext(daemon, self._placeholders())
        sections = self._sections_of_kind("program")
        groups = build_groups(self._sections_of_kind("group"), sections.keys(), self._placeholders())
        for name, checked in sections.items():
            self._add_processes(
                built, build_processes(name, groups.get(name, ProcessGroup(name)), checked, surroundings), checked
            )
        taken = {*sections, *(group.name for group in groups.values())}
        for name, checked in self._sections_of_kind("eventlistener").items():
            if name in taken:
                checked.add_problem(
                    f"has the name of another group, [program:{name}] or [group:{name}]; choose another"
                )
                continue
            pool = ProcessGroup(name, None if "priority" in checked else LISTENER_PRIORITY, is_pool=True)
            self._add_processes(built, build_processes(name, pool, checked, surroundings), checked)
        return built

    def _add_processes(
        self, built: dict[str, ProgramConfig], processes: list[ProgramConfig], checked: SectionReader
    ) -> None:
        for process in processes:
            if process.name in built:
                other = self.programs[process.name].ini.name
                checked.add_problem(f"has a process {process.name}, and so has [{other}]; give it another process_name")
            self.programs[process.name] = checked
            built[process.name] = process

    def _sections_of_kind(self, kind: str) -> dict[str, SectionReader]:
        """The sections [kind:NAME] by their names."""
        found = ((name.partition(":"), section) for name, section in self.source.sections.items())
        return {
            name: self._section_reader(section)
            for (its_kind, colon, name), section in found
            if its_kind == kind and colon
        }

    def _section_reader(self, section: IniSection) -> SectionReader:
        return SectionReader(section, self.problems)

    def _placeholders(self) -> dict[str, str]:
        return common_placeholders(self.source.folder, self.environment)

    def _report_unknown_section(self, name: str, section: IniSection) -> None:
        kind, colon, _ = name.partition(":")
        if name in _KINDS or (kind in _NAMED and colon) or kind in _SERVERS:
            return
        if kind in foreign.IGNORED:
            self.warnings.append(Problem(section.location, f"[{name:.80}] is ignored: {foreign.IGNORED[kind]}"))
            return
        if name == foreign.STOCK_RPC_SECTION and _is_stock(section):
            return
        remedy = foreign.SECTIONS.get(kind)
        if remedy is not None:
            text = f"[{name:.80}] is a section of Supervisor's that stepkeeper does not support; {remedy}"
        elif name in _NAMED:
            text = f"[{name}] has no name; write [{name}:NAME]"
        else:
            meant = nearest_word(kind, [*_KINDS, *_NAMED])
            is_named = meant in _NAMED
            hint = f"; did you mean [{f'{meant}:' + name.partition(':')[2] if is_named else meant}]?"
            text = f"there is no section [{name:.80}]" + (hint if meant else "; delete it, or put a ; before its lines")
        self.problems.append(Problem(section.location, text))


def _start_order(program: ProgramConfig) -> tuple[int, str, int, str]:
    return (program.group_priority, program.group, program.priority, program.process)


def _default_paths(state_dir: Path) -> dict[str, Path]:
    return {
        "state_dir": state_dir,
        "runtime_dir": state_dir / "run",
        "childlogdir": state_dir / "log",
        "notice_dir": state_dir / "notices",
        "logfile": state_dir / "supervisord.log",
        "pidfile": state_dir / "supervisord.pid",
    }


def _is_stock(section: IniSection) -> bool:
    return {key: entry.value for key, entry in section.entries.items()}.items() <= foreign.STOCK_RPC.items()
