"""Words that a key may have: of a closed set, or true and false. Errors are as in `quantities.py`."""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import EnumType, StrEnum
from typing import Any, Literal, get_args

from supervisor.ini.problems import nearest_word

LogLevel = Literal["critical", "error", "warn", "info", "debug", "trace", "blather"]
LogFormat = Literal["json", "supervisor"]
Engine = Literal["alone", "slurm", "jobset"]
OnGpuFault = Literal["act", "report"]

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def one_of(kind: Any, others: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Reads a word of a StrEnum or of a Literal, in capitals or not. `others`: further ways to write some of them."""
    known = {str(word): word for word in (kind if isinstance(kind, EnumType) else get_args(kind))}
    written = known | {other: known[word] for other, word in (others or {}).items()}

    def parse(text: str) -> Any:
        if text.lower() in written:
            return written[text.lower()]
        meant = nearest_word(text.lower(), known)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise ValueError(f"is {text!r:.80}; it can be {_either(known)}{hint}")

    return parse


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def boolean(text: str) -> bool:
    """`true`, `yes`, `on` or `1`; `false`, `no`, `off` or `0`."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"is {text!r:.80}, which is neither true nor false")


def some_of(kind: type[StrEnum]) -> Callable[[str], tuple[Any, ...]]:
    """Reads `none`, or words of a StrEnum with commas between them."""
    known = {str(word): word for word in kind}

    def parse(text: str) -> tuple[Any, ...]:
        words = () if text.lower() == "none" else tuple(dict.fromkeys(word.strip() for word in text.lower().split(",")))
        if not known.keys() >= set(words):
            raise ValueError(f"is {text!r:.80}; it can be none, {', '.join(known)}, or '{', '.join(known)}'")
        return tuple(known[word] for word in words)

    return parse


def notices(text: str) -> Literal["auto"] | tuple[str, ...]:
    """`auto`, `off` (none), or names of sources with commas between them."""
    if text.lower() in ("auto", "off"):
        return "auto" if text.lower() == "auto" else ()
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if not all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in names) or {"auto", "off"} & set(names):
        raise ValueError(f"is {text!r:.80}; it can be auto, off, or names of sources, such as 'aws, file'")
    return names
