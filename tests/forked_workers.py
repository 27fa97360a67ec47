"""Has a daemon start its workers as forks of itself, which have TensorFlow from the beginning.

Importing TensorFlow takes more processor time than all else that most attempts in tests do. A daemon that was forked
from a process that has imported it (`tests.forked`) starts a worker as usual, but for exec(2): the child is at once
what an interpreter is after the imports. It has its own environment, also for those who read that of a process, its
session, folder, streams and no other descriptors. So it is with the processes that a worker starts to train with it.
"""

import asyncio
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor.protocol.wire import launch

M_ARENA_MAX, MANY_ARENAS = -8, 64  # <malloc.h>; the daemon has one
_ENV_START, _ENV_END = 47, 48  # fields of /proc/PID/stat, after the name and counted from 0
_HIGH = 200  # a number that no descriptor has

Run = Callable[[list[str]], None]


def start_workers_as_forks(run: Run, open_streams: Callable[[], None]) -> None:
    """From now on. `run` runs a script or module of Python, `open_streams` makes Python's streams anew."""
    path, at_exit = list(sys.path), list[Callable[..., object]]()
    register = atexit.register

    def register_and_note(function: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[..., object]:
        at_exit.append(function)
        return register(function, *args, **kwargs)

    atexit.register = register_and_note  # type: ignore[assignment]

    class ForkingPopen(subprocess.Popen[Any]):
        """Starts workers without exec(2), and everything else as its base does."""

        def _execute_child(  # type: ignore[override]
            self, args: Sequence[str], executable: Path | None, preexec_fn: Callable[[], None] | None,
            close_fds: bool, pass_fds: tuple[int, ...], cwd: Path | None, env: Mapping[str, str] | None,
            startupinfo: None, creationflags: int, shell: bool, p2cread: int, p2cwrite: int, c2pread: int,
            c2pwrite: int, errread: int, errwrite: int, restore_signals: bool, gid: int | None, gids: None,
            uid: int | None, umask: int, start_new_session: bool, process_group: int,
        ) -> None:  # fmt: skip
            words = list(map(os.fspath, args))
            if env is None or uid is not None or not _is_worker(words, env):
                super()._execute_child(  # type: ignore[misc]
                    args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                    start_new_session, process_group,
                )  # fmt: skip
                return
            pid = os.fork()
            if pid == 0:
                with _ends_with_traceback():
                    _leave_parent((p2cread, c2pwrite, errwrite), pass_fds, preexec_fn, start_new_session)
                    if umask >= 0:
                        os.umask(umask)
                    if cwd is not None:
                        os.chdir(cwd)
                    for function in at_exit:
                        atexit.unregister(function)
                    at_exit.clear()
                    _show_environment(env)
                    os.environ.clear()
                    os.environ.update(env)
                    sys.path[:] = path
                    open_streams()
                    _run_to_its_end(run, words[1:])
            self.pid = pid
            self._child_created = True
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def _is_worker(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    is_python = words[0] == sys.executable and len(words) > 1 and (words[1] == "-m" or not words[1].startswith("-"))
    return is_python and launch.VARIABLE in environment


@contextlib.contextmanager
def _ends_with_traceback() -> Any:
    try:
        yield
    except BaseException:  # noqa: BLE001 - nobody else would say it
        traceback.print_exc()
    finally:
        os._exit(1)


def _leave_parent(
    streams: Sequence[int], kept: Collection[int], prepare: Callable[[], None] | None, starts_session: bool
) -> None:
    """Drops what a fork has of its parent and a new process has not, but for the descriptors that are `kept`."""
    gc.freeze()  # the parent's objects are never collected: each would close a descriptor that is another one here
    gc.enable()
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, MANY_ARENAS)
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(OSError):  # some belong to the C library
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    asyncio.events._set_running_loop(None)
    asyncio.set_event_loop(None)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    if starts_session:
        os.setsid()
    if prepare is not None:
        prepare()
    for number, stream in enumerate(streams):
        if stream != -1:
            os.dup2(fcntl.fcntl(stream, fcntl.F_DUPFD, _HIGH), number)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            if int(name) > 2 and int(name) not in kept:
                os.close(int(name))
    for module in [name for name in sys.modules if name.partition(".")[0] == "worker"]:
        del sys.modules[module]  # it has read the settings of the parent


def _show_environment(environment: Mapping[str, str]) -> None:
    """Writes it to where the kernel looks for the environment of this process."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    assert start and len(block) < end - start, f"{len(block)} bytes of environment, and room for {end - start}"
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _run_to_its_end(run: Run, words: list[str]) -> NoReturn:
    """Runs a script, and ends as an interpreter does."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    status = 0
    try:
        run(words)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    ctypes.pythonapi.Py_Exit(status & 0xFF)
    raise AssertionError("it has ended")
