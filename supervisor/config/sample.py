"""The command `echo_supervisord_conf`: a configuration file that says what every key means and does.

It is made of the same models as the tables of docs/configuration.md, so no key is missing and no default is wrong.
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence

from supervisor.config.reference import TABLES, shown_default
from supervisor.config.schema.section import SectionModel

_WIDTH = 100
_HEAD = """\
; Configuration of supervisord. A line that begins with ; is a comment; each key stands there with its default.
; Relative paths start from the folder of this file. %(ENV_HOME)s is an environment variable, %(here)s that folder.
; Sizes are bytes or have KB, MB or GB; lengths of time are seconds or have a unit, as in 10 minutes.
; This file can be used as it is: supervisord -c FILE; then supervisorctl -c FILE status
"""
_ACTIVE = {
    "[supervisord]": "",
    "[unix_http_server]": "file = supervisor.sock\n",
    "[supervisorctl]": "serverurl = unix://%(here)s/supervisor.sock\n",
}
"""The sections that the file really has, and their lines; all others are comments."""
_NO_VALUES = ("none", "required", "empty")
"""Words for a default that can't be written into the file."""

_INCLUDE = """\
; Keys that hold for every program that does not set them itself.
;[program-defaults]
;stopwaitsecs = 60

; Programs may have files of their own.
;[include]
;files = conf.d/*.conf
"""


def sample() -> str:
    """The whole text."""
    sections: dict[str, list[str]] = {}
    for heading, model in TABLES:
        header, _, part = heading.partition(", ")
        sections.setdefault(header, []).append("\n".join(_section(model, part)))
    texts = [
        f"{header}\n{_ACTIVE[header]}" + "\n".join(parts)
        if header in _ACTIVE
        else f";{header.replace('NAME', 'name')}\n" + "\n".join(parts)
        for header, parts in sections.items()
    ]
    return "\n\n".join([_HEAD, *texts, _INCLUDE])


def _section(model: type[SectionModel], part: str) -> Iterator[str]:
    if part:
        yield f"; --- {part} ---"
    for field, about in model.described_fields():
        if about.is_internal:
            continue
        default, meaning = shown_default(field, about).replace("`", ""), about.description.replace("`", "")
        is_written = " " not in default and default not in _NO_VALUES
        text = meaning if is_written else f"{meaning} Default: {default}."
        yield from textwrap.wrap(text, _WIDTH, initial_indent="; ", subsequent_indent="; ")
        yield f";{about.alias or field.name} = {default if is_written else ''}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words:
        is_help = words[0] in ("-h", "--help")
        print("usage: echo_supervisord_conf > supervisord.conf", file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    sys.stdout.write(sample())
    return 0
