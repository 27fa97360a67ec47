"""What of a file can be applied although sections of programs in it can't be loaded.

A daemon that runs must not lose a program to a mistake in its section, and a mistake in one section must not keep the
others from being applied. So while a section is broken, its programs keep the configuration that they have, and so do
those whose section is gone: a header that was damaged looks the same. What is left is then compared once more, old
beside new: two jobs in one checkpoint folder, or a program that depends on one that can't be loaded, breaks a section
too.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.config import section_relations
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.load import Config, SectionsBroken, start_order
from supervisor.config.program import EMPTY_COMMAND, NO_COMMAND
from supervisor.config.schema.check import SectionReader
from supervisor.core.fleet import dependencies
from supervisor.ini.problems import Problem
from supervisor.ini.reader import IniSection


@dataclass(frozen=True, slots=True)
class BrokenSection:
    """A section that can't be loaded: `problems` says why, `kept` which programs keep their configuration for it."""

    section: str
    problems: tuple[str, ...]
    kept: tuple[str, ...]


def leave_out_broken(
    error: SectionsBroken, in_use: Mapping[str, ProgramConfig]
) -> tuple[Config, tuple[BrokenSection, ...]]:
    """The configuration with the programs in use in the place of those that can't be loaded, and what was left out.

    Raises `error` if the rest does not fit together either.
    """
    problems: dict[str, list[Problem]] = defaultdict(list)
    for problem in error.problems:
        problems[str(problem.section)].append(problem)
    while True:
        whole = {name: program for name, program in error.config.programs.items() if program.section not in problems}
        kept = {
            name: program
            for name, program in in_use.items()
            if name not in whole and (program.section in problems or program.section not in error.sections)
        }
        conflicts = _conflicts(error, whole, kept)
        if not conflicts:
            break
        if any(conflict.section not in error.sections or conflict.section in problems for conflict in conflicts):
            raise error  # what runs contradicts itself under the new [supervisord]
        for problem in conflicts:
            problems[str(problem.section)].append(problem)
    programs = sorted((whole | kept).values(), key=start_order)
    config = replace(error.config, programs={program.name: program for program in programs})
    return config, tuple(
        BrokenSection(section, tuple(map(str, its_problems)), _names(kept, section))
        for section, its_problems in problems.items()
    )


def keep_commands(
    config: Config, in_use: Mapping[str, ProgramConfig]
) -> tuple[Config, tuple[Problem, ...], tuple[BrokenSection, ...]]:
    """The configuration with the programs in use in the place of those whose command is empty now, and what is wrong.

    Such a section is loaded, as in Supervisor, for the sake of all others; but it must not stop a program that runs.
    """
    kept = {
        name: in_use[name]
        for name, program in config.programs.items()
        if program.command == NO_COMMAND and name in in_use and in_use[name].command != NO_COMMAND
    }
    if not kept:
        return config, (), ()
    sections = dict.fromkeys(config.programs[name].section for name in kept)
    problems = {
        section: next(remark for remark in config.warnings if remark.text.startswith(f"[{section}] {EMPTY_COMMAND}"))
        for section in sections
    }
    programs = {name: kept.get(name, program) for name, program in config.programs.items()}
    broken = tuple(
        BrokenSection(section, (str(problem),), _names(kept, section)) for section, problem in problems.items()
    )
    return replace(config, programs=programs), tuple(problems.values()), broken


def _names(programs: Mapping[str, ProgramConfig], section: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, program in programs.items() if program.section == section))


def _conflicts(
    error: SectionsBroken, whole: Mapping[str, ProgramConfig], kept: Mapping[str, ProgramConfig]
) -> list[Problem]:
    """What the programs of whole sections contradict: each other, or what is kept, which comes first."""
    problems: list[Problem] = []
    together = {**kept, **whole}
    nowhere = IniSection("", next(iter(error.problems)).location)
    written = {
        name: SectionReader(error.sections.get(config.section, replace(nowhere, name=config.section)), problems, [])
        for name, config in together.items()
    }
    needed_names = {needed for config in together.values() for needed in config.needed_names}
    sections = [f"program:{name.partition(':')[0]}" for name in needed_names]  # so none counts as a typing error
    config = error.config
    in_use = section_relations.files_in_use(config.supervisord, config.unix_http_servers, [config.path])
    section_relations.check_across_sections(config.supervisord, together, written, sections, in_use)
    groups = {name: program.group for name, program in together.items()}
    for name, program in whole.items():
        for key, needed in section_relations.needed_by_key(program, written[name]):
            if not dependencies.resolve_name(needed, groups):
                written[name].add_problem(f"{key} names {needed!r:.80}, which can't be loaded", key)
    return problems
