"""What programs and groups may be called, and which programs the sections [group:NAME] keep together."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.config.keys.groups import GroupConfig
from supervisor.config.schema.check import SectionReader
from supervisor.ini.problems import nearest_word

MAX_NAME_BYTES = 100  # it becomes part of file names, which end at 255
RESERVED = ("all", "supervisord")
"""Names that supervisorctl uses for something else."""

_NAME = re.compile(r"[^\s:/*.-][^\s:/*]*")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The group that processes belong to. `priority`: None if the program decides when it starts.

    `is_pool`: its processes are event listeners.
    """

    name: str
    priority: int | None = None
    is_pool: bool = False


def check_name(name: str, reader: SectionReader, key: str | None = None) -> None:
    """Adds a problem for a name that can't be used with supervisorctl or in the name of a file."""
    if name in RESERVED:
        reader.add_problem(f"can't have the name {name!r}, which supervisorctl uses itself; choose another name", key)
    elif not _NAME.fullmatch(name) or not name.isprintable() or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        reader.add_problem(
            f"can't have the name {name!r:.120}; choose one of 1 to {MAX_NAME_BYTES} bytes without space, ':', '/' or "
            f"'*' that does not begin with '.' or '-'",
            key,
        )


def build_groups(
    sections: Mapping[str, SectionReader], programs: Iterable[str], known: Mapping[str, str]
) -> dict[str, ProcessGroup]:
    """By the name of a program: its group, for those that are in one."""
    members: dict[str, ProcessGroup] = {}
    programs = set(programs)
    for name, reader in sections.items():
        check_name(name, reader)
        keys = set(GroupConfig.ini_keys())
        reader.report_unknown_keys(keys, {})
        reader.expand_values(keys, known)
        if reader.texts.get("programs") == "":  # as a template leaves it that has found none
            reader.add_remark("programs is empty, so there is no such group", "programs")
            continue
        group = reader.build_model(GroupConfig, {})
        if name in programs and (group is None or name not in group.programs):
            reader.add_problem(
                f"has the same name as [program:{name}], which makes a group of that name; choose another name"
            )
        for program in group.programs if group else ():
            if program not in programs:
                meant = nearest_word(program, programs)
                hint = f"did you mean {meant!r}?" if meant else f"add a section [program:{program:.80}]"
                reader.add_problem(f"programs names {program!r:.80}, which does not exist; {hint}", "programs")
            elif program in members and members[program].name == name:
                reader.add_remark(f"programs names {program!r} twice, which is the same as once", "programs")
            elif program in members:
                text = f"programs names {program!r}, which is already in [group:{members[program].name}]"
                reader.add_problem(f"{text}; delete it from one of them", "programs")
            else:
                members[program] = ProcessGroup(name, group.priority if group else None)
    return members
