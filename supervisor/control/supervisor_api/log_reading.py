"""Pieces of log files by offset and length in bytes, as Supervisor's interface gives them; they may block."""

import os
from pathlib import Path

from supervisor.control.base.faults import FaultCode, RpcFault
from supervisor.control.streams.tail import open_log
from supervisor.host.logs import file as log_file

MAX_BYTES = 16 << 20  # of one answer; what is left out comes with the next call, as with read(2)


def read(path: Path | None, offset: int, length: int) -> str:
    """`length` bytes from `offset` on, 0: all; or, where `offset` is negative, that many from the end.

    Bytes that are no UTF-8 are replaced. Raises RpcFault.
    """
    if length < 0 or (offset < 0 and length > 0):
        raise RpcFault(
            FaultCode.BAD_ARGUMENTS, f"offset {offset}, length {length}: a length is not negative, and 0 from the end"
        )
    try:
        with open_log(_existing(path)) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - min(-offset, MAX_BYTES)) if offset < 0 else min(offset, size))
            return _text(file.read(min(length, MAX_BYTES) or MAX_BYTES))
    except FileNotFoundError as error:
        raise RpcFault(FaultCode.NO_FILE, f"{path} does not exist yet") from error
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot read {path}: {error.strerror}") from error


def tail(path: Path | None, offset: int, length: int) -> tuple[str, int, bool]:
    """The last `length` bytes if there are any behind `offset`; the file's size; whether there is more than asked for.

    Without a file there is nothing: "", 0, False. Raises RpcFault.
    """
    if path is None:
        return "", 0, False
    try:
        with open_log(path) as file:
            size = file.seek(0, os.SEEK_END)
            overflow = size > offset + length
            count = 0 if offset >= size and not overflow else min(max(0, length), MAX_BYTES, size)
            file.seek(max(0, size - count))
            return _text(file.read(count)), size, overflow
    except FileNotFoundError:
        return "", 0, False
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot read {path}: {error.strerror}") from error


def clear(path: Path | None) -> None:
    """Empties the daemon's own log, which goes on being written, and deletes its backups. Raises RpcFault."""
    existing = _existing(path)
    if not existing.exists():
        raise RpcFault(FaultCode.NO_FILE, f"{path} does not exist yet")
    try:
        log_file.truncate_with_backups(existing)
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot clear {path}: {error.strerror}") from error


def _existing(path: Path | None) -> Path:
    if path is None:
        raise RpcFault(FaultCode.NO_FILE, "no such log is kept")
    return path


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
