"""The command `send_stdin`: bytes for a program's standard input."""

import base64

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    program_in,
    text_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.host.pipes.stdin import StdinClosed, StdinFull


async def send_stdin(context: CommandContext, arguments: Arguments) -> Result:
    """Writes `chars`, as UTF-8, or the bytes in `base64` to a program's standard input; returns when it has them.

    A program that does not read is waited for 5 s.
    """
    data = _data(arguments)
    runner = program_in(context, arguments)
    if runner.executor.pid is None or runner.is_stopping:
        raise CommandError(Code.NOT_RUNNING, runner.name)
    stdin = runner.executor.stdin
    if stdin is None:
        raise CommandError(Code.NO_FILE, f"{runner.name} is a training job, which has no standard input")
    try:
        await stdin.write(data)
    except StdinClosed as error:
        if runner.executor.pid is None:
            raise CommandError(Code.NOT_RUNNING, runner.name) from error
        raise CommandError(Code.NO_FILE, f"cannot write to {runner.name}: {error}") from error
    except StdinFull as error:
        raise CommandError(Code.FAILED, f"cannot write to {runner.name}: {error}") from error
    return {"name": runner.name, "bytes": len(data)}


def _data(arguments: Arguments) -> bytes:
    if ("chars" in arguments) == ("base64" in arguments):
        raise CommandError(Code.BAD_ARGUMENTS, "one of chars (text) and base64 (bytes) has to be there, and only one")
    try:
        if "chars" in arguments:
            return text_in(arguments, "chars").encode()
        return base64.b64decode(text_in(arguments, "base64"), validate=True)
    except ValueError as error:  # lone surrogates; what is no base64
        raise CommandError(Code.BAD_ARGUMENTS, f"what is to be sent can't be read: {error}") from error
