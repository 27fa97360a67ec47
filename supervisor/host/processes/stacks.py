"""What the threads of a worker that hangs are at: asked of the kernel, of py-spy, and of the worker itself.

Everything here may wait (a dying file system, a stopped process), so it belongs into a thread.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.protocol import durable, layout

MAX_BYTES = 1024 * 1024  # of each part; a thousand threads' stacks are half of it
KEPT = 5  # files for each program
WRITTEN_S = 2.0  # how long the worker's own handler, which runs at once, is waited for
LOOK_AGAIN_S = 0.02
THREADS_SHOWN = 256


def collect_stacks(pid: int, folder: Path, ask: Callable[[], bool], patience_s: float, why: str) -> str:
    """The threads of process `pid` in text, within about `patience_s` seconds. `why`: the first line.

    `folder`: of the attempt's pipes, where the worker's own file is; `ask`: sends it the signal to write that.
    """
    ends_at = time.monotonic() + patience_s
    parts = [why, f"threads, as the kernel sees them:\n{describe_threads(pid)}"]
    parts.append(f"stacks, by py-spy:\n{_py_spy(pid, patience_s / 2)}")
    parts.append(f"stacks, by the worker's faulthandler:\n{_own(folder, pid, ask, ends_at)}")
    return "\n\n".join(parts) + "\n"


def store_dump(folder: Path, attempt: int, text: str) -> Path:
    """Writes the text into the folder, as `aN.txt`, and deletes all but the newest files. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"a{attempt}.txt"
    durable.write_file(path, text.encode("utf-8", "replace"))
    path.chmod(0o600)
    for old in sorted(folder.glob("a*.txt"), key=_number, reverse=True)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def describe_threads(pid: int) -> str:
    """One line for each thread: its number, name, state, and the kernel function it waits in, if it may be known."""
    lines = [_thread(Path(f"/proc/{pid}/task/{each}")) for each in _tasks(pid)]
    return "\n".join(filter(None, lines[:THREADS_SHOWN])) or "(gone)"


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
    """As `S (sleeping)`."""
    line = next((each for each in _read(task / "status").splitlines() if each.startswith("State:")), "")
    return line.removeprefix("State:").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _py_spy(pid: int, patience_s: float) -> str:
    command = shutil.which("py-spy")
    if command is None:
        return "(py-spy is not installed)"
    try:
        done = subprocess.run(
            [command, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return (done.stdout or done.stderr)[:MAX_BYTES].decode(errors="replace").strip()


def _own(folder: Path, pid: int, ask: Callable[[], bool], ends_at: float) -> str:
    """What the worker writes; only one that has made its file has a handler, any other would die of the signal."""
    file = folder / layout.STACKS
    if _content(file) is None:
        return "(it has no handler; is worker.Run used?)"
    if is_stopped(pid):
        return "(the process is stopped: SIGSTOP, or a debugger)"
    before = _content(file)
    if not ask():
        return "(gone)"
    ends_at = min(ends_at, time.monotonic() + WRITTEN_S)
    seen = before
    while time.monotonic() < ends_at:
        time.sleep(LOOK_AGAIN_S)
        now = _content(file)
        if now != before and now == seen:  # it has written, and went on to nothing more
            break
        seen = now
    return (seen or b"").decode(errors="replace").strip() or "(it did not answer)"


def _content(path: Path) -> bytes | None:
    """At most MAX_BYTES of a file that the job's user wrote; None if it isn't one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return os.read(descriptor, MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def _number(path: Path) -> int:
    number = path.stem.removeprefix("a")
    return int(number) if number.isdecimal() else 0
