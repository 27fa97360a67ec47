"""Reads a configuration file into its model, or lists everything that is wrong with it."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from supervisor.config import program_defaults, section_relations, server_relations, supervisor_keys
from supervisor.config.groups import ProcessGroup, build_groups
from supervisor.config.keys.daemon import LOG_PATHS, SupervisordConfig, paths_in
from supervisor.config.keys.groups import GroupConfig, ListenerConfig, ProcessesConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.program import LISTENER_PRIORITY, ProgramContext, build_processes
from supervisor.config.schema.check import SectionReader, UnknownValue
from supervisor.config.schema.section import SectionModel, internal, section_model
from supervisor.config.schema.texts import environment as parse_environment
from supervisor.config.sections import check_lines, check_section, is_of_program
from supervisor.ini.ownership import problems_of_ownership
from supervisor.ini.placeholders import common_placeholders
from supervisor.ini.problems import ConfigError, Location, Problem
from supervisor.ini.reader import IniKey, IniSection, IniText, read_ini
from supervisor.protocol import allocation

_MODELS: tuple[type[SectionModel], ...] = (
    SupervisordConfig, ProgramConfig, JobConfig, ProcessesConfig, GroupConfig, ListenerConfig, UnixServerConfig,
    InetServerConfig,
)  # fmt: skip
_OWN_KEYS = frozenset(chain.from_iterable(model.ini_keys() for model in _MODELS)) - supervisor_keys.ALL
"""What a file for Supervisor does not have."""
_PROGRAM_KEYS = frozenset(
    chain.from_iterable(model.ini_keys() for model in (ProgramConfig, JobConfig, ProcessesConfig))
)

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
    inherited: dict[str, dict[str, str]] = internal("By section: what it takes from [program-defaults].", {})
    warnings: tuple[Problem, ...] = internal("What is to be said of the file, though it can be used.", ())


def load_config(path: Path, environment: Mapping[str, str], overrides: Mapping[str, IniKey] = NO_OVERRIDES) -> Config:
    """The configuration in a file. `environment`: for `%(ENV_X)s`; `overrides`: keys of [supervisord] that win over it.

    Raises ConfigError with every problem of the file and of those it includes, in the order of their lines;
    SectionsBroken, which is one, if nothing but sections of programs is wrong.
    """
    checked = check_config(path, environment, overrides)
    if checked.config is None:
        raise ConfigError(checked.problems)
    if checked.problems:
        is_of_programs = all(is_of_program(problem.section) for problem in checked.problems)
        raise SectionsBroken(checked, checked.config) if is_of_programs else ConfigError(checked.problems)
    return checked.config


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """What is in a file. `config` is usable if there are no problems, whatever the warnings."""

    config: Config | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    sections: Mapping[str, IniSection] = field(default_factory=dict)
    """Those of programs, by name."""


class SectionsBroken(ConfigError):
    """Only sections of programs are wrong. `config` has what could be loaded, `sections` every section of programs."""

    def __init__(self, checked: CheckedConfig, config: Config) -> None:
        super().__init__(checked.problems)
        self.config, self.sections = config, checked.sections


def check_config(
    path: Path, environment: Mapping[str, str], overrides: Mapping[str, IniKey] = NO_OVERRIDES
) -> CheckedConfig:
    """The configuration in a file, if it is usable, and every problem and warning in the order of lines.

    Raises ConfigError if the file itself can't be read.
    """
    source = read_ini(path, environment)
    source.problems += problems_of_ownership([path, *source.included], source.searched, environment)
    if (section := source.sections.get("supervisord")) is not None:
        section.entries |= overrides
    reading = _ConfigReader(source, dict(environment), source.problems)
    config = reading.read_config()
    problems = tuple(sorted(source.problems, key=_file_and_line))
    sections = {name: ini_section for name, ini_section in source.sections.items() if is_of_program(name)}
    return CheckedConfig(config, problems, reading.sorted_warnings(), sections)


def _file_and_line(problem: Problem) -> tuple[str, int]:
    return (str(problem.location.file), problem.location.line or 0)


@dataclass(slots=True)
class _ConfigReader:
    source: IniText
    environment: dict[str, str]
    problems: list[Problem]
    programs: dict[str, SectionReader] = field(default_factory=dict)
    """By the name of a process: the section that it comes from."""
    warnings: list[Problem] = field(default_factory=list)
    inherited: dict[str, dict[str, str]] = field(default_factory=dict)

    def read_config(self) -> Config | None:
        for name, section in self.source.sections.items():
            check_section(name, section, self.problems, self.warnings)
            check_lines(section, self.source.path, _PROGRAM_KEYS, _OWN_KEYS, self.problems, self.warnings)
        daemon = self._read_supervisord()
        unix = self._read_servers("unix_http_server", UnixServerConfig, server_relations.check_socket)
        inet = self._read_servers("inet_http_server", InetServerConfig, server_relations.check_address)
        ctl = self._read_supervisorctl()
        # where [supervisord] is broken, the problems of the programs are reported all the same
        usable = daemon or SupervisordConfig.build(paths_in(self.source.folder / STATE_DIR))
        programs = self._read_programs(usable)
        in_use = section_relations.files_in_use(usable, unix, (self.source.path, *self.source.included))
        section_relations.check_across_sections(usable, programs, self.programs, self.source.sections, in_use)
        if daemon is None:
            return None
        return Config(
            path=self.source.path,
            supervisord=daemon,
            unix_http_servers=unix,
            inet_http_servers=inet,
            supervisorctl=ctl or CtlConfig.build({}),
            programs={program.name: program for program in sorted(programs.values(), key=start_order)},
            inherited=self.inherited,
            warnings=self.sorted_warnings(),
        )

    def sorted_warnings(self) -> tuple[Problem, ...]:
        """What the user should know but need not change, in the order of lines."""
        return tuple(sorted(dict.fromkeys(self.warnings), key=_file_and_line))

    def _read_supervisord(self) -> SupervisordConfig | None:
        section = self.source.sections.get("supervisord")
        if section is None:
            text = "there is no [supervisord] section; add the line [supervisord], which may stand alone"
            self.problems.append(Problem(Location(self.source.path), text))
            section = IniSection("supervisord", Location(self.source.path))
        reader, known = self._section_reader(section), set(SupervisordConfig.ini_keys())
        elsewhere = {"[program:NAME]": supervisor_keys.SUPERVISORS["program"]}
        reader.report_unknown_keys(known, supervisor_keys.SUPERVISORD, elsewhere)
        reader.expand_values({"environment"}, self._placeholders())
        with contextlib.suppress(ValueError):  # reported when the model is built
            # variables that the section sets can be used as %(ENV_X)s in the whole file
            self.environment |= parse_environment(reader.texts.get("environment", ""))
        reader.expand_values(known - {"environment"}, self._placeholders())
        default, to_syslog = self._default_state(reader), {"log_to_syslog": False}
        if reader.texts.get("logfile", "").lower() == "syslog":
            reader.texts["logfile"], to_syslog["log_to_syslog"] = "NONE", True
        if reader.texts.get("logfile") == os.devnull:
            reader.texts["logfile"] = "NONE"  # it can be neither rotated nor read
        if reader.texts.get("pidfile") == os.devnull:
            reader.texts["pidfile"] = "NONE"  # the daemon deletes its pid file when it exits
        daemon = reader.build_model(SupervisordConfig, default | to_syslog)
        if daemon is not None and "state_dir" in reader:
            logs = {} if daemon.engine != "slurm" else {key: default[key] for key in LOG_PATHS}
            daemon = reader.build_model(SupervisordConfig, paths_in(daemon.state_dir) | logs | to_syslog)
        with contextlib.suppress(UnknownValue):
            usable = daemon or reader.build_partial(SupervisordConfig, default | to_syslog)
            server_relations.check_daemon(usable, reader)
        return daemon

    def _default_state(self, reader: SectionReader) -> dict[str, Path]:
        """The folders if none are configured: beside the file, or under Slurm on the node's own disk."""
        beside = paths_in(self.source.folder / STATE_DIR)
        if reader.texts.get("engine", "").lower() != "slurm":
            return beside
        try:
            node = paths_in(allocation.state_folder(self.environment, os.geteuid()))
            logs = allocation.log_folder(self.environment)
            return node | {
                "childlogdir": logs,
                "logfile": logs / "supervisord.log",
                "changes_logfile": logs / "changes.log",
            }
        except allocation.AllocationError as error:
            reader.add_problem(f"is slurm, but {error}, or set engine = alone", "engine")
            return beside

    def _read_servers(
        self, kind: str, model: type[Server], check: Callable[[Server, SectionReader], None]
    ) -> tuple[Server, ...]:
        """The servers of one kind: the sections [kind] and [kind:NAME]."""
        built: list[tuple[Server, str]] = []
        for name, section in self.source.sections.items():
            if name.partition(":")[0] != kind:
                continue
            reader, keys = self._section_reader(section), set(model.ini_keys())
            reader.report_unknown_keys(keys, {})
            reader.expand_values(keys, self._placeholders())
            server = reader.build_model(model, {})
            for relation in (check, server_relations.check_login):
                with contextlib.suppress(UnknownValue):
                    relation(server or reader.build_partial(model, {}), reader)
            if isinstance(server, InetServerConfig):
                server = server_relations.closed_to_others(server)
            if server is not None:
                server_relations.check_duplicate_address(server, reader, built)
                built.append((server, name))
        return tuple(server for server, _ in built)

    def _read_supervisorctl(self) -> CtlConfig | None:
        """The section of the client. The daemon does not need it, so its problems are only warnings."""
        section = self.source.sections.get("supervisorctl")
        if section is None:
            return None
        reader = SectionReader(section, self.warnings, self.warnings)
        reader.report_unknown_keys(set(CtlConfig.ini_keys()), {})
        reader.expand_values(set(CtlConfig.ini_keys()), self._placeholders())
        return reader.build_model(CtlConfig, {})

    def _read_programs(self, daemon: SupervisordConfig) -> dict[str, ProgramConfig]:
        built: dict[str, ProgramConfig] = {}
        sections = self._sections_of_kind("program")
        self._apply_defaults(sections)
        groups = build_groups(self._sections_of_kind("group"), sections.keys(), self._placeholders())
        surroundings = ProgramContext(daemon, self._placeholders(), self.environment, groups)
        for name, reader in sections.items():
            self._add_processes(
                built, build_processes(name, groups.get(name, ProcessGroup(name)), reader, surroundings), reader
            )
        taken = {*sections, *(group.name for group in groups.values())}
        for name, reader in self._sections_of_kind("eventlistener").items():
            if name in taken:
                reader.add_problem(f"has the same name as [program:{name}] or [group:{name}]; choose another name")
                continue
            pool = ProcessGroup(name, None if "priority" in reader else LISTENER_PRIORITY, is_pool=True)
            self._add_processes(built, build_processes(name, pool, reader, surroundings), reader)
        return built

    def _apply_defaults(self, sections: dict[str, SectionReader]) -> None:
        section = self.source.sections.get(program_defaults.SECTION)
        if section is None:
            return
        reader = SectionReader(section, self.problems, self.warnings)
        defaults = program_defaults.read_defaults(reader, self._placeholders())
        for reader in sections.values():
            self.inherited[reader.ini.name] = program_defaults.apply_defaults(reader.ini, defaults)

    def _add_processes(
        self, built: dict[str, ProgramConfig], processes: list[ProgramConfig], reader: SectionReader
    ) -> None:
        for process in processes:
            if process.name in built:
                other = self.programs[process.name].ini.name
                reader.add_problem(f"has a process {process.name!r}, which [{other}] has too; set another process_name")
            self.programs[process.name] = reader
            built[process.name] = process

    def _sections_of_kind(self, kind: str) -> dict[str, SectionReader]:
        """The sections [kind:NAME] by their names."""
        sections = ((name.partition(":"), section) for name, section in self.source.sections.items())
        return {
            name: self._section_reader(section)
            for (its_kind, colon, name), section in sections
            if its_kind == kind and colon
        }

    def _section_reader(self, section: IniSection) -> SectionReader:
        return SectionReader(section, self.problems, self.warnings, own_keys=_OWN_KEYS)

    def _placeholders(self) -> dict[str, str]:
        return common_placeholders(self.source.folder, self.environment)


def start_order(program: ProgramConfig) -> tuple[int, str, int, str]:
    """A sort key: by priority of the group, then of the program."""
    return (program.group_priority, program.group, program.priority, program.process)
