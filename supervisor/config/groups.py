"""[group:NAME] sections: which program is in which group."""

from collections.abc import Iterable, Mapping

from supervisor.config.keys.program import GroupConfig
from supervisor.config.program import ProcessGroup, check_name
from supervisor.config.schema.check import SectionReader
from supervisor.ini.problems import nearest_word


def build_groups(
    sections: Mapping[str, SectionReader], programs: Iterable[str], known: Mapping[str, str]
) -> dict[str, ProcessGroup]:
    """The group of every program that is in one, by the program's name; complains about the rest."""
    members: dict[str, ProcessGroup] = {}
    programs = set(programs)
    for name, checked in sections.items():
        check_name(name, checked)
        keys = set(GroupConfig.ini_keys())
        checked.report_unknown_keys(keys, {})
        checked.expand_values(keys, known)
        group = checked.build_model(GroupConfig, {})
        if name in programs and (group is None or name not in group.programs):
            checked.add_problem(f"has the name of [program:{name}], which is a group of its own; choose another name")
        for program in group.programs if group else ():
            if program not in programs:
                meant = nearest_word(program, programs)
                hint = f"did you mean {meant!r}?" if meant else f"add a section [program:{program:.80}]"
                checked.add_problem(
                    f"programs names {program!r:.80}, which there is no section for; {hint}", "programs"
                )
            elif program in members:
                text = f"programs names {program!r}, which is in [group:{members[program].name}] already"
                checked.add_problem(f"{text}; take it out of one of them", "programs")
            else:
                members[program] = ProcessGroup(name, group.priority if group else None)
    return members
