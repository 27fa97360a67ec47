"""Runs scripts in forks of a process that has imported their framework: `python fork_server.py SOCKET MODULE...`.

SOCKET: the number of a descriptor, a connected SOCK_SEQPACKET socket. Each message that comes is a JSON object, as
`tests.forked` sends it, with three descriptors; the answer is the fork's pid. The fork's parent is gone by then, so
that the nearest subreaper, who asked, has it as a child of its own.
"""

import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import types
from typing import Any

MOST_BYTES = 1 << 18  # of an order: it has a whole environment


def main() -> None:
    asks = socket.socket(fileno=int(sys.argv[1]))
    sys.path.pop(0)  # the folder of this file, whose modules are nothing to the scripts
    for name in sys.argv[2:]:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked
    while True:
        order, descriptors, _, _ = socket.recv_fds(asks, MOST_BYTES, 3)
        if not order:
            return
        if is_the_fork(asks):
            become(json.loads(order), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def is_the_fork(asks: socket.socket) -> bool:
    """Forks twice; True in the grandchild. Tells its pid once the process between them is gone."""
    readable, writable = os.pipe()
    between = os.fork()
    if between != 0:
        os.close(writable)
        os.waitpid(between, 0)
        asks.send(os.read(readable, 20))
        os.close(readable)
        return False
    fork = os.fork()
    if fork != 0:
        os.write(writable, str(fork).encode())
        os._exit(0)
    asks.close()
    os.close(readable)
    os.close(writable)
    return True


def become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Runs the command in this fork, as Python would have started it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["start_new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    open_streams()
    for module in ("random", "numpy.random"):  # or all forks would draw the same numbers
        if module in sys.modules:
            sys.modules[module].seed()
    run(order["arguments"])


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
