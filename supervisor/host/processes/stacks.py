"""Collects the stacks of a hung worker: from the kernel, from py-spy, and from the worker's own faulthandler.

Everything here may block (a dead file system, a stopped process): call it from a thread.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.host.host_tools import ask_tool
from supervisor.host.user_folders.mounted_over import open_in_folder_of_user
from supervisor.protocol import durable, layout

MAX_BYTES = 1024 * 1024  # of each part; a thousand threads' stacks are half of it
MAX_PY_SPY_BYTES = 1 << 30  # of memory: it takes 20 MiB, but what it reads is the job's user's
KEPT_DUMPS = 5  # for each program
HANDLER_TIMEOUT_S = 2.0  # the worker's own handler runs at once
POLL_S = 0.02
THREADS_SHOWN = 256


def collect_stacks(pid: int, folder: Path, send_signal: Callable[[], bool], timeout_s: float, why: str) -> str:
    """Describes the threads of process `pid` in text, within about `timeout_s` seconds. `why`: the first line.

    `folder`: the attempt's folder, where the worker's faulthandler writes its file. `send_signal`: sends the worker the
    signal on which it writes; False if it is gone.
    """
    ends_at = time.monotonic() + timeout_s
    parts = [why, f"threads, from the kernel:\n{describe_threads(pid)}"]
    parts.append(f"stacks, from py-spy:\n{_py_spy(pid, timeout_s / 2)}")
    parts.append(f"stacks, from the worker's faulthandler:\n{_faulthandler(folder, pid, send_signal, ends_at)}")
    return "\n\n".join(parts) + "\n"


def store_dump(folder: Path, attempt: int, text: str) -> Path:
    """Writes the text to `aN.txt` in the folder, and deletes all but the newest files. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"a{attempt}.txt"
    durable.write_file(path, text.encode("utf-8", "replace"))
    path.chmod(0o600)
    for old in sorted(folder.glob("a*.txt"), key=_number, reverse=True)[KEPT_DUMPS:]:
        old.unlink(missing_ok=True)
    return path


def describe_threads(pid: int) -> str:
    """One line for each thread: its id, name, state, and the kernel function it waits in, where the kernel shows it."""
    lines = [_thread(Path(f"/proc/{pid}/task/{task}")) for task in _tasks(pid)]
    return "\n".join(filter(None, lines[:THREADS_SHOWN])) or "(the process is gone)"


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by SIGSTOP, a terminal or a debugger."""
    return _state(Path(f"/proc/{pid}"))[:1] in ("T", "t")


def _tasks(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from sorted(os.listdir(f"/proc/{pid}/task"), key=int)  # noqa: PTH208 - names, not paths


def _thread(task: Path) -> str:
    waits_in = _read(task / "wchan").strip("0")
    return f"{task.name} {_read(task / 'comm')}: {_state(task)}" + (f", in {waits_in}" if waits_in else "")


def _state(task: Path) -> str:
    """The state in the kernel's words, such as `S (sleeping)`."""
    lines = _read(task / "status").splitlines()
    return next((line for line in lines if line.startswith("State:")), "").removeprefix("State:").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def main_thread_frames(folder: Path, pid: int, send_signal: Callable[[], bool], timeout_s: float) -> tuple[str, ...]:
    """The Python frames of the main thread, innermost first, each as `FILE:LINE FUNCTION`; empty if it doesn't answer.

    By py-spy where it is installed, which only reads memory; else by the worker's faulthandler, whose file is emptied,
    as it would grow with each request. `folder` and `send_signal` as in `collect_stacks`.
    """
    blocks = _py_spy(pid, timeout_s).split("\nThread ")
    main = next((block for block in blocks if block.startswith(f"{pid} (") or '"MainThread"' in block[:200]), "")
    if main:
        return tuple(f"{place} {name}" for name, place in _PY_SPY_FRAME.findall(main))
    text = _faulthandler(folder, pid, send_signal, time.monotonic() + timeout_s)
    _empty(folder / layout.STACKS)
    last = text.rpartition("(most recent call first):")[2]  # the interpreter lists the newest thread first
    return tuple(f"{file}:{line} {name}" for file, line, name in _FAULTHANDLER_FRAME.findall(last))


_PY_SPY_FRAME = re.compile(r"^ +(\S+) \(([^()\n]+:\d+)\)$", re.MULTILINE)
_FAULTHANDLER_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+) in (\S+)$', re.MULTILINE)


def _py_spy(pid: int, timeout_s: float) -> str:
    command = shutil.which("py-spy")
    if command is None:
        return "(py-spy is not installed)"
    try:
        done = ask_tool((command, "dump", "--nonblocking", "--pid", str(pid)), timeout_s, MAX_PY_SPY_BYTES)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return (done.stdout or done.stderr)[:MAX_BYTES].decode(errors="replace").strip()


def _faulthandler(folder: Path, pid: int, send_signal: Callable[[], bool], ends_at: float) -> str:
    """The stacks that the worker's handler writes. Without the file there is no handler: the signal would kill."""
    file = folder / layout.STACKS
    if _content(file) is None:
        return "(the worker has installed no handler: it does not use worker.Run, or has not reached it yet)"
    if is_stopped(pid):
        return "(the process is stopped, by SIGSTOP or a debugger)"
    before = _content(file)
    if not send_signal():
        return "(the process is gone)"
    ends_at = min(ends_at, time.monotonic() + HANDLER_TIMEOUT_S)
    seen = before
    while time.monotonic() < ends_at:
        time.sleep(POLL_S)
        now = _content(file)
        if now != before and now == seen:  # it has written, and adds no more
            break
        seen = now
    return (seen or b"").decode(errors="replace").strip() or "(the worker did not answer)"


def _content(path: Path) -> bytes | None:
    """At most MAX_BYTES of a file that the job's user wrote; None if it is not a regular file, or has other names."""
    with _opened(path, os.O_RDONLY) as descriptor:
        return None if descriptor is None else os.read(descriptor, MAX_BYTES)


def _empty(path: Path) -> None:
    """Empties such a file; the worker appends to it, and begins again."""
    with _opened(path, os.O_RDWR) as descriptor, contextlib.suppress(OSError):
        if descriptor is not None:
            os.ftruncate(descriptor, 0)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    try:
        descriptor = open_in_folder_of_user(path.parent, path.name, flags)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        is_theirs = stat.S_ISREG(status.st_mode) and status.st_nlink == 1  # a hard link may lead to anybody's file
        yield descriptor if is_theirs else None
    finally:
        os.close(descriptor)


def _number(path: Path) -> int:
    number = path.stem.removeprefix("a")
    return int(number) if number.isdecimal() else 0
