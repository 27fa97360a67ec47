"""[group:NAME] sections: which program is in which group."""

from collections.abc import Iterable, Mapping

from supervisor.config.keys.program import GroupConfig
from supervisor.config.program import Group, check_name
from supervisor.config.schema.check import Checked
from supervisor.ini.problems import nearest


def build_groups(
    sections: Mapping[str, Checked], programs: Iterable[str], known: Mapping[str, str]
) -> dict[str, Group]:
    """The group of every program that is in one, by the program's name; complains about the rest."""
    members: dict[str, Group] = {}
    programs = set(programs)
    for name, checked in sections.items():
        check_name(name, checked)
        keys = set(GroupConfig.ini_keys())
        checked.refuse_unknown(keys, {})
        checked.expand(keys, known)
        group = checked.build(GroupConfig, {})
        if name in programs and (group is None or name not in group.programs):
            checked.complain(f"has the name of [program:{name}], which is a group of its own; choose another name")
        for program in group.programs if group else ():
            if program not in programs:
                meant = nearest(program, programs)
                hint = f"did you mean {meant!r}?" if meant else f"add a section [program:{program:.80}]"
                checked.complain(f"programs names {program!r:.80}, which there is no section for; {hint}", "programs")
            elif program in members:
                text = f"programs names {program!r}, which is in [group:{members[program].name}] already"
                checked.complain(f"{text}; take it out of one of them", "programs")
            else:
                members[program] = Group(name, group.priority if group else None)
    return members
