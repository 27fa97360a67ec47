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
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import supervisor

HOOK_VARIABLES = frozenset({"STEPKEEPER_EVENT", "STEPKEEPER_PROGRAM"})
ALLOWED = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_JWT"}) | HOOK_VARIABLES
"""All that what runs as root may find in its environment. No loader and no interpreter takes code from these."""

_Stdio = int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a process becomes, for good."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    def assume(self) -> None:
        """Makes this process that user's."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        os.umask(0o022)


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
    """Starts it; returns when exec(2) has succeeded. Raises OSError, ValueError, subprocess.SubprocessError."""
    user = child.user if os.geteuid() == 0 else None  # others may not even set the user they are
    with _errors_of_child() as report:
        return subprocess.Popen(
            child.argv,
            executable=child.executable,
            env=child.environment,
            stdin=child.stdin,
            stdout=child.stdout,
            stderr=child.stderr,
            start_new_session=True,
            umask=-1 if child.umask is None else child.umask,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=user.groups if user else None,
            # Popen enters `cwd` before it becomes the user, who may have made it a link to where only root can go
            cwd=child.directory if user is None else None,
            # None where possible, as it keeps Popen from using vfork(2)
            preexec_fn=_steps(child, user, report),  # noqa: PLW1509 - system calls only
        )


def _steps(child: Configured, user: Identity | None, report: int) -> Callable[[], None] | None:
    """What the child does between fork(2) and exec(2), as `user`; None if there is nothing to do."""
    prepare, directory = child.prepare, child.directory if user is not None else None
    if directory is None:
        return prepare

    def take_steps() -> None:
        if prepare is not None:
            prepare()
        try:
            os.chdir(directory)
        except OSError as error:
            os.write(report, str(error.errno).encode())
            raise

    return take_steps


@contextlib.contextmanager
def _errors_of_child() -> Iterator[int]:
    """A descriptor to which the child can write an errno before exec(2), which is then raised: Popen hides it."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield writing
    except subprocess.SubprocessError as error:
        with contextlib.suppress(BlockingIOError):
            number = int(os.read(reading, 10))
            raise OSError(number, os.strerror(number)) from error
        raise
    finally:
        os.close(reading)
        os.close(writing)


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


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool said. `status`: its exit status, negative if a signal ended it."""

    status: int
    stdout: bytes
    stderr: bytes


def ask_tool(argv: tuple[str, ...], timeout_s: float) -> ToolAnswer:
    """Runs a tool of the host, such as systemctl, to its end; blocks. Raises OSError, subprocess.TimeoutExpired."""
    with start_own(argv, tool_variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return ToolAnswer(process.returncode, stdout, stderr)


def tool_variables() -> Mapping[str, str]:
    """The environment of a tool: the daemon's own, as root only what is allowed of it."""
    if os.geteuid() != 0:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name in ALLOWED}


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
