"""What is written, renamed, closed and ended at this moment, by others and by this process, as tests look at it."""

import gc
import json
import os
from pathlib import Path
from typing import Any

import psutil

from supervisor.host.processes import environments


def content(path: Path) -> bytes:
    """What is in the file; nothing where there is none, which may change between any two looks."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def whole_lines(path: Path) -> list[str]:
    """The file's lines, but for a last one that is still being written."""
    return [line.decode() for line in content(path).split(b"\n")[:-1]]


def records(path: Path) -> list[dict[str, Any]]:
    """The file's lines of JSON."""
    return [json.loads(line) for line in whole_lines(path)]


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(process: psutil.Process) -> str:
    """The words of its command; nothing of one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def words_of_processes() -> dict[int, bytes]:
    """Environment and arguments of each process, by pid: nothing of one that does not answer, as those do whose memory
    another test keeps locked. It would be waited for as long as that test takes."""

    def words(pid: int) -> tuple[int, bytes]:
        try:
            return pid, environments.read_environment(pid) + b"\0" + content(Path(f"/proc/{pid}/cmdline"))
        except OSError:
            return pid, b""

    return dict(environments.look_at_all(psutil.pids(), words))


def descriptors() -> int:
    """How many this process has open, but for those that earlier tests left to the garbage collector."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
