"""One written value to one typed value. Every function raises ValueError, whose text goes on after the key's name."""

import grp
import math
import os
import pwd
import re
import resource
import shlex
import signal
from functools import lru_cache
from typing import Literal, get_args

from supervisor.ini.problems import nearest_word
from supervisor.protocol.wire.launch import (
    ON_NAN,
    ON_REPLAY_DIFFERENCE,
    STRATEGIES,
    UNITS,
    Interval,
    OnNan,
    OnReplayDifference,
    Strategy,
    parse_interval,
)

MAX_DURATION_S = 366 * 86400.0  # a year: longer is a typing error, and timers are not made for it
MAX_SIZE_BYTES = 1 << 50  # larger than any disk it could lie on
MAX_COUNT = 1_000_000
MAX_PRIORITY = (1 << 31) - 1  # what XML-RPC can tell
MAX_PREFIX = 200  # characters before each line of a log
MAX_LIMIT = 1 << 30  # the kernel's own bounds of what can be counted are lower
UNLIMITED = resource.RLIM_INFINITY

LogLevel = Literal["critical", "error", "warn", "info", "debug", "trace", "blather"]
AutoRestart = Literal["true", "false", "unexpected"]
Engine = Literal["alone", "slurm", "jobset"]

_LEVELS: tuple[LogLevel, ...] = ("critical", "error", "warn", "info", "debug", "trace", "blather")
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SIZE = re.compile(r"(\d{1,15})\s*([a-z]*)", re.IGNORECASE)
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE)
_VARIABLE = re.compile(
    r"""\s*(?P<key>[^\s=,"']+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s,"']*))\s*"""
)
_ENTRYPOINT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def boolean(text: str) -> bool:
    """`true`, `yes`, `on` or `1`; `false`, `no`, `off` or `0`."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"is {text!r:.80}, which is neither true nor false")


def autorestart(text: str) -> AutoRestart:
    """A boolean, or `unexpected`."""
    if text.lower() == "unexpected":
        return "unexpected"
    try:
        return "true" if boolean(text) else "false"
    except ValueError as error:
        raise ValueError(f"is {text!r:.80}; it can be true, false or unexpected") from error


def standby(text: str) -> Literal["auto", "off", "warm", "hot"]:
    """`auto`, `off`, `warm` or `hot`."""
    match text.lower():
        case "auto":
            return "auto"
        case "off" | "false" | "none":
            return "off"
        case "warm":
            return "warm"
        case "hot":
            return "hot"
    raise ValueError(f"is {text!r:.80}; it can be auto, off, warm or hot")


def on_notice(text: str) -> Literal["stop", "train"]:
    """`stop` or `train`."""
    if text.lower() == "stop":
        return "stop"
    if text.lower() == "train":
        return "train"
    raise ValueError(f"is {text!r:.80}; it can be stop or train")


def durable(text: str) -> Literal["local", "remote"]:
    """`local` or `remote`."""
    if text.lower() == "local":
        return "local"
    if text.lower() == "remote":
        return "remote"
    raise ValueError(f"is {text!r:.80}; it can be local or remote")


def engine(text: str) -> Engine:
    """`alone`, `slurm` or `jobset`."""
    for each in get_args(Engine):
        if text.lower() == each:
            return each  # type: ignore[no-any-return]
    raise ValueError(f"is {text!r:.80}; it can be alone, slurm or jobset")


def exit_on(text: str) -> tuple[str, ...]:
    """`none`, `fatal`, `done`, or the last two with a comma between them."""
    words = () if text.lower() == "none" else tuple(dict.fromkeys(each.strip() for each in text.lower().split(",")))
    if not set(words) <= {"fatal", "done"}:
        raise ValueError(f"is {text!r:.80}; it can be none, fatal, done, or 'fatal, done'")
    return words


def on_nan(text: str) -> OnNan:
    """`stop`, `rollback`, `skip` or `off`."""
    for each in ON_NAN:
        if text.lower() == each:
            return each
    raise ValueError(f"is {text!r:.80}; it can be {', '.join(ON_NAN)}")


def loss_spike(text: str) -> float | None:
    """A number of deviations, or `off`."""
    if text.lower() == "off":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise ValueError(f"is {text!r:.80}; write a number of deviations, at least 1, for example 20, or off")
    return factor


MAX_REPLAY = 0.5  # of training time; more would be another run beside it


def replay(text: str) -> float | None:
    """A share of training time in percent, or `off`."""
    if text.lower() == "off":
        return None
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else math.nan
    except ValueError:
        share = math.nan
    if not 0.0001 <= share <= MAX_REPLAY:
        raise ValueError(f"is {text!r:.80}; write a share of training time from 0.01% to 50%, for example 1%, or off")
    return share


def on_replay_difference(text: str) -> OnReplayDifference:
    """`warn` or `stop`."""
    for each in ON_REPLAY_DIFFERENCE:
        if text.lower() == each:
            return each
    raise ValueError(f"is {text!r:.80}; it can be {' or '.join(ON_REPLAY_DIFFERENCE)}")


def on_oom(text: str) -> Literal["restart", "microbatch"]:
    """`restart` or `microbatch`."""
    if text.lower() == "restart":
        return "restart"
    if text.lower() == "microbatch":
        return "microbatch"
    raise ValueError(f"is {text!r:.80}; it can be restart or microbatch")


def notices(text: str) -> Literal["auto"] | tuple[str, ...]:
    """`auto`, `off` (none), or names of sources with commas between them."""
    if text.lower() in ("auto", "off"):
        return "auto" if text.lower() == "auto" else ()
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if not all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in names) or {"auto", "off"} & set(names):
        raise ValueError(f"is {text!r:.80}; it can be auto, off, or names of sources, such as 'aws, file'")
    return names


def whole_number(text: str, lowest: int, highest: int = MAX_COUNT) -> int:
    """A whole number within limits."""
    try:
        number = int(text) if len(text) <= 20 else None
    except ValueError:
        number = None
    if number is None or not lowest <= number <= highest:
        raise ValueError(f"is {text!r:.80}, not a whole number from {lowest} to {highest}")
    return number


def size_bytes(text: str) -> int:
    """Bytes, or `50MB`, `10KB`, `1GB` (1 KB is 1024 bytes)."""
    match = _SIZE.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"is {text!r:.80}, not a size; write bytes as a number, or for example 50MB (KB, MB, GB)")
    if int(match[1]) * factor > MAX_SIZE_BYTES:
        raise ValueError(f"is {text}, larger than the limit of {MAX_SIZE_BYTES} bytes")
    return int(match[1]) * factor


def positive_size(text: str) -> int:
    """A size above 0."""
    if (size := size_bytes(text)) == 0:
        raise ValueError(f"is {text!r}; it must be more than 0")
    return size


def resource_limit(text: str, is_size: bool) -> int:
    """A number (or a size), or `unlimited`."""
    if text.lower() == "unlimited":
        return UNLIMITED
    return size_bytes(text) if is_size else whole_number(text, 1, MAX_LIMIT)


def cores(text: str) -> float:
    """A number of cores, as 2 or 0.5; at least a hundredth, as less is no time at all."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not 0.01 <= found <= 1e6:
        raise ValueError(f"is {text!r:.80}; write a number of cores, for example 1.5, of at least 0.01")
    return found


def seconds(text: str) -> float:
    """A length of time, 0 included: seconds as a number, or `30 s`, `5 minutes`, `1.5 hours`."""
    match = _DURATION.fullmatch(text)
    factor = (UNITS.get(match[2].lower()) if match[2] else 1.0) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"is {text!r:.80}, not a length of time; write seconds as a number, or for example '5 minutes'"
        )
    if float(match[1]) * factor > MAX_DURATION_S:
        raise ValueError(f"is {text!r}, longer than the limit of 366 days")
    return float(match[1]) * factor


def timeout(text: str) -> float:
    """A length of time above 0."""
    length = seconds(text)
    if length == 0:
        raise ValueError(f"is {text!r}; it must be longer than 0")
    return length


def learned_timeout(text: str) -> float | Literal["auto"] | None:
    """A length of time above 0, `none`, or `auto`."""
    if text.lower() == "auto":
        return "auto"
    return None if text.lower() == "none" else timeout(text)


def hours(text: str) -> float:
    """A length of time above 0 with its unit, in hours."""
    if text.replace(".", "").isdecimal():
        raise ValueError(f"is {text!r:.80} without a unit; write for example '{text:.10} hours'")
    return timeout(text) / 3600.0


def interval(text: str) -> Interval | None:
    """`500 steps`, or a length of time with its unit; None for `auto`."""
    if text.lower() == "auto":
        return None
    try:
        parsed = parse_interval(text)
    except ValueError as error:
        raise ValueError(f"is {error}".replace(f"is {text!r} is", f"is {text!r:.80},", 1)) from error
    if (parsed.seconds or 0.0) > MAX_DURATION_S:
        raise ValueError(f"is {text!r:.80}, longer than the limit of 366 days")
    return parsed


def best_rule(text: str) -> tuple[Literal["min", "max"], str]:
    """`min loss` or `max accuracy` as (mode, metric)."""
    match text.split():
        case ["min", metric]:
            return "min", metric
        case ["max", metric]:
            return "max", metric
    raise ValueError(f"is {text!r:.80}, not a rule; write for example 'min loss' or 'max accuracy'")


def octal(text: str) -> int:
    """File mode bits, written in octal digits."""
    if not re.fullmatch(r"(0o?)?[0-7]{1,4}", text):
        raise ValueError(f"is {text!r:.80}, not octal digits; write for example 022 or 0700")
    return int(text.replace("o", ""), 8) & 0o7777


def name_list(text: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("is empty; write names, separated by commas")
    return found


def address(text: str) -> tuple[str | None, int]:
    """`HOST:PORT`, `*:PORT` or `PORT`, both of which are every interface; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535) or " " in host:
        raise ValueError(f"is {text!r:.80}; write host:port, such as 127.0.0.1:9001, with a port from 1 to 65535")
    return (None if host in ("", "*") else host.lower(), int(port))


def stop_signal(text: str) -> signal.Signals:
    """A signal by its name, with or without SIG, or by its number."""
    name = text.upper()
    try:
        if name.isascii() and name.isdecimal():
            return signal.Signals(int(name[:10]))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        meant = nearest_word(f"SIG{name.removeprefix('SIG')}", [each.name for each in signal.Signals])
        hint = f"did you mean {meant[3:]}?" if meant else "write for example TERM, INT, HUP, QUIT or USR1"
        raise ValueError(f"is {text!r:.80}, which is no signal; {hint}") from None


def exit_codes(text: str) -> frozenset[int]:
    """Exit codes, separated by commas."""
    try:
        return frozenset(whole_number(part.strip(), 0, 255) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"is {text!r:.80}; write exit codes from 0 to 255, separated by commas") from error


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


def log_level(text: str) -> LogLevel:
    """One of Supervisor's level names."""
    for level in _LEVELS:
        if text.lower() == level:
            return level
    raise ValueError(f"is {text!r:.80}; it can be {', '.join(_LEVELS)}")


def log_format(text: str) -> Literal["json", "supervisor"]:
    """`json` or `supervisor`."""
    if text.lower() == "json":
        return "json"
    if text.lower() == "supervisor":
        return "supervisor"
    raise ValueError(f"is {text!r:.80}; it can be json or supervisor")


def strategy(text: str) -> Strategy:
    """The name of a distribution strategy."""
    for each in STRATEGIES:
        if text == each:
            return each
    meant = nearest_word(text, STRATEGIES)
    hint = f"; did you mean {meant!r}?" if meant else ""
    raise ValueError(f"is {text!r:.80}; it can be {', '.join(STRATEGIES)}{hint}")


@lru_cache(maxsize=64)  # the processes of one program mostly have one and the same, which is then there once
def command(text: str) -> tuple[str, ...]:
    """A command line split as a shell would split it; no shell runs it."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"can't be split into words: {str(error).lower()}; close the quotation mark") from error
    if not words or not words[0]:
        raise ValueError("is empty; write the program to run and its arguments")
    return words


def entrypoint(text: str) -> str:
    """`package.module:function`."""
    if not _ENTRYPOINT.fullmatch(text):
        hint = f"for a script write 'command = python {text:.60}'" if text.endswith(".py") else "write module:function"
        raise ValueError(f"is {text!r:.80}, not a module and a function in it such as examples.digits:train; {hint}")
    return text


def environment(text: str) -> dict[str, str]:
    """`KEY="value",OTHER='value'`; quotes may be left out where a value has no space and no comma."""
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _VARIABLE.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            rest = text[position:].strip()
            raise ValueError(f'can\'t be read from {rest!r:.40} on; write KEY="value",OTHER="value" and %% for a %')
        variables[match["key"]] = next(value for value in match.group("double", "single", "bare") if value is not None)
        position = match.end() + 1
    return variables


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


def absolute_path(text: str, folder: str) -> str:
    """An absolute path: `~` is the home folder, and what is relative starts from `folder`."""
    if not text:
        raise ValueError("is empty; write a path, or delete the line")
    if "\0" in text or "\n" in text:
        raise ValueError(f"is {text!r:.80}, which is no path: there is a line break in it")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        raise ValueError(f"is {text:.80}, and the quotation marks would be part of the path; delete them")
    return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))  # noqa: PTH100, PTH111, PTH118 - text
