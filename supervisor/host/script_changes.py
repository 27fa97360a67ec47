"""Whether the scripts of jobs are still what a proof has run: looked at in threads, and remembered.

A look compares times and sizes; only if these are others are the files read. A disk that hangs holds the thread for its
job and nothing else: what is not known in time counts as before. A job's user names the files, so only what is Python's
by its name is looked at, and as root no link leads elsewhere (`guarded_open`).
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.user_folders.guarded_open import open_guarded
from supervisor.protocol.proof import MAX_FILE_BYTES, ProofReport, fingerprint

SUFFIX = ".py"
LOOK_EVERY_S = 2.0  # at one job: open pages ask once a second

_Stamps = tuple[tuple[int, int, int] | None, ...]


@dataclass(slots=True)
class _Known:
    """What the last look at a job's files saw: a fingerprint, and the inode, time and size of each file then."""

    command: tuple[str, ...]
    files: tuple[Path, ...]
    fingerprint: str
    stamps: _Stamps
    looked_at: float


def read_script(name: str) -> bytes:
    """The beginning of a file that a job's user named. Raises OSError if it is none, or not to be trusted."""
    descriptor = open_guarded(Path(name), os.O_RDONLY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{name} is no file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


class ScriptChanges:
    """The present fingerprints of the scripts of all jobs. `read`: gives the beginning of a script."""

    def __init__(self, look_every_s: float = LOOK_EVERY_S, read: Callable[[str], bytes] = read_script) -> None:
        self._look_every_s = look_every_s
        self._read = read
        self._calls = BlockingCalls()
        self._known: dict[str, _Known] = {}
        self._looking: dict[str, asyncio.Future[None]] = {}

    def has_changed(self, name: str, proven: ProofReport) -> bool | None:
        """Whether the job's command or its files are others than the proven ones; None: not known."""
        known = self._known.get(name)
        return None if known is None or not proven.script else known.fingerprint != proven.script

    async def look(self, proven: Mapping[str, tuple[tuple[str, ...], ProofReport]], within_s: float) -> None:
        """Looks at these jobs, by name their present commands and proofs; returns after `within_s` at the latest."""
        now = asyncio.get_running_loop().time()
        for name, (command, report) in proven.items():
            known = self._known.get(name)
            if name not in self._looking and (known is None or now - known.looked_at >= self._look_every_s):
                self._looking[name] = asyncio.ensure_future(self._look_at(name, command, report, known))
        if self._looking:
            await asyncio.wait(self._looking.values(), timeout=within_s)

    async def _look_at(self, name: str, command: tuple[str, ...], report: ProofReport, known: _Known | None) -> None:
        files = tuple(Path(file) for file in report.files if file.endswith(SUFFIX) and "\0" not in file)
        try:
            with contextlib.suppress(OSError, RuntimeError):  # the second: no thread to spare
                look = await self._calls.run_for_folder(Path(name), partial(_look, command, files, known, self._read))
                look.looked_at = asyncio.get_running_loop().time()
                self._known[name] = look
        finally:
            del self._looking[name]


def _look(
    command: tuple[str, ...], files: tuple[Path, ...], known: _Known | None, read: Callable[[str], bytes]
) -> _Known:
    stamps = tuple(map(_stamp, files))
    if known is not None and (command, files, stamps) == (known.command, known.files, known.stamps):
        return replace(known)
    return _Known(command, files, fingerprint(command, map(str, files), read), stamps, 0.0)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
