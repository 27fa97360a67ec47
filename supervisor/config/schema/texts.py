"""Names and texts with a syntax: commands, variables, addresses, paths, users. Errors are as in `quantities.py`."""

import grp
import os
import pwd
import re
import shlex
import signal
from functools import lru_cache
from typing import Literal

from supervisor.ini.problems import nearest_word
from supervisor.protocol import numbers

MAX_PREFIX = 200  # characters before each line of a log

_COMMENTS = "what follows ; or # after white space is a comment, also in quotation marks"

_ENTRYPOINT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_VARIABLE = re.compile(
    r"""\s*(?P<key>[^\s=,"']+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s,"']*))\s*"""
)


@lru_cache(maxsize=64)  # the processes of one program mostly have one and the same, which is then there once
def command(text: str) -> tuple[str, ...]:
    """A command line split as a shell would split it; no shell runs it."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        what = str(error).lower()
        remedy = "take the \\ at its end away" if "escaped" in what else f"close the quotation mark ({_COMMENTS})"
        raise ValueError(f"can't be split into words: {what}; {remedy}") from error
    if not words or not words[0]:
        raise ValueError("is empty; write the program to run and its arguments")
    return words


def environment(text: str) -> dict[str, str]:
    """`KEY="value",OTHER='value'`; quotes may be left out where a value has no space and no comma."""
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _VARIABLE.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            rest = text[position:].strip()
            raise ValueError(
                f'can\'t be read from {rest!r:.40} on; write KEY="value",OTHER="value" and %% for a % ({_COMMENTS})'
            )
        variables[match["key"]] = next(value for value in match.group("double", "single", "bare") if value is not None)
        position = match.end() + 1
    return variables


def entrypoint(text: str) -> str:
    """`package.module:function`."""
    if not _ENTRYPOINT.fullmatch(text):
        hint = f"for a script write 'command = python {text:.60}'" if text.endswith(".py") else "write module:function"
        raise ValueError(f"is {text!r:.80}, not a module and a function in it such as examples.digits:train; {hint}")
    return text


def line_prefix(text: str) -> str:
    """A text with `{time}`, `{program}`, `{attempt}` and `{channel}` in it; empty for `none`."""
    if text.lower() == "none":
        return ""
    left = re.sub(r"\{(time|program|attempt|channel)\}", "", text)
    if "{" in left or "}" in left:
        raise ValueError(
            f"is {text!r:.80}; what can stand in braces is {{time}}, {{program}}, {{attempt}} or {{channel}}"
        )
    if len(text) > MAX_PREFIX or not text.isprintable():
        raise ValueError(f"is {text!r:.80}; write at most {MAX_PREFIX} printable characters")
    return text


def best_rule(text: str) -> tuple[Literal["min", "max"], str]:
    """`min loss` or `max accuracy` as (mode, metric)."""
    match text.split():
        case ["min", metric]:
            return "min", metric
        case ["max", metric]:
            return "max", metric
    raise ValueError(f"is {text!r:.80}, not a rule; write for example 'min loss' or 'max accuracy'")


def name_list(text: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("is empty; write names, separated by commas")
    return names


def address(text: str) -> tuple[str | None, int]:
    """`HOST:PORT`, `*:PORT` or `PORT`, both of which are every interface; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = numbers.whole_number(port, 1, 65535)
    if number is None or " " in host:
        raise ValueError(f"is {text!r:.80}; write host:port, such as 127.0.0.1:9001, with a port from 1 to 65535")
    return (None if host in ("", "*") else host.lower(), number)


def absolute_path(text: str, folder: str) -> str:
    """An absolute path: `~` is the home folder, and what is relative starts from `folder`."""
    if not text:
        raise ValueError("is empty; write a path, or delete the line")
    if "\0" in text or "\n" in text:
        raise ValueError(f"is {text!r:.80}, which is no path: there is a line break in it")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        raise ValueError(f"is {text:.80}, and the quotation marks would be part of the path; delete them")
    return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))  # noqa: PTH100, PTH111, PTH118 - text


def signal_of(text: str) -> signal.Signals:
    """A signal by its name, with or without SIG, or by its number."""
    name = text.upper()
    try:
        if name.isascii() and name.isdecimal():
            return signal.Signals(int(name[:10]))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        meant = nearest_word(f"SIG{name.removeprefix('SIG')}", [signal_.name for signal_ in signal.Signals])
        hint = f"did you mean {meant[3:]}?" if meant else "write for example TERM, INT, HUP, QUIT or USR1"
        raise ValueError(f"is {text!r:.80}, which is no signal; {hint}") from None


def user(text: str) -> str:
    """The name or number of a user that exists."""
    _entry_of_user(text)
    return text


def users(text: str) -> frozenset[int]:
    """Users that exist, by name or number, separated by commas; as numbers."""
    return frozenset(_entry_of_user(name.strip()).pw_uid for name in text.split(",") if name.strip())


def owner(text: str) -> tuple[int, int]:
    """`user` or `user:group` as numbers; the group is -1, leave it as it is, if none is named."""
    name, colon, group = text.partition(":")
    uid = _entry_of_user(name).pw_uid
    if not colon:
        return (uid, -1)
    try:
        return (uid, (grp.getgrgid(int(group)) if group.isdecimal() else grp.getgrnam(group)).gr_gid)
    except (KeyError, OverflowError, ValueError):
        raise ValueError(f"names the group {group!r:.80}, which does not exist; create it, or name another") from None


def _entry_of_user(text: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except (KeyError, OverflowError, ValueError):
        raise ValueError(f"names the user {text!r:.80}, who does not exist; create the user, or name another") from None
