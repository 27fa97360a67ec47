"""Which programs the names on a command line mean."""

from typing import Any

ALL = "all"


def program_of(name: str) -> str:
    """The program's name in Supervisor's ways of writing it: every program is a group of its own."""
    group, colon, member = name.partition(":")
    return group if colon and member in ("", "*", group) else name


def is_group(name: str) -> bool:
    """Whether the name asks for a whole group: `digits:*` or `digits:`."""
    return name.endswith((":", ":*"))


def unknown(name: str) -> str:
    """The line for a name that nothing has."""
    if is_group(name):
        return f"{program_of(name)}: ERROR (no such group)"
    return f"{name}: ERROR (no such process)"


def chosen(names: list[str], programs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The programs that `names` mean, in that order (none or `all`: every one), and the names that nothing has."""
    if not names or ALL in names:
        return programs, []
    by_name = {program["name"]: program for program in programs}
    found = [by_name[program_of(name)] for name in names if program_of(name) in by_name]
    return found, [name for name in names if program_of(name) not in by_name]
