"""How this process reports what happens to it: to the daemon, or to the person who reads stderr."""

import contextlib
import sys
import traceback
from dataclasses import replace
from typing import Protocol

from supervisor.protocol.plurals import counted_bytes
from supervisor.protocol.wire import codec, lines
from supervisor.protocol.wire.messages import (
    Committed,
    Done,
    Exported,
    Failed,
    FromWorker,
    Progress,
    Restored,
    SaveFailed,
)

# Lengths to which a message is cut that would exceed the limit of one line on the control pipe (64 KiB):
MAX_METRIC_NAME = 40  # characters, each at most 12 bytes in JSON: a hundred such metrics fit (metrics.MAX_METRICS)
MAX_ERROR = 500  # characters
MAX_TRACEBACK = 3000  # characters, the end of it: there the cause stands
MAX_NAMES = 10  # of variables or conditions, each of at most 200 characters; the worker's own log has all
MAX_BATCHES = 1000  # a file in the checkpoint directory names all of them (divergence.py)

_OUT_OF_MEMORY = frozenset({"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"})
"""Python's (and NumPy's), TensorFlow's, PyTorch's; by name, as none of them is imported for this."""

_DISK_FULL = ("no space left", "quota exceeded")
"""What strerror(3) gives for ENOSPC and EDQUOT, which TensorFlow's messages quote."""


class Reporter(Protocol):
    """Receives what happens in this process: the daemon, or the person at the terminal."""

    def send_message(self, message: FromWorker) -> None:
        """Sends a message that must arrive."""

    def send_progress(self, message: Progress) -> None:
        """Sends progress, of which only the newest matters."""

    def show_message(self, text: str) -> None:
        """Shows one line to the person who reads stderr."""

    def drain(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until everything is sent; whether it is."""


class ConsoleReporter:
    """The reporter of a worker without a daemon: prints on stderr what a daemon would be told."""

    def send_message(self, message: FromWorker) -> None:
        line = _console_line(message)
        if line is not None:
            self.show_message(line)

    def send_progress(self, message: Progress) -> None:
        """Prints nothing: the script shows its own progress."""

    def show_message(self, text: str) -> None:
        print_message(text)

    def drain(self, timeout: float) -> bool:
        return True


def _console_line(message: FromWorker) -> str | None:
    match message:
        case Restored(checkpoint=None):
            return "no checkpoint to restore; training starts at step 0"
        case Restored():
            unmatched = f"; not matched: {', '.join(message.unmatched)}" if message.unmatched else ""
            return f"restored {message.checkpoint} in {message.restore_s:.2f} s{unmatched}"
        case Committed():
            return f"saved {message.checkpoint} ({counted_bytes(message.size_bytes)} in {message.save_s:.2f} s)"
        case SaveFailed():
            return f"cannot save step {message.step}: {message.error}"
        case Failed(traceback=""):  # otherwise Python prints the exception itself
            return message.error
        case Done():
            return f"training is complete at step {message.step}"
    return None


def print_message(text: str) -> None:
    """Prints one line on stderr, which a daemon keeps in the job's log.

    Where nobody reads stderr any more, or a script closed it, nothing is printed, and training goes on.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"stepkeeper: {text}\n")


def encode_within_limit(message: FromWorker) -> bytes:
    """The message as a line for the control pipe, within the limits of its fields.

    One that is too long for a line all the same loses its longest parts.

    The names of a script's metrics and the texts of its errors may have any length; they must not end the reporting.
    """
    fitting = codec.fit_record(message)
    try:
        return lines.encode_message(fitting)
    except codec.ProtocolError:
        return lines.encode_message(_shortened(fitting))


def _shortened(message: FromWorker) -> FromWorker:
    match message:
        case Progress() | Done():
            metrics = {name: value for name, value in message.metrics.items() if len(name) <= MAX_METRIC_NAME}
            return replace(message, metrics=metrics)
        case Restored():
            return replace(message, unmatched=message.unmatched[:MAX_NAMES], changed=message.changed[:MAX_NAMES])
        case Committed():
            return replace(message, left_out=message.left_out[:MAX_NAMES], flushes=message.flushes[-MAX_NAMES:])
        case SaveFailed() | Exported(error=str()):
            return replace(message, error=str(message.error)[:MAX_ERROR])
        case Failed():
            shorter = replace(message, error=message.error[:MAX_ERROR], traceback=message.traceback[-MAX_TRACEBACK:])
            return replace(shorter, batches=message.batches[:MAX_BATCHES])
    return message


def describe_error(error: BaseException) -> str:
    """An exception as Python prints it, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one in its chain of causes, reports a lack of memory.

    TensorFlow has one class for lack of memory and for full disks; the text tells them apart.
    """
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes a circle
    while cause is not None and id(cause) not in seen:
        if _OUT_OF_MEMORY & {kind.__name__ for kind in type(cause).__mro__} and not mentions_full_disk(str(cause)):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def mentions_full_disk(text: str) -> bool:
    """Whether an error's text says that no space, or no quota, is left on a disk."""
    return any(phrase in text.lower() for phrase in _DISK_FULL)
