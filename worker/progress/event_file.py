"""TensorBoard's event files, written without TensorFlow: records of protocol buffers, each with two checksums.

The fields are those of tensorflow/core/util/event.proto and framework/summary.proto.
"""

import contextlib
import errno
import math
import os
import struct
import threading
import time
from pathlib import Path

from supervisor.protocol.tensorbundle.protowire import encode_varint
from supervisor.protocol.tensorbundle.sstable import masked_crc

_SESSION_START = 1  # SessionLog.START: readers drop what they have of that step and later ones
_DT_STRING = 7


class EventFile:
    """Appends to a new file. May be used from several threads.

    Each call is one write(2), so a killed process leaves at most one incomplete record, which readers skip.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        """Named after the attempt, because readers read the files in the order of their names. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._descriptor = _create(folder, f"events.out.tfevents.{attempt:010d}")
        self._append(_text(3, "brain.Event:2"))

    def write_session_start(self, step: int) -> None:
        """Tells readers to drop what other files of the folder hold of `step` and later steps."""
        self._append(_varint(2, step) + _message(7, _varint(1, _SESSION_START)))

    def write_scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers by tag."""
        summary = b"".join(_message(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
        self._append(_varint(2, step) + _message(5, summary))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Writes a line for the tab of texts."""
        tensor = _varint(1, _DT_STRING) + _message(2, b"") + _text(8, text)
        kind = _message(1, _text(1, "text"))
        self._append(
            _varint(2, step) + _message(5, _message(1, _text(1, tag) + _message(8, tensor) + _message(9, kind)))
        )

    def sync(self) -> None:
        """Makes everything written durable. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Closes the file; later writes do nothing."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _append(self, fields: bytes) -> None:
        event = struct.pack("<Bd", 1 << 3 | 1, time.time()) + fields
        length = struct.pack("<Q", len(event))
        record = length + _crc(length) + event + _crc(event)
        with self._lock:
            if self._descriptor >= 0 and os.write(self._descriptor, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _create(folder: Path, name: str) -> int:
    """Creates a new file. Without a daemon, a run that saved nothing leaves its attempt number to the next one."""
    for again in range(1_000_000):
        with contextlib.suppress(FileExistsError):
            return os.open(
                folder / f"{name}.{again:06d}.stepkeeper", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
    raise OSError(errno.EEXIST, f"{folder} contains a million files {name}.*")


def _crc(content: bytes) -> bytes:
    return struct.pack("<I", masked_crc(content))


def _varint(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)


def _message(field: int, content: bytes) -> bytes:
    return encode_varint(field << 3 | 2) + encode_varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))


def _float(field: int, value: float) -> bytes:
    try:
        content = struct.pack("<f", value)
    except OverflowError:  # TensorFlow's summaries round the same way
        content = struct.pack("<f", math.copysign(math.inf, value))
    return encode_varint(field << 3 | 5) + content
