"""The kernel's log, from /dev/kmsg, or from the journal where that may not be read."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

from supervisor.host.children import start_own
from supervisor.host.host_tools import tool_variables
from supervisor.host.resources.kernel_log import KernelLog, KernelRecord

JOURNAL = ("journalctl", "-k", "-f", "-o", "json", "-n", "0", "--output-fields=MESSAGE,_TRANSPORT,SYSLOG_FACILITY")
KERNEL_FACILITY = "0"
MAX_LINE = 64 * 1024  # of the journal's JSON
MAX_TEXT = 1000
BEFORE_S = 60.0  # lines before the start that are read, unless it is known where an earlier helper stopped


class LogSource(Protocol):
    """Lines of the kernel's log."""

    def fileno(self) -> int:
        """Readable when there are new lines."""

    def read(self) -> list[KernelRecord] | None:
        """Those that are there; None: no more will come."""

    def close(self) -> None:
        """Ends it."""


class KmsgSource:
    """/dev/kmsg: what comes after the record `after` (None: of the last minute)."""

    def __init__(self, open_log: Callable[[], KernelLog], after: int | None) -> None:
        self._log = open_log()
        self._after = after
        self._since_s = 0.0 if after is not None else time.monotonic() - BEFORE_S

    def fileno(self) -> int:
        return self._log.fileno()

    def read(self) -> list[KernelRecord] | None:
        return [
            record
            for record in self._log.read()
            if record.at_s >= self._since_s and (self._after is None or record.number > self._after)
        ]

    def close(self) -> None:
        self._log.close()


class JournalSource:
    """`journalctl`, from now on. Records have no numbers there. Raises OSError if it can't be started."""

    def __init__(self) -> None:
        self._process = start_own(JOURNAL, tool_variables(), stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[KernelRecord] | None:
        try:
            data = os.read(self.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MAX_LINE:]
        return [record for record in map(parse_journal_line, lines) if record is not None]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def parse_journal_line(line: bytes) -> KernelRecord | None:
    """A line of `journalctl -o json`; None unless the kernel itself wrote it, which no identifier can claim."""
    try:
        entry = json.loads(line)
        if entry["_TRANSPORT"] != "kernel" or entry["SYSLOG_FACILITY"] != KERNEL_FACILITY:
            return None
        message = entry["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, list):  # bytes, if it is no text
        try:
            message = bytes(message).decode(errors="replace")
        except (ValueError, TypeError):
            return None
    if not isinstance(message, str):
        return None
    text = "".join(character if character.isprintable() else " " for character in message)
    return KernelRecord(0, time.monotonic(), text[:MAX_TEXT].strip())
