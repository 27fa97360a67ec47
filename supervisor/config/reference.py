"""The tables of docs/configuration.md, from the models; `python -m supervisor.config.reference` prints them.

A test holds the page to them.
"""

import re
from dataclasses import Field
from typing import Any

from supervisor.config import supervisor_keys
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.groups import GroupConfig, ListenerConfig, ProcessesConfig
from supervisor.config.keys.hooks import HookKeys
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.schema.section import KeyInfo, SectionModel, is_required

TABLES: tuple[tuple[str, type[SectionModel]], ...] = (
    ("[supervisord]", SupervisordConfig),
    ("[program:NAME]", ProgramConfig),
    ("[program:NAME], training jobs", JobConfig),
    ("[program:NAME], several processes", ProcessesConfig),
    ("[group:NAME]", GroupConfig),
    ("[eventlistener:NAME]", ListenerConfig),
    ("[unix_http_server]", UnixServerConfig),
    ("[inet_http_server]", InetServerConfig),
    ("[supervisorctl]", CtlConfig),
)
"""Heading of each table, and the model it shows."""

_FILE = re.compile(r"\b(docs|deploy)(/[\w/-]+\.\w+)")
"""A file of the repository, as descriptions name it for man pages and the sample file."""
_HOOKS = {field.name for field, _ in HookKeys.described_fields()}


def key_table(model: type[SectionModel]) -> str:
    """A Markdown table: key, default, meaning.

    It leaves out the hooks, which are in docs/hooks.md, and a program's keys for standard error, which are like those
    for standard output.
    """
    rows = [
        f"| `{about.alias or field.name}` | {shown_default(field, about)} | {_linked(about.description)} |"
        for field, about in model.described_fields()
        if not about.is_internal and field.name not in _HOOKS and not field.name.startswith("stderr_")
    ]
    return "\n".join(["| Key | Default | Meaning |", "|---|---|---|", *rows])


def _linked(text: str) -> str:
    """The text with links from docs/configuration.md to the files that it names."""
    return _FILE.sub(lambda match: _link(match[1], match[2]), text)


def _link(folder: str, rest: str) -> str:
    return f"[{rest[1:]}]({rest[1:]})" if folder == "docs" else f"[{folder}{rest}](../{folder}{rest})"


def shown_default(field: Field[Any], about: KeyInfo) -> str:
    """What holds if the key is left out, as one would write it."""
    if about.shown:
        return about.shown
    if is_required(field):
        return "required"
    value: Any = field.default
    if isinstance(value, bool):
        return str(value).lower()
    if field.name.endswith("maxbytes"):
        return f"{value >> 20}MB"
    if field.name in ("umask", "chmod"):
        return f"{value:04o}" if field.name == "chmod" else f"{value:03o}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unsupported_table() -> str:
    """A Markdown table of what Supervisor has and stepkeeper refuses: where, the value that is accepted, the remedy."""
    sections = (
        ("[program:NAME]", supervisor_keys.PROGRAM),
        ("[supervisord]", supervisor_keys.SUPERVISORD),
    )
    rows = [
        f"| `{key}` in {section} | {_accepted(known)} | {known.remedy} |"
        for section, keys in sections
        for key, known in keys.items()
    ]
    rows += [f"| section `[{kind}]` | none | {remedy} |" for kind, remedy in supervisor_keys.SECTIONS.items()]
    return "\n".join(["| Supervisor's | Accepted value | Instead |", "|---|---|---|", *rows])


def _accepted(key: supervisor_keys.Unsupported) -> str:
    """Without the other words for true and false."""
    if key.is_ignorable:
        return "any"
    harmless = (*key.harmless, *key.ignored)
    shown = [word for word in harmless if word in ("true", "false")] or list(harmless[:1])
    return " or ".join(f"`{word}`" for word in shown) or "none"


def all_tables() -> dict[str, str]:
    """Every table under its heading."""
    return {
        **{heading: key_table(model) for heading, model in TABLES},
        "What Supervisor has besides": unsupported_table(),
    }


if __name__ == "__main__":
    for heading, text in all_tables().items():
        print(f"### {heading}\n\n{text}\n")  # noqa: T201 - for whoever updates the page
