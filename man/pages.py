"""The man pages in this folder, from their texts (`*.md`), the commands' own help and docs/: `make man`.

A line `{{options}}`, `{{actions}}` or `{{keys}}` stands for what the parsers and the models say, and
`{{docs/PAGE.md: HEADING}}` for that part of a page. A test holds the results to their sources. Makers of man pages from
argparse write the options alone: actions are no parsers here, and a page of section 5 has none.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from man.roff import blocks, bold, inline, italic, tagged
from supervisor import __version__
from supervisor.config import options as daemon_options
from supervisor.config.reference import TABLES, shown_default
from supervisor.ctl.actions.table import TABLE
from supervisor.ctl.main import parser as ctl_parser

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
NAMES = ("supervisord.1", "supervisorctl.1", "supervisord.conf.5")


def page(name: str) -> str:
    """The whole man page."""
    title, section = name.rsplit(".", 1)
    lines = [
        f'.\\" Made by `make man` from man/{name}.md, the help of the commands and docs/; do not edit.',
        f'.TH {title.upper()} {section} "" "stepkeeper {__version__}" "stepkeeper"',
        ".nh",
        ".ad l",
    ]
    for part in re.split(r"^(\{\{.+\}\})\n", (FOLDER / f"{name}.md").read_text(), flags=re.MULTILINE):
        lines += _filled(name, part[2:-2]) if part.startswith("{{") else blocks(part)
    return "\n".join(lines) + "\n"


def _filled(name: str, word: str) -> Iterator[str]:
    fillers: dict[str, Callable[[], Iterator[str]]] = {
        "options": lambda: _options(ctl_parser() if name == "supervisorctl.1" else daemon_options.parser()),
        "actions": _actions,
        "keys": _keys,
    }
    if word in fillers:
        return fillers[word]()
    path, heading = word.split(": ")
    return blocks(_part(path, heading))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        tag = ", ".join(map(bold, action.option_strings))
        if action.metavar:
            tag += f" {italic(str(action.metavar))}"
        meaning = str(action.help)
        yield from tagged(tag, inline(f"{meaning[0].upper()}{meaning[1:]}."))


def _actions() -> Iterator[str]:
    """Every action: how it is called, and what docs/supervisorctl.md says of it."""
    for name in sorted(TABLE):
        written = _part("docs/supervisorctl.md", name)
        yield f".SS {name}"
        for usage, meaning in re.findall(r"^\* `(.+?)`: (.+)$", written, re.MULTILINE):
            yield from tagged(bold(usage), inline(meaning))
        yield from blocks(re.sub(r"^\* `.+?`: .+\n", "", written, flags=re.MULTILINE))


def _keys() -> Iterator[str]:
    """Every section with its keys, and what docs/configuration.md says below the table."""
    for heading, model in TABLES:
        before, after = re.split(
            r"(?:^\|.*\n)+", _part("docs/configuration.md", heading), maxsplit=1, flags=re.MULTILINE
        )
        yield f'.SS "{heading}"'
        yield from blocks(before)
        for field, about in model.described_fields():
            if not about.is_internal:
                tag = f"{bold(about.alias or field.name)}, default: {inline(shown_default(field, about))}"
                yield from tagged(tag.replace(", default: required", " (required)"), inline(about.description))
        yield from blocks(after)


def _part(path: str, heading: str) -> str:
    """What stands below that heading, without it, up to the next of its level or above."""
    text = (ROOT / path).read_text()
    start = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    if start is None:
        raise ValueError(f"{path} has no heading '{heading}'")
    end = re.search(rf"^#{{1,{len(start[1])}}} ", text[start.end() :], re.MULTILINE)
    return text[start.end() :][: end.start() if end else None]


def main() -> None:
    for name in NAMES:
        (FOLDER / name).write_text(page(name))


if __name__ == "__main__":
    main()
