"""Reads the kernel's log from /dev/kmsg: what the kernel says of processes it killed, of disks and of GPUs.

The protocol is that of Documentation/ABI/testing/dev-kmsg: a read gives one record, `prio,number,usec,flags;text`, with
lines of details behind it that begin with a space. A new reader begins at the oldest record; EAGAIN is the end, EPIPE
says that records were overwritten before they were read. Bytes that are not printable arrive as `\\xNN`.

Only facility 0 is believed: whoever may write to /dev/kmsg can't use it, so a line about a killed process or a broken
GPU is the kernel's own.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
MAX_RECORD_BYTES = 8192  # of one read; the kernel cuts records at 1 KiB and escapes them to at most four times that
MAX_TEXT = 1000  # characters kept of a record
MAX_RECORDS = 20_000  # read at once: the largest usual ring (CONFIG_LOG_BUF_SHIFT=20) holds about as many
MAX_KEPT = 1000  # records that matter; a broken disk logs some a second
_FACILITY_SHIFT = 3  # of prio; the lower bits are the severity
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One line of the kernel's log. `number` grows by one with each record; `at_s`: seconds since the boot, by a clock
    of the kernel that stands still while the host is suspended and may be off by seconds after days."""

    number: int
    at_s: float
    text: str


def parse_record(record: bytes) -> KernelRecord | None:
    """A record as /dev/kmsg gives it; None if it is not the kernel's own, or damaged."""
    head, _, body = record.partition(b";")
    try:
        prio, number, usec = (int(word) for word in head.split(b",")[:3])
    except ValueError:
        return None
    if prio < 0 or prio >> _FACILITY_SHIFT:
        return None
    line = body.partition(b"\n")[0].decode(errors="replace")
    text = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), line)
    printable = "".join(character if character.isprintable() else " " for character in text)
    return KernelRecord(number, usec / 1e6, printable[:MAX_TEXT].strip())


class KernelLog:
    """One reader of the log. `at_end`: begins with what is logged from now on. Raises OSError, PermissionError mostly:
    with kernel.dmesg_restrict=1 only root and holders of CAP_SYSLOG may read."""

    def __init__(self, path: Path = KMSG, *, at_end: bool = False) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if at_end:
            os.lseek(self._file, 0, os.SEEK_END)

    def fileno(self) -> int:
        """Readable when there are new records."""
        return self._file

    def read(self, most: int = MAX_RECORDS) -> list[KernelRecord]:
        """The kernel's own records that are there and were not read yet, of at most `most` that are read."""
        records = []
        for _ in range(most):
            try:
                record = os.read(self._file, MAX_RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten before it was read: the next read gives the oldest that is left
                continue
            if not record:
                break
            if (parsed := parse_record(record)) is not None:
                records.append(parsed)
        return records

    def close(self) -> None:
        """Ends it."""
        os.close(self._file)


class KernelReports:
    """What the kernel logged lately of what `matters`. Nothing polls: each look reads what is new since the one before.

    For any thread. The first look reads the whole log, which takes milliseconds.
    """

    def __init__(self, matters: Callable[[str], bool], path: Path = KMSG) -> None:
        self._matters = matters
        self._path = path
        self._lock = threading.Lock()
        self._log: KernelLog | None = None
        self._records: deque[KernelRecord] = deque(maxlen=MAX_KEPT)

    def since(self, at_s: float) -> list[KernelRecord] | None:
        """Those since `at_s` (seconds since the boot), oldest first; None if the log can't be read."""
        with self._lock:
            try:
                if self._log is None:
                    self._log = KernelLog(self._path)
                new = self._log.read()
            except OSError:
                return None
            self._records.extend(record for record in new if self._matters(record.text))
            return [record for record in self._records if record.at_s >= at_s]
