"""Groups of programs, in Supervisor's ways of naming them: `GROUP:PROCESS`, `GROUP:*`, and a group's name alone."""

from collections.abc import Iterable, Mapping

from supervisor.config import ProgramConfig
from supervisor.runner.fleet.configuration import Changes
from supervisor.runner.fleet.ordering import in_start_order
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.program.runner import Runner


def in_order(runners: Iterable[Runner]) -> list[Runner]:
    """By group, then by process."""
    return sorted(runners, key=lambda runner: (runner.config.group, runner.config.process))


def find(programs: Programs, name: str) -> Runner | None:
    """The program called `GROUP:PROCESS`, or `PROCESS` where the two are the same."""
    group, colon, process = name.partition(":")
    return programs.runners.get(group if colon and process == group else name)


def is_group(name: str) -> bool:
    """Whether the name asks for a whole group: `digits:*` or `digits:`."""
    return name.endswith((":", ":*"))


def group_of(name: str) -> str:
    """The group's name in `digits:*`, `digits:` or `digits`."""
    return name.removesuffix("*").removesuffix(":") if is_group(name) else name


def members(programs: Programs, group: str) -> list[Runner]:
    """What is in use of a group, in the order of start; nothing if there is no such group."""
    return in_start_order(runner for runner in programs.runners.values() if runner.config.group == group)


def configured(programs: Mapping[str, ProgramConfig], group: str) -> list[str]:
    """The names of a group's programs in a configuration."""
    return [name for name, program in programs.items() if program.group == group]


def changed(programs: Programs, changes: Changes) -> tuple[list[str], list[str], list[str]]:
    """What changes for whole groups: names of those that are added, changed, removed."""
    used = {runner.config.group for runner in programs.runners.values()}
    wanted = {program.group for program in programs.configuration.programs.values()}
    touched = {programs.configuration.programs[name].group for name in (*changes.added, *changes.changed)}
    touched |= {programs.runners[name].config.group for name in (*changes.changed, *changes.removed)}
    return sorted(wanted - used), sorted(touched & used & wanted), sorted(used - wanted)
