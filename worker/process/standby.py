"""A standby: a process that has loaded its libraries and waits to become the next attempt of its job."""

import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, get_args

from supervisor.protocol.wire import launch
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import DaemonIdentity
from supervisor.protocol.wire.messages import STANDBY, Ready
from worker.process.attempt import Attempt
from worker.process.daemon_process import open_pidfd

WARM, HOT = get_args(launch.Standby)
DRAIN_TIMEOUT_S = 1.0  # a daemon that doesn't read must not delay a relaunch

SourceStamps = dict[str, tuple[int, int, int] | None]
"""By path: time of the last change (ns), size and inode; None: no such file."""

_began_ns = time.time_ns()
_folder = Path.cwd()


def open_daemon_pidfd(daemon: DaemonIdentity) -> int:
    """A pidfd of the daemon that started this process. Exits if that daemon is gone."""
    descriptor = open_pidfd(daemon)
    if descriptor is None:
        raise SystemExit(int(WorkerExit.STOPPED))
    return descriptor


def wait_for_promotion(attempt: Attempt, kind: str = WARM) -> None:
    """Blocks until the daemon makes this process an attempt.

    If a source file that was loaded has changed meanwhile, the process executes itself anew, as that attempt.
    """
    channel = attempt.channel
    if channel is None:
        return
    before = stamp_sources()
    channel.send_message(Ready(STANDBY, kind, os.getpid(), (time.time_ns() - _began_ns) / 1e9))
    channel.wait_for_promotion()
    changed = changed_sources(before, stamp_sources(), _began_ns)
    if changed:
        restart_process(attempt, f"{changed[0]} changed after the standby had loaded it")


def decline(attempt: Attempt, problem: str) -> NoReturn:
    """Tells the daemon that this standby is of no use, and waits until it is killed. It may be promoted just now: then
    it executes itself anew."""
    if attempt.channel is not None:
        load_s = (time.time_ns() - _began_ns) / 1e9
        attempt.channel.send_message(Ready(STANDBY, WARM, os.getpid(), load_s, problem))
        attempt.channel.wait_for_promotion()
    restart_process(attempt, problem)


def restart_process(attempt: Attempt, why: str) -> NoReturn:
    """Replaces this process by a fresh run of the same command, as an attempt that was never a standby."""
    channel = attempt.channel
    attempt.reporter.show_message(f"{why}; this process starts again from the beginning")
    attempt.reporter.drain(DRAIN_TIMEOUT_S)
    if channel is not None:
        channel.return_unserved_orders()
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(_folder)
    environment = {**os.environ, **attempt.launch.to_environment()}
    os.execve(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, *sys.orig_argv[1:]], environment
    )


def stamp_sources() -> SourceStamps:
    """Stamps of the job's own files among the loaded modules, and of the folders in which packages are installed."""
    return {path: _stamp_file(path) for path in (*_own_module_files(), *_package_folders())}


def changed_sources(before: SourceStamps, now: SourceStamps, since_ns: int) -> list[str]:
    """Paths that changed after they were loaded. `since_ns`: when loading began (Unix time).

    A file that changed while loading went on counts too: the old or the new content may have been read.
    """
    fresh = {path for path, stamp in before.items() if stamp is not None and stamp[0] >= since_ns}
    installed = set(_package_folders())  # bytecode may be written there while it is loaded
    return sorted({path for path in before if before[path] != now.get(path)} | (fresh - installed))


def _stamp_file(path: str) -> tuple[int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _own_module_files() -> Iterator[str]:
    """Files of modules that came neither with Python nor with an installed package."""
    foreign = tuple(
        f"{folder}{os.sep}" for folder in {*_package_folders(), *(sysconfig.get_paths().get(key) for key in _LIBRARIES)}
        if folder is not None
    )  # fmt: skip
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.startswith(_GENERATED):
            continue
        if isinstance(path, str) and path and not path.startswith(foreign):
            yield path


_LIBRARIES = ("stdlib", "platstdlib")
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = "__autograph_generated_file"  # TensorFlow's, in the folder for temporary files, while it traces


def _package_folders() -> list[str]:
    """The folders in which packages are installed, also those of the user and of another environment that a .pth file
    names: a folder changes when a package is added, removed or replaced."""
    paths = sysconfig.get_paths()
    searched = (folder for folder in sys.path if Path(folder).name in _INSTALLED)
    return sorted({paths["purelib"], paths["platlib"], *site.getsitepackages(), *searched})
