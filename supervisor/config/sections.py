"""Which sections a file may have, and what is said of any other."""

from supervisor.config import program_defaults, supervisor_keys
from supervisor.ini.problems import Problem, nearest_word
from supervisor.ini.reader import IniSection

_KINDS = {"supervisord", "unix_http_server", "inet_http_server", "supervisorctl", "include", program_defaults.SECTION}
_NAMED = ("program", "group", "eventlistener")
_SERVERS = ("unix_http_server", "inet_http_server")


def is_of_program(section: str | None) -> bool:
    """Whether it is the name of a section that has programs."""
    return section is not None and section.startswith(("program:", "eventlistener:"))


def check_section(name: str, section: IniSection, problems: list[Problem], warnings: list[Problem]) -> None:
    """Adds a problem or a warning for a section that is none of ours."""
    kind, colon, _ = name.partition(":")
    if name in _KINDS or (kind in _NAMED and colon) or kind in _SERVERS:
        return
    if name == supervisor_keys.STOCK_RPC_SECTION and _is_stock(section):
        return
    if kind in supervisor_keys.IGNORED:
        warnings.append(Problem(section.location, f"[{name:.80}] is ignored: {supervisor_keys.IGNORED[kind]}"))
        return
    remedy = supervisor_keys.SECTIONS.get(kind)
    if remedy is not None:
        text = f"[{name:.80}] is a Supervisor section that stepkeeper does not support; {remedy}"
    elif name in _NAMED:
        text = f"[{name}] has no name; write [{name}:NAME]"
    else:
        meant = nearest_word(kind.lower(), [*_KINDS, *_NAMED])
        if meant is None and not colon:
            text = f"[{name:.80}] is no section that stepkeeper or Supervisor knows, and has no effect"
            warnings.append(Problem(section.location, text))
            return
        is_named = meant in _NAMED
        hint = f"; did you mean [{f'{meant}:' + name.partition(':')[2] if is_named else meant}]?"
        text = f"unknown section [{name:.80}]" + (hint if meant else "; delete it, or put ; before its lines")
    problems.append(Problem(section.location, text))


def _is_stock(section: IniSection) -> bool:
    return {key: entry.value for key, entry in section.entries.items()}.items() <= supervisor_keys.STOCK_RPC.items()
