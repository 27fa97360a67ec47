"""Which programs the names on a command line mean."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

ALL = "all"
WILDCARDS = frozenset("*?[")

Program = dict[str, Any]


def program_of(name: str) -> str:
    """The name as the daemon knows it: `digits:digits` is `digits`."""
    group, colon, process = name.partition(":")
    return group if colon and process == group else name


def is_group(name: str) -> bool:
    """Whether the name asks for a whole group: `digits:*` or `digits:`."""
    return name.endswith((":", ":*"))


def is_many(name: str) -> bool:
    """Whether the name stands for any number of programs: `all`, a group, or a pattern such as `web*`."""
    return name == ALL or is_group(name) or not WILDCARDS.isdisjoint(name)


def group_of(name: str) -> str:
    """The group that such a name asks for."""
    return name.removesuffix("*").removesuffix(":")


def unknown_line(name: str) -> str:
    """The line for a name that no program or group has."""
    if is_group(name):
        return f"{group_of(name)}: ERROR (no such group)"
    return f"{name}: ERROR (no such process)"


def select_programs(names: list[str], programs: list[Program]) -> tuple[list[Program], list[str]]:
    """The programs that `names` mean, in that order (no names or `all`: every program), and the unknown names.

    `*`, `?` and `[abc]` in a name or in a group's name are patterns, as in file names, unless something has that very
    name.
    """
    if not names or ALL in names:
        return programs, []
    meant = {name: _match(name, programs) for name in names}
    return [program for name in names for program in meant[name]], [name for name in names if not meant[name]]


def _match(name: str, programs: list[Program]) -> list[Program]:
    key, pattern = ("group", group_of(name)) if is_group(name) else ("name", program_of(name))
    exact = [program for program in programs if program[key] == pattern]
    return exact or [program for program in programs if fnmatchcase(program[key], pattern)]


def by_priority(programs: Iterable[Program]) -> list[Program]:
    """The programs in start order: by priority of the group, then of the program."""

    def place(program: Program) -> tuple[int, str, int, str]:
        return program["group_priority"], program["group"], program["priority"], program["process"]

    return sorted(programs, key=place)


def completions(programs: Iterable[Program]) -> list[str]:
    """What can be written where programs are named: each program, each group of several programs, and `all`."""
    listed = list(programs)
    groups = dict.fromkeys(f"{program['group']}:*" for program in listed if program["name"] != program["group"])
    return [*(program["name"] for program in listed), *groups, ALL]
