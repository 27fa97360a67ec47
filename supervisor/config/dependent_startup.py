"""What supervisord-dependent-startup's keys in a program's section mean here: the daemon itself waits.

That is a listener for Supervisor which reads such keys from Supervisor's own file, and starts programs with
`autostart = false` once those that they wait for have reached a state:

    dependent_startup = true
    dependent_startup_wait_for = rsyslogd:running prepare:exited

Here these are `autostart = true`, `depends_on = rsyslogd` and `depends_on_end = prepare`. Of several states that would
do, RUNNING is taken, which a program reaches first. The listener may run beside this daemon: it starts only what is
down, and finds nothing.
"""

from collections.abc import Mapping

from supervisor.config.schema.check import SectionReader
from supervisor.config.schema.words import boolean
from supervisor.ini.reader import IniSection

ENABLED = "dependent_startup"
WAIT_FOR = "dependent_startup_wait_for"
INHERIT_PRIORITY = "dependent_startup_inherit_priority"
KEYS = frozenset({ENABLED, WAIT_FOR, INHERIT_PRIORITY})

_READ_AS = {"RUNNING": "depends_on", "EXITED": "depends_on_end"}


def translate_keys(reader: SectionReader, groups: Mapping[str, str]) -> None:
    """Turns them into keys of ours. `groups`: by program, the group of those that are in one."""
    try:
        is_enabled = boolean(reader.texts.get(ENABLED, "false"))
    except ValueError as error:
        reader.add_problem(f"{ENABLED} {error}", ENABLED)
        return
    if not is_enabled:
        return
    reader.texts["autostart"] = "true"
    for word in reader.texts.get(WAIT_FOR, "").split():
        program, _, states = word.partition(":")
        wanted = {state.upper() for state in states.split(",")} if states else {"RUNNING"}
        key = next((key for state, key in _READ_AS.items() if state in wanted), None)
        if key is None:
            text = f"{WAIT_FOR} has {word!r:.80}, but only RUNNING and EXITED can be waited for; write one of them"
            reader.add_problem(text, WAIT_FOR)
            return
        name = f"{groups[program]}:{program}" if program in groups else program
        reader.texts[key] = ", ".join(filter(None, (reader.texts.get(key), name)))


def key_as_written(section: IniSection, key: str) -> str:
    """The key of the file that `key`, one of ours, was read from."""
    return WAIT_FOR if key in _READ_AS.values() and key not in section.entries and WAIT_FOR in section.entries else key
