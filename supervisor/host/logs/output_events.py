"""What programs print, as events for event listeners: the logger cuts one into messages, the daemon joins them.

Used in the logger too, so it imports the standard library only.
"""

import base64
from collections.abc import Callable
from typing import NamedTuple

from supervisor.host.logs.messages import AttemptBegan, CapturePipe, LogProtocolError, OutputPrinted

PIECE_BYTES = 32 * 1024  # of output in one message; base64 makes it a third longer


class ProgramOutput(NamedTuple):
    """A piece of a program's output, for the listeners of an event type (PROCESS_LOG_STDOUT)."""

    event: str
    program: str
    attempt: int
    data: bytes


def output_messages(pipe: CapturePipe, kind: str, data: bytes) -> list[OutputPrinted]:
    """The messages of one event PROCESS_`kind`_STDOUT (or STDERR) with what came out of a pipe."""
    starts = range(0, max(len(data), 1), PIECE_BYTES)
    return [
        OutputPrinted(
            f"PROCESS_{kind}_{pipe.channel.upper()}",
            pipe.program,
            pipe.attempt,
            base64.b64encode(data[start : start + PIECE_BYTES]).decode(),
            start + PIECE_BYTES < len(data),
        )
        for start in starts
    ]


class OutputSubscribers:
    """Who gets what programs print, how many output events of which were dropped, and where in its log an attempt's
    output begins; called in the handover's thread."""

    def __init__(
        self,
        on_output: Callable[[ProgramOutput], None] = lambda _: None,
        on_missed: Callable[[int, str], None] = lambda _, __: None,
        on_attempt_began: Callable[[AttemptBegan], None] = lambda _: None,
    ) -> None:
        self.on_output = on_output
        self.on_missed = on_missed
        self.on_attempt_began = on_attempt_began
        self._parts: list[str] = []  # of an event whose last message has not arrived yet

    def on_printed(self, message: OutputPrinted) -> None:
        """Passes on the event that the message completes, if it does. Raises LogProtocolError."""
        self._parts.append(message.data)
        if message.goes_on:
            return
        parts, self._parts = self._parts, []
        try:
            data = b"".join(base64.b64decode(part, validate=True) for part in parts)
        except ValueError as error:
            raise LogProtocolError(f"cannot decode the output of {message.program:.80}: {error}") from error
        self.on_output(ProgramOutput(message.event, message.program, message.attempt, data))

    def drop_incomplete(self) -> None:
        """Drops the event whose last message has not arrived: the logger is gone."""
        self._parts.clear()
