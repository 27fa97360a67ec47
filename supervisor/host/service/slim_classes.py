"""Gives the dataclasses of the daemon methods that share their code, which saves 2.7 of 40 MiB.

Python compiles `__repr__`, `__eq__`, `__hash__` and the pair that refuses changes of frozen ones for each of some 480
classes. That pair also refers to the class, and so keeps the one alive that `slots=True` has replaced. Here each of the
methods is compiled once, and knows its class' fields. From Python 3.13 on (3.12 for `__eq__`) dataclasses are made in
another way, and nothing is changed here. Both do the same, so a process without this module behaves alike.
"""

import dataclasses
import functools
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]
Record = dataclasses.Field[Any]


class _Frozen:
    """A subclass that is no dataclass may have other attributes: that is Python's rule, too."""

    def __setattr__(self, name: str, value: object) -> None:
        if _refuses(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if _refuses(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)


def _refuses(record: object, name: str) -> bool:
    return "__dataclass_params__" in vars(type(record)) or name in record.__dataclass_fields__  # type: ignore[attr-defined]


_shown: set[tuple[int, int]] = set()
"""The records that `repr` is in the middle of, with the thread: one that contains itself is shown as dots there."""


def _repr_of(fields: list[Record], _: object) -> Method:
    names = tuple(field.name for field in fields)

    def __repr__(self: object) -> str:
        key = id(self), threading.get_ident()
        if key in _shown:
            return "..."
        _shown.add(key)
        try:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        finally:
            _shown.discard(key)
        return f"{type(self).__qualname__}({values})"

    return __repr__


@functools.cache
def _values_of(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    """What reads these attributes into a tuple. Of one name it would be the value itself, so that one is read twice."""
    return operator.attrgetter(*(names if len(names) > 1 else names * 2)) if names else lambda _: ()


def _comparison(name: str, sign: str, own: str, *arguments: Any, **named: Any) -> Method:
    """`own` is such a text as `(self.step,self.path,)`."""
    if name != "__eq__":
        return _pythons_comparison(name, sign, own, *arguments, **named)  # type: ignore[no-any-return]
    values = _values_of(tuple(part.removeprefix("self.") for part in own.strip("()").split(",") if part))

    def __eq__(self: object, other: object) -> bool:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hash_of(fields: list[Record], _: object) -> Method:
    values = _values_of(tuple(field.name for field in fields))

    def __hash__(self: object) -> int:
        return hash(values(self))

    return __hash__


if sys.version_info < (3, 13):
    pair = (_Frozen.__setattr__, _Frozen.__delattr__)
    _pythons_comparison = dataclasses._cmp_fn  # type: ignore[attr-defined]
    dataclasses._frozen_get_del_attr = lambda *_: pair  # type: ignore[attr-defined]
    dataclasses._repr_fn = _repr_of  # type: ignore[attr-defined]
    dataclasses._cmp_fn = _comparison  # type: ignore[attr-defined]
    dataclasses._hash_fn = _hash_of  # type: ignore[attr-defined]
