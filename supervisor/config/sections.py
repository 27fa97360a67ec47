"""Which sections a file may have, what is said of any other, and of lines that don't say what their author meant."""

import re
from collections.abc import Set
from pathlib import Path

from supervisor.config import program_defaults, supervisor_keys
from supervisor.ini.problems import Problem, nearest_word
from supervisor.ini.reader import IniSection, section_name

_KINDS = {"supervisord", "unix_http_server", "inet_http_server", "supervisorctl", "include", program_defaults.SECTION}
_NAMED = ("program", "group", "eventlistener")
_SERVERS = ("unix_http_server", "inet_http_server")
_KEY = re.compile(r"([a-z_]+)\s*[=:]", re.IGNORECASE)


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
        word, _, of = name.partition(":" if colon else " ")
        meant = word.lower() if word.lower() in _NAMED else nearest_word(kind.lower(), [*_KINDS, *_NAMED])
        if meant is None and not colon:
            text = f"[{name:.80}] is no section that stepkeeper or Supervisor knows, and has no effect"
            warnings.append(Problem(section.location, text))
            return
        right = f"{meant}:{of.strip() or 'NAME'}" if meant in _NAMED else meant
        text = f"unknown section [{name:.80}]; "
        text += f"did you mean [{right}]?" if meant else "delete it, or put ; before its lines"
    problems.append(Problem(section.location, text))


def check_lines(
    section: IniSection, main: Path, known: Set[str], own: Set[str], problems: list[Problem], warnings: list[Problem]
) -> None:
    """Adds what lines of a section do that nobody means: they go on with the value above, or replace an earlier one.

    `main`: the file that includes the others. `known`: the keys of programs; `own`: those that Supervisor does not
    have. A section with one of these was written for this daemon, so a second one of its name is a problem; elsewhere
    it is a remark, as Supervisor takes it.
    """
    place = f"[{section.name:.80}]"
    for key, entry in [*section.replaced, *section.entries.items()]:
        for location, line in entry.continued:
            goes_on = f"{place} {line!r:.80} begins with white space, so it goes on with the value of {key} above it"
            header, named = section_name(line), _KEY.match(line)
            if header is not None and _is_header(header):
                problems.append(Problem(location, f"{goes_on}; take the white space out", section.name))
            elif named is not None and key != "environment" and named[1].lower() in known:
                warnings.append(Problem(location, f"{goes_on}; take the white space out if it is a key of its own"))
    is_ours = is_of_program(section.name) and not own.isdisjoint(section.entries)
    for key, earlier in section.replaced:
        last = section.entries[key]
        if earlier.value == last.value:
            continue
        if earlier.location.file != last.location.file:
            if earlier.location.file != main and is_of_program(section.name):  # a copied file, perhaps
                text = f"{place} {key} is set in {earlier.location.file}:{earlier.location.line} too: this one holds"
                remedy = "give the section a name of its own if it is meant for another program"
                warnings.append(Problem(last.location, f"{text}; {remedy}"))
            continue  # an included file may well replace what the main file says
        first, second = earlier.header, last.header
        is_copy = first != second
        if is_ours and first is not None and second is not None and is_copy:
            text = f"{place} stands in line {first.line} too, with another {key}"
            problems.append(
                Problem(second, f"{text}; give one of them a name of its own, or take it out", section.name)
            )
            return
        if is_ours or is_copy:
            text = f"{place} {key} is set twice: this replaces line {earlier.location.line}; take one of them out"
            warnings.append(Problem(last.location, text))


def _is_header(name: str) -> bool:
    """Whether a line in brackets with this name can only be the header of a section."""
    kind, colon, _ = name.partition(":")
    return name in _KINDS or (bool(colon) and (kind in _NAMED or kind in _SERVERS))


def _is_stock(section: IniSection) -> bool:
    return {key: entry.value for key, entry in section.entries.items()}.items() <= supervisor_keys.STOCK_RPC.items()
