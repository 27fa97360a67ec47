"""The one way to start a process: every child of the daemon comes from here, and a test knows all kinds of them.

There are two. What the configuration names for a program, `start_configured`, runs as the program's user from before
exec(2) on: what its environment says to the loader (LD_PRELOAD, LD_LIBRARY_PATH), to Python or to a shell is obeyed
with that user's rights, never with root's. And what the daemon needs for itself, `start_own`: parts of it that run as
processes, hooks, tools of the host. Those may run as root, so their environment is built from a list of allowed
variables (`ALLOWED`), and has nothing that anybody but root has set.

Children inherit no descriptor but 0, 1 and 2, and lead a session of their own.
"""

import asyncio
import contextlib
import errno
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import supervisor
from supervisor.host.passed_over import PassedOver

HOOK_VARIABLES = frozenset({"STEPKEEPER_EVENT", "STEPKEEPER_PROGRAM"})
ALLOWED = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_JWT"}) | HOOK_VARIABLES
"""All that what runs as root may find in its environment. No loader and no interpreter takes code from these."""

EXEC_LIMIT_S = 2.0  # it takes a millisecond, on a host with ten times the work it can do more; all programs wait

_Stdio = int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a process becomes, for good."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    def assume(self) -> None:
        """Makes this process that user's, with the usual umask."""
        self.set_ids()
        os.umask(0o022)

    def set_ids(self) -> None:
        """Makes this process that user's: system calls only."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


@dataclass(frozen=True, slots=True)
class Configured:
    """A command of the configuration. `environment`: complete; `user`: None keeps the daemon's.

    `executable`: None to look for `argv[0]`. `prepare`: what the child does as `user`, before it enters `directory` and
    exec(2): system calls only, as other threads may hold any lock.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    stdin: int = subprocess.DEVNULL
    executable: Path | None = None
    directory: Path | None = None
    user: Identity | None = None
    umask: int | None = None
    prepare: Callable[[], None] | None = None


def start_configured(child: Configured) -> subprocess.Popen[bytes]:
    """Starts it; returns when exec(2) has succeeded. Raises OSError, ValueError, subprocess.SubprocessError.

    As another user, it raises TimeoutError if exec(2) does not come within EXEC_LIMIT_S (`_StartAsUser`).
    """
    if child.user is None or os.geteuid() != 0:  # others may not even set the user they are
        # None where possible, as a function keeps Popen from using vfork(2)
        return _popen(child, child.prepare, cwd=child.directory)
    return _StartAsUser(child, child.user).result()


def _popen(
    child: Configured, preparation: Callable[[], None] | None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        child.argv,
        executable=child.executable,
        env=child.environment,
        stdin=child.stdin,
        stdout=child.stdout,
        stderr=child.stderr,
        start_new_session=True,
        umask=-1 if child.umask is None else child.umask,
        cwd=cwd,
        preexec_fn=preparation,  # noqa: PLW1509 - system calls only
    )


_hanging: dict[int, threading.Thread] = {}
"""By uid: the last start as that user that did not come to exec(2) in time."""
_passed_over = PassedOver()


class _StartAsUser:
    """A start in a thread of its own, as its user decides how long it takes.

    What is between fork(2) and exec(2) opens files of that user's: directory, command, interpreter. Opening one waits
    as long as its file system likes, which may be a program of the user's (FUSE), or for /proc/sys/fs/lease-break-time
    if the user holds a lease on it (fcntl(2)). Popen waits for exec(2), so the thread waits in the caller's place. The
    caller waits for fork(2), as the child needs its descriptors, and from then on for EXEC_LIMIT_S. One that takes
    longer is killed, and while it hangs all the same, and for a while after, no other is tried as that user.

    The child says its pid before it becomes that user, who from then on can stop it for ever (SIGSTOP).
    """

    def __init__(self, child: Configured, user: Identity) -> None:
        self._child = child
        self._user = user
        self._outcome: Future[subprocess.Popen[bytes]] = Future()
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC)

    def result(self) -> subprocess.Popen[bytes]:
        """The process. Raises as `start_configured`."""
        before = _hanging.get(self._user.uid)
        hangs = before is not None and before.is_alive()
        left_s = _passed_over.left_s(self._user.uid, time.monotonic())
        if hangs or left_s:
            os.close(self._reading)
            os.close(self._writing)
            took = f"took more than {EXEC_LIMIT_S:g} s just now; the next is tried in {math.ceil(left_s)} s"
            what = "still hangs" if hangs else took
            raise TimeoutError(errno.ETIMEDOUT, f"an earlier start as the same user {what}")
        thread = threading.Thread(target=self._run, name="start", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the host has no thread to spare
            self._run()
        with os.fdopen(self._reading, "rb", buffering=0) as reports:
            pid = int(reports.readline())
            try:
                return self._outcome.result(EXEC_LIMIT_S)
            except TimeoutError:
                if not self._outcome.cancel():  # it is here just now
                    return self._outcome.result()
            except subprocess.SubprocessError as error:  # Popen hides what the child met
                number = int(reports.readline())
                if number == 0:
                    raise
                raise OSError(number, os.strerror(number)) from error
        _hanging[self._user.uid] = thread
        _passed_over.add(self._user.uid, time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it was not reaped: that would have been an outcome
        raise TimeoutError(errno.ETIMEDOUT, f"exec(2) has taken more than {EXEC_LIMIT_S:g} s")

    def _run(self) -> None:
        """In the thread. The pipe gets the child's pid from the child, then perhaps its error's number; last, a 0."""
        process: subprocess.Popen[bytes] | None = None
        error: BaseException | None = None
        try:
            process = _popen(self._child, self._take_steps)
        except BaseException as problem:  # noqa: BLE001 - it is raised where the process is waited for
            error = problem
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writing, b"0\n")
        os.close(self._writing)
        if not self._outcome.set_running_or_notify_cancel():  # nobody waits any more
            if process is not None:
                process.kill()
                process.wait()
        elif process is not None:
            self._outcome.set_result(process)
        else:
            self._outcome.set_exception(error)

    def _take_steps(self) -> None:
        """In the child, between fork(2) and exec(2)."""
        os.write(self._writing, b"%d\n" % os.getpid())
        try:
            self._user.set_ids()
            if self._child.prepare is not None:
                self._child.prepare()
            if self._child.directory is not None:  # as the user, who may have made it a link to where only root can go
                os.chdir(self._child.directory)
        except OSError as error:
            os.write(self._writing, b"%d\n" % (error.errno or errno.EIO))
            raise


def start_own(
    argv: tuple[str, ...],
    variables: Mapping[str, str],
    *,
    stdin: _Stdio = subprocess.DEVNULL,
    stdout: _Stdio = subprocess.DEVNULL,
    stderr: _Stdio = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts a process of the daemon's own in the folder /. Raises OSError."""
    _check_allowed(argv, variables)
    return subprocess.Popen(
        argv, env=variables, stdin=stdin, stdout=stdout, stderr=stderr, cwd="/", start_new_session=True
    )


async def start_own_with_streams(
    argv: tuple[str, ...], variables: Mapping[str, str], *, limit: int = 64 * 1024, stderr: _Stdio = subprocess.PIPE
) -> asyncio.subprocess.Process:
    """As `start_own`, for the running loop: it writes to standard input and reads the output. `limit`: bytes a line."""
    _check_allowed(argv, variables)
    return await asyncio.create_subprocess_exec(
        *argv,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        limit=limit,
        cwd="/",
        start_new_session=True,
    )


def own_command(module: str, *arguments: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command that runs `main` of one of our modules, which finds `arguments` in sys.argv[1:].

    Python starts isolated: no variable and no folder but those of its installation decides what it imports.
    """
    code = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import main; main()"
    folder = str(Path(supervisor.__file__).parents[1])
    return (sys.executable, "-I", *flags, "-X", "utf8", "-c", code, folder, *arguments)


def _check_allowed(argv: tuple[str, ...], variables: Mapping[str, str]) -> None:
    others = sorted(variables.keys() - ALLOWED)
    if others and os.geteuid() == 0:
        raise ValueError(f"{argv[0]} may run as root, and must not find {', '.join(others)} in its environment")
