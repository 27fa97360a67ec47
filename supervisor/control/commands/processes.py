"""The commands that reach a running process or its output: `signal`, `send_stdin`, `clear` and `rotate`."""

import base64
import signal
from dataclasses import dataclass
from typing import Annotated

from supervisor.config.schema.texts import signal_of
from supervisor.control.base.context import CommandContext, ProgramName, find_program
from supervisor.control.base.errors import Code, CommandError
from supervisor.host.logs.messages import Rotation
from supervisor.host.pipes.stdin import StdinClosed, StdinFull


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A signal for a program."""

    name: str
    signal: Annotated[str, {"description": "Its name, as HUP or SIGHUP, or number."}]


@dataclass(frozen=True, slots=True)
class Signalled:
    """A program that was sent a signal. `text`: of a job that may end on it, how far it is and what of that is saved;
    `unsaved_steps`: those that are in no checkpoint yet.
    """

    name: str
    text: str | None = None
    unsaved_steps: int = 0


HARMLESS_SIGNALS = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)
"""Signals that end no process that does not ask for it (signal(7))."""


async def send_signal(context: CommandContext, request: SignalRequest) -> Signalled:
    """Sends a signal, by name or number, to a program's process."""
    runner = find_program(context, request.name)
    try:
        number = signal_of(request.signal)
    except ValueError as error:
        raise CommandError(Code.BAD_SIGNAL, f"the signal {error}") from error
    await context.programs.until_adoption_settled(runner)
    if not runner.current.send_signal(number):
        raise CommandError(Code.NOT_RUNNING, runner.name)
    progress = None if number in HARMLESS_SIGNALS else runner.progress
    await context.ledger.wanted.until_recorded()
    if progress is None:
        return Signalled(runner.name)
    return Signalled(runner.name, progress.describe_present(), progress.unsaved)


@dataclass(frozen=True, slots=True)
class StdinRequest:
    """What to write to a program's standard input: either text or bytes."""

    name: str
    chars: Annotated[str | None, {"description": "Text, sent as UTF-8; either this or base64."}] = None
    base64: Annotated[str | None, {"description": "Bytes, in base64."}] = None


@dataclass(frozen=True, slots=True)
class StdinWritten:
    """How many bytes the program's standard input took."""

    name: str
    bytes: int


async def send_stdin(context: CommandContext, request: StdinRequest) -> StdinWritten:
    """Writes `chars`, as UTF-8, or the bytes in `base64` to a program's standard input; returns once they are written.

    Waits up to 5 s for a program that does not read.
    """
    data = _data(request)
    runner = find_program(context, request.name)
    await context.programs.until_adoption_settled(runner)
    if runner.pid is None or runner.is_stopping:
        raise CommandError(Code.NOT_RUNNING, runner.name)
    stdin = runner.current.stdin
    if stdin is None:
        raise CommandError(Code.NO_FILE, f"{runner.name} is a training job; jobs have no standard input")
    try:
        await stdin.write(data)
    except StdinClosed as error:
        if runner.pid is None:
            raise CommandError(Code.NOT_RUNNING, runner.name) from error
        raise CommandError(Code.NO_FILE, f"cannot write to {runner.name}: {error}") from error
    except StdinFull as error:
        raise CommandError(Code.FAILED, f"cannot write to {runner.name}: {error}") from error
    return StdinWritten(runner.name, len(data))


def _data(request: StdinRequest) -> bytes:
    try:
        if request.chars is not None and request.base64 is None:
            return request.chars.encode()
        if request.base64 is not None and request.chars is None:
            return base64.b64decode(request.base64, validate=True)
    except ValueError as error:  # a lone surrogate in the text, or not base64
        raise CommandError(Code.BAD_ARGUMENTS, f"cannot decode the input for {request.name}: {error}") from error
    raise CommandError(Code.BAD_ARGUMENTS, "send either chars (text) or base64 (bytes), and only one of them")


async def clear(context: CommandContext, request: ProgramName) -> ProgramName:
    """Empties a program's log files and deletes their backups."""
    config = find_program(context, request.name).config
    try:
        for path in filter(None, {config.stdout_logfile, config.stderr_logfile}):
            await context.logs.clear(path)
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot clear the logs of {config.name}: {error.strerror}") from error
    return ProgramName(config.name)


async def rotate(context: CommandContext, request: ProgramName) -> ProgramName:
    """Makes a program's log files their newest backups, and begins new ones."""
    config = find_program(context, request.name).config
    files = {
        config.stdout_logfile: Rotation(config.stdout_logfile_backups, config.stdout_logfile_compress),
        config.stderr_logfile: Rotation(config.stderr_logfile_backups, config.stderr_logfile_compress),
    }
    try:
        for path, rotation in files.items():
            if path is not None and not rotation.backups:
                text = f"{path} keeps no backups, so that would delete it; set its logfile_backups, or use clear"
                raise CommandError(Code.FAILED, f"cannot rotate the logs of {config.name}: {text}")
        for path, rotation in files.items():
            if path is not None:
                await context.logs.rotate(path, rotation)
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot rotate the logs of {config.name}: {error.strerror}") from error
    return ProgramName(config.name)
