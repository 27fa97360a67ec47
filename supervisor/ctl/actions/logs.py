"""Actions that show logs: tail, maintail."""

import codecs
import itertools
from collections.abc import Iterator

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.client import Refusal
from supervisor.ctl.naming import program_of
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import whole_number

DEFAULT_BYTES = 1600  # as Supervisor's tail
CHANNELS = ("stdout", "stderr")
DAEMON = "supervisord"
"""The name under which the API gives the daemon's own log."""

_TEXTS = {"BAD_NAME": "no such process name", "NO_FILE": "no log file"}


def tail(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the end of a program's log, or of what one attempt printed."""
    attempt, arguments = _attempt_of(arguments)
    count, names = _options(arguments)
    if attempt is not None and count is None:
        raise UsageError("Error: -f shows what is printed from now on; leave out --attempt")
    if not names:
        raise UsageError("Error: too few arguments")
    if len(names) > 2:
        raise UsageError("Error: too many arguments")
    name, channel = names[0], names[1] if len(names) == 2 else "stdout"
    if channel not in CHANNELS:
        raise UsageError(f"Error: bad channel {channel!r}")
    return _show(terminal, program_of(name), channel, count, attempt)


def maintail(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the end of the daemon's log."""
    count, names = _options(arguments)
    if names:
        raise UsageError("Error: too many arguments")
    return _show(terminal, DAEMON, "stdout", count)


def _attempt_of(arguments: Arguments) -> tuple[int | None, Arguments]:
    """The number after `--attempt`, and the other arguments."""
    others = list(arguments)
    for position, other in enumerate(others):
        name, equals, value = other.partition("=")
        if name != "--attempt":
            continue
        del others[position]
        if not equals:
            value = others.pop(position) if position < len(others) else ""
        attempt = whole_number(value)
        if attempt is None:
            raise UsageError("Error: --attempt needs the number of an attempt; `history` lists them")
        return attempt, others
    return None, others


def _options(arguments: Arguments) -> tuple[int | None, Arguments]:
    """How many bytes (None: follow), and the arguments that are not options."""
    count: int | None = DEFAULT_BYTES
    for option in (argument for argument in arguments if argument.startswith("-")):
        if option == "-f":
            count = None
        elif (count := whole_number(option[1:])) is None:
            raise UsageError(f"Error: bad argument {option}")
    return count, [argument for argument in arguments if not argument.startswith("-")]


def _show(terminal: Terminal, name: str, channel: str, count: int | None, attempt: int | None = None) -> ExitStatus:
    follow = count is None
    if follow and terminal.as_json:
        raise UsageError("Error: -f has no JSON form; leave out --json")
    try:
        count = DEFAULT_BYTES if count is None else count
        blocks = terminal.client.tail(name, channel, count, follow=follow, attempt=attempt)
        first = next(blocks, b"")
        if terminal.as_json:
            text = "".join(decoded(itertools.chain([first], blocks)))
            terminal.print_json({"name": name, "channel": channel, "text": text})
            return ExitStatus.OK
        if follow:
            print("==> Press Ctrl-C to exit <==", file=terminal.out, flush=True)
        for text in decoded(itertools.chain([first], blocks)):
            print(terminal.shown(text, terminal.out), end="", file=terminal.out, flush=follow)
    except KeyboardInterrupt:
        if not follow:
            raise
        return ExitStatus.OK  # Ctrl-C is the way to leave
    except Refusal as error:
        if error.code not in (*_TEXTS, "FAILED"):
            raise
        terminal.print_line(f"{name}: ERROR ({_TEXTS.get(error.code, 'unknown error reading log')})")
        if error.code != "BAD_NAME":
            terminal.print_detail(str(error))
        return ExitStatus.ERROR
    print(file=terminal.out, flush=True)
    return ExitStatus.OK


def decoded(blocks: Iterator[bytes]) -> Iterator[str]:
    """The text; bytes that are not UTF-8, or a character cut off at the beginning, are replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for block in blocks:
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)
