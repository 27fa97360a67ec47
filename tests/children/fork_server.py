"""Runs scripts in forks of a process that has imported what they need: `python fork_server.py SOCKET MODULE...`.

SOCKET: the number of a descriptor, a connected SOCK_SEQPACKET socket. Each message that comes is a JSON object, as
`tests.forked` sends it, with descriptors; the answer is the fork's pid. The fork's parent is gone by then, so that the
nearest subreaper, who asked, has it as a child of its own. With `forks` in an order the fork has a server of its own,
a child that is forked before it does anything else; `tests.forking` says what it is for.
"""

import atexit
import ctypes
import dis
import gc
import importlib.util
import io
import itertools
import json
import mmap
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 18  # of an order: it has a whole environment
MOST_DESCRIPTORS = 16
_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_CHILD_SUBREAPER = 35, 14, 36  # <linux/prctl.h>
_STAT_OF_MEMORY = (26, 27, 45, 46, 47, 28)
"""The fields of /proc/PID/stat (proc_pid_stat(5)) with the first seven members of `struct prctl_mm_map`, less brk."""

TOGETHER = "TF_CONFIG"  # TensorFlow's variable
ROOT = Path(__file__).resolve().parents[2]
ACTIVE = frozenset({"worker.checks.watch.clocks", "worker.state.dataset_parts"})
"""Modules that look at a clock, or at what the script does, from their import on."""

_shown: list[mmap.mmap] = []
"""What /proc shows of this process lies there."""


def main() -> None:
    asks = socket.socket(fileno=int(sys.argv[1]))
    sys.path.pop(0)  # the folder of this file, whose modules are nothing to the scripts
    load(sys.argv[2:])
    end_after(lambda: serve(asks))


def load(modules: Sequence[str]) -> None:
    """Imports them, and has the garbage collector leave what they made alone, here and in every fork: it would search
    a million objects for none that is garbage, and a fork would copy the memory that these lie in."""
    gc.disable()
    for name in modules:
        if not name.startswith("worker."):
            importlib.import_module(name)
    load_worker([name for name in modules if name.startswith("worker.")])
    gc.enable()
    gc.freeze()


def load_worker(wanted: Sequence[str]) -> None:
    """Makes modules of the package `worker`, with all that they import, but for what scripts have to make themselves:
    the package's own `__init__`, with which a process begins an attempt, ACTIVE, and what imports these.

    A script that imports one of them gets it as it is. So it finds in `sys.modules` what it would find anyway.
    """
    if not wanted:
        return
    imports: dict[str, set[str]] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in imports:
            imports[name] = imported_by(name)
            waiting += imports[name]
    left_out = set(ACTIVE)
    while more := {name for name in imports.keys() - left_out if not left_out.isdisjoint(imports[name])}:
        left_out |= more
    package = importlib.util.find_spec("worker")
    assert package is not None
    sys.modules["worker"] = importlib.util.module_from_spec(package)  # a name with a folder, until all are there
    for name in imports:
        if name not in left_out:
            importlib.import_module(name)
    made = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "worker"}
    del made["worker"]
    for name in made:
        parent, _, leaf = name.rpartition(".")
        if parent in made:
            delattr(made[parent], leaf)
    sys.meta_path[:0] = [Made(made, imports)]


class Made(MetaPathFinder, Loader):
    """Gives out modules that were made before, as an import of each would have made it."""

    def __init__(self, modules: Mapping[str, types.ModuleType], imports: Mapping[str, set[str]]) -> None:
        self._modules = modules
        self._imports = imports
        self._specs = {name: module.__spec__ for name, module in modules.items()}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._modules else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]
        for name in self._imports[module.__name__]:
            importlib.import_module(name)


def imported_by(name: str) -> set[str]:
    """The modules of ours that a module imports while it is imported itself."""
    file = file_of(name)
    assert file is not None
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert code is not None
    named, package, skipped_to = {name.rpartition(".")[0]}, "", 0
    for instruction, following in itertools.pairwise(dis.get_instructions(code)):
        if instruction.offset < skipped_to:
            continue
        if instruction.argval == "TYPE_CHECKING" and following.opname.startswith("POP_JUMP"):
            skipped_to = following.argval
        elif instruction.opname == "IMPORT_NAME":
            package = instruction.argval
            named.add(package)
        elif instruction.opname == "IMPORT_FROM":
            named.add(f"{package}.{instruction.argval}")
    return {module for module in named if file_of(module) is not None}


def file_of(module: str) -> Path | None:
    """The file of a module in one of our packages; None if it is none."""
    if not module.startswith(("worker.", "supervisor.")):
        return None
    place = ROOT.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()), None)


def end_after(act: Callable[[], object]) -> NoReturn:
    """Ends this process after `act`, as an interpreter ends, but that modules stay as they are: to take apart those of
    a framework costs more than many a script, and copies the memory that they lie in.

    Where several processes train together, a part of TensorFlow's that ends with its modules waits for the others.
    """
    status = 0
    try:
        act()
    except KeyboardInterrupt:
        raise
    except SystemExit as end:
        if TOGETHER in os.environ:
            raise
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        if TOGETHER in os.environ:
            raise
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    if TOGETHER in os.environ:
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    threading.excepthook = lambda _: None  # threads that go on find nothing any more
    if (script := vars(sys.modules["__main__"])) is not globals():  # that of `-m` is gone
        script.clear()  # files that the script has left open are written
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError):
            stream.flush()
    os._exit(status & 0xFF)


def serve(asks: socket.socket) -> bool:
    """Forks at each order, until nobody can ask any more; then False. True in a fork, once its script is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(asks, MOST_BYTES, MOST_DESCRIPTORS)
        except ConnectionResetError:  # it was killed before it had read an answer
            return False
        if not message:
            return False
        order = json.loads(message)
        if is_the_fork(asks, order["start_new_session"]):
            become(order, descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)


def is_the_fork(asks: socket.socket, starts_session: bool) -> bool:
    """Forks twice; True in the grandchild. Tells its pid once the process between them is gone and it leads its
    session: who asked may signal its group at once."""
    readable, writable = os.pipe()
    between = os.fork()
    if between != 0:
        os.close(writable)
        os.waitpid(between, 0)
        asks.send(os.read(readable, 20))
        os.close(readable)
        return False
    between = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    if starts_session:
        os.setsid()
    os.write(writable, str(os.getpid()).encode())
    while os.getppid() == between:
        time.sleep(0.001)
    asks.close()
    os.close(readable)
    os.close(writable)
    return True


def become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Runs the command in this fork, as Python would have started it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place(descriptors, order["descriptors"])
    if order["umask"] >= 0:
        os.umask(order["umask"])
    if order.get("keeps_orphans"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    is_seen = show([sys.executable, *order["arguments"]], order["environment"])
    if (kind := order.get("forks")) is not None and is_seen:
        fork_from_here(kind)
    open_streams()
    for module in ("random", "numpy.random"):  # or all forks would draw the same numbers
        if module in sys.modules:
            sys.modules[module].seed()
    run(order["arguments"])


def place(descriptors: list[int], numbers: list[int]) -> None:
    """Gives the descriptors that came these numbers."""
    above = max(*numbers, *descriptors) + 1
    for index, descriptor in enumerate(descriptors):  # first out of the way of all numbers
        os.dup2(descriptor, above + index)
        os.close(descriptor)
    for index, number in enumerate(numbers):
        os.dup2(above + index, number)
        os.close(above + index)


def show(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Has /proc show these as the arguments and the environment of this process; False where the kernel can't.

    From its environment a daemon knows the processes that are its own.
    """
    arguments, variables = (_encoded(texts) for texts in (command, [f"{k}={v}" for k, v in environment.items()]))
    memory = mmap.mmap(-1, len(arguments) + len(variables) + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(arguments + variables)
    _shown.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle, end = start + len(arguments), start + len(arguments) + len(variables)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    *lower, stack = (int(fields[number - 3]) for number in _STAT_OF_MEMORY)
    addresses = (*lower, libc.sbrk(0), stack, start, middle, middle, end)
    layout = struct.pack("=12QIi", *addresses, 0, 0, -1)  # no new auxiliary vector, no new executable
    return bool(libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0) == 0)


def _encoded(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def fork_from_here(kind: str) -> None:
    """Gives this process a server, and has it ask that one for its workers."""
    forked, forking = (importlib.import_module(f"tests.{name}") for name in ("forked", "forking"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        if serve(theirs):
            raise SystemExit(0)  # a script is over
        os._exit(0)
    theirs.close()
    getattr(forking, kind)(forked.ForkServer(ours))


def open_streams() -> None:
    """The three of a new interpreter that writes into pipes or files."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    raw = open(1, "wb", 0, closefd=False)  # noqa: SIM115
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    stdout = io.TextIOWrapper(raw if is_unbuffered else io.BufferedWriter(raw), write_through=is_unbuffered)
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def run(arguments: list[str]) -> None:
    """`SCRIPT ARGUMENT...` or `-m MODULE ARGUMENT...`."""
    extra = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    is_module = arguments[0] == "-m"
    sys.orig_argv = [sys.executable, *arguments]
    sys.argv = arguments[1:] if is_module else arguments
    first = os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0]))
    sys.path[:0] = [first, *(folder for folder in extra if folder not in sys.path)]
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    main_module = types.ModuleType("__main__")
    main_module.__file__ = script
    main_module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    sys.modules["__main__"] = main_module
    with io.open_code(os.path.abspath(script)) as file:
        code = compile(file.read(), script, "exec")
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    main()
