"""The lists of limits in docs/control-pipe.md: `python -m supervisor.protocol.wire.reference` prints them."""

import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any

from supervisor.protocol.wire.messages import TYPES, FromWorker


def lists() -> str:
    """Both lists as Markdown: what each field may hold, and how often each message may come.

    A field that has the same limits in all messages is named without them, unless a message has its name.
    """
    of_fields: dict[str, dict[str, list[str]]] = {}
    rates: dict[str, list[str]] = {}
    for name, kind in TYPES.items():
        if kind not in typing.get_args(FromWorker):
            continue
        rates.setdefault(str(kind.rate), []).append(f"`{name}`")  # type: ignore[union-attr]
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            words = "; ".join(_limits(hints[field.name]))
            if words and field.name != "attempt":
                of_fields.setdefault(field.name, {}).setdefault(words, []).append(name)
    limits: dict[str, list[str]] = {}
    for field_name, of_field in of_fields.items():
        for words, names in of_field.items():
            is_clear = len(of_field) == 1 and field_name not in TYPES
            shown = [f"`{field_name}`"] if is_clear else [f"`{name}.{field_name}`" for name in names]
            limits.setdefault(words, []).extend(shown)
    return "\n".join([*_list(limits), "", *_list(rates), ""])


def _list(rows: Mapping[str, list[str]]) -> Iterator[str]:
    """The lines of a list that says what holds for which names."""
    yield from (f"- {words}: {', '.join(names)}" for words, names in rows.items())


def _limits(wanted: Any) -> Iterator[str]:
    """The limits of a field in words, from outside in: those of the list, then of what is in it."""
    if typing.get_origin(wanted) is Annotated:
        inner = wanted.__origin__
        yield from (str(limit) for limit in wanted.__metadata__)
        if typing.get_origin(inner) is tuple:
            yield from (f"each {words}" for words in _limits(typing.get_args(inner)[0]))
        elif typing.get_origin(inner) is Mapping:
            key, value = typing.get_args(inner)
            yield from (f"each name {words}" for words in _limits(key))
            yield from (f"each value {words}" for words in _limits(value))
    elif typing.get_origin(wanted) in (types.UnionType, typing.Union):
        for member in typing.get_args(wanted):
            yield from _limits(member)


if __name__ == "__main__":
    sys.stdout.write(lists())
