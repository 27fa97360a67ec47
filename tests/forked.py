"""Starts Python scripts in forks of a process that has imported their framework already.

Importing TensorFlow takes more processor time than most scripts of the tests that use it, and a fork has it at once. So
it has the modules of `worker`, of which none has begun an attempt, and at its end none is taken apart.
A fork is a child of this process like any other: with its own pid, standard streams, environment, working directory,
devices and threads (importing starts none); it can be killed and waited for. It is not for tests of the start of an
interpreter: what Python and the framework read from the environment while they are imported is that of this process,
and all forks order sets of strings alike.

Each process of tests has one such process for each framework, made at its first use, which ends with it. A daemon or a
chief that runs in a fork can have one of its own, so that the workers that it starts are forks too (`tests.forking`).
"""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.protocol.wire.launch import HASH_SEED
from tests.places import CHILDREN, ROOT

_OURS = ("supervisor.protocol.checkpoints.selection", "supervisor.protocol.wire.launch")
"""What `worker` imports of the package `supervisor`."""
NUMPY = ("numpy", *_OURS, "worker.files")
SKLEARN = ("numpy", "xxhash", "sklearn.datasets")
TENSORFLOW = ("tensorflow", "keras", *_OURS, "worker.run.run", "worker.keras")
TORCH = ("torch", "torch._dynamo", *_OURS, "worker.torch")  # the first optimizer would import the second
JAX = ("jax", "optax", "tqdm", *_OURS, "worker.files")
DAEMON = ("supervisor.host.service.slim_imports", "supervisor.preflight", "supervisor.lifecycle")
"""What `supervisor.daemon` imports; not itself, as it is what runs."""
CTL = ("supervisor.ctl.actions.run", "supervisor.ctl.settings", "supervisor.ctl.shell")
"""What `supervisor.ctl.main` imports, and the shell."""
STOCK = ("supervisor.supervisorctl", "supervisor.supervisord")
"""Of PyPI's Supervisor, by an interpreter that has it: our package is called the same, and must not be found there."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>
_PID_BYTES = 20
_FORKING = threading.RLock()  # a process is a subreaper, or none, for all of its threads, which share the servers too


class ForkServer:
    """A process that has imported modules, and forks. `asks`: a SOCK_SEQPACKET socket that it reads."""

    def __init__(self, asks: socket.socket, process: "subprocess.Popen[Any] | None" = None) -> None:
        self._asks = asks
        self._process = process

    @classmethod
    def start(cls, python: str, modules: Sequence[str]) -> "ForkServer":
        """One that imports `modules`, of the interpreter `python`: a fork of the one that has TensorFlow, if they need
        that and more."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        has_more = modules[: len(TENSORFLOW)] == TENSORFLOW != modules
        kind = ForkedProcess if has_more else subprocess.Popen
        with theirs:
            process = kind(
                [python, str(CHILDREN / "fork_server.py"), str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    **ONE_THREAD,
                    "PYTHONHASHSEED": HASH_SEED,
                    "PYTHONPATH": "" if modules == STOCK else str(ROOT),
                },
                stdin=subprocess.DEVNULL,
            )
        return cls(ours, process)

    def fork(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """The pid of a new child of this process. Raises ServerEnded."""
        pid = b""
        with _FORKING, _subreaper(), contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._asks, [json.dumps(order).encode()], descriptors)
            pid = self._asks.recv(_PID_BYTES)
        if not pid:
            status = f" with {self._process.wait()}" if self._process is not None else ""
            raise ServerEnded(f"the process that imports for others ended{status}")
        return int(pid)


class ServerEnded(RuntimeError):
    """The process that forks is gone; the text says with which status."""


_servers: dict[tuple[str, tuple[str, ...]], ForkServer] = {}


def _server(python: str, modules: tuple[str, ...]) -> ForkServer:
    with _FORKING:
        if (python, modules) not in _servers:
            _servers[python, modules] = ForkServer.start(python, modules)
        return _servers[python, modules]


def _fork(python: str, modules: tuple[str, ...], order: dict[str, Any], descriptors: Sequence[int]) -> int:
    """The pid of a new child. One test that ends a server, whichever it was, is not to fail all that follow."""
    try:
        return _server(python, modules).fork(order, descriptors)
    except ServerEnded as error:
        warnings.warn(f"{error}; another one is started", stacklevel=2)
        del _servers[python, modules]
        return _server(python, modules).fork(order, descriptors)


@contextmanager
def _subreaper() -> Iterator[None]:
    """Meanwhile, a descendant whose parent ends becomes a child of this process."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class ForkedProcess(subprocess.Popen[str]):
    """`subprocess.Popen([PYTHON, SCRIPT or "-m" MODULE, ARGUMENT...])`, without the interpreter's start.

    `order`: what else the fork is to do (`tests/children/fork_server.py`). `server`: forks it instead of the one with
    `modules`.
    """

    def __init__(
        self,
        command: Sequence[str],
        modules: tuple[str, ...] = TENSORFLOW,
        *,
        order: Mapping[str, Any] | None = None,
        server: ForkServer | None = None,
        **options: Any,
    ) -> None:
        self._modules, self._order, self._server = modules, order or {}, server
        super().__init__(command, **{"text": True, **options})

    def _execute_child(  # type: ignore[override]
        self, args: Sequence[str], executable: None, preexec_fn: None, close_fds: bool, pass_fds: tuple[int, ...],
        cwd: str | Path | None, env: Mapping[str, str] | None, startupinfo: None, creationflags: int, shell: bool,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: bool, gid: None, gids: None, uid: None, umask: int, start_new_session: bool,
        process_group: int,
    ) -> None:  # fmt: skip
        python, *arguments = map(str, args)
        sys.audit("subprocess.Popen", python, args, cwd, env)
        order = {
            "arguments": arguments,
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "start_new_session": start_new_session,
            "descriptors": [0, 1, 2, *pass_fds],
            "umask": umask,
            **self._order,
        }
        inherited = zip((p2cread, c2pwrite, errwrite), (0, 1, 2), strict=True)
        descriptors = [own if given == -1 else given for given, own in inherited]
        if self._server is not None:
            self.pid = self._server.fork(order, [*descriptors, *pass_fds])
        else:
            self.pid = _fork(python, self._modules, order, [*descriptors, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def run(
    command: Sequence[str],
    modules: tuple[str, ...] = TENSORFLOW,
    *,
    timeout: float,
    input: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(command, capture_output=True, text=True)` in a fork."""
    pipe = subprocess.PIPE
    if input is not None:
        options["stdin"] = pipe
    with ForkedProcess(command, modules, stdout=pipe, stderr=pipe, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
