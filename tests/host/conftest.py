"""Real processes for the tests of what touches them."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from supervisor.host.processes.process import Process
from supervisor.host.processes.process_start import SpawnRequest, spawn
from supervisor.host.processes.process_status import Exit
from tests.places import CHILDREN

PATIENCE_S = 60.0  # for what takes well under a second; the machine may be busy


class Spawned:
    """A process and its exit to come."""

    def __init__(self, **changes: object) -> None:
        reading, writing = os.pipe()
        values = {"program": "test", "directory": None, "environment": dict(os.environ), "stdout": writing, "stderr": 2}
        self.exits: list[Exit] = []
        self._ended = asyncio.Event()
        self._output = reading
        try:
            self.process: Process = spawn(SpawnRequest(**{**values, **changes}), self._on_exit)  # type: ignore[arg-type]
        finally:
            os.close(writing)

    def _on_exit(self, exit_: Exit) -> None:
        self.exits.append(exit_)
        self._ended.set()

    async def exit(self) -> Exit:
        """How it ended."""
        await asyncio.wait_for(self._ended.wait(), PATIENCE_S)
        return self.exits[0]

    async def line(self) -> str:
        """Its next line of output."""
        return (await asyncio.wait_for(asyncio.to_thread(self._read_line), PATIENCE_S)).decode()

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self._output, 1)):
            line += byte
        return line.rstrip(b"\n")

    def close(self) -> None:
        """Leaves nothing behind."""
        self.process.kill_tree()
        self.process.kill_session()
        os.close(self._output)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The host has no thread to spare, until `undo`."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # Python's words for EAGAIN of clone(2)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


@pytest.fixture
def start() -> Iterator[Callable[..., Spawned]]:
    """Starts a command, with changes to its request; what is still alive at the end of the test is killed."""
    started: list[Spawned] = []

    def start_one(*argv: str, **changes: object) -> Spawned:
        started.append(Spawned(argv=argv, **changes))
        return started[-1]

    yield start_one
    for each in started:
        each.close()


@pytest.fixture
def start_child(start: Callable[..., Spawned]) -> Callable[..., Spawned]:
    """Starts a script of tests/children with this interpreter."""

    def start_one(script: str, *argv: str, **changes: object) -> Spawned:
        environment = {**os.environ, "PYTHONPATH": str(CHILDREN.parents[1])}
        return start(sys.executable, str(CHILDREN / script), *argv, **{"environment": environment, **changes})

    return start_one


async def gone(pid: int) -> None:
    """Waits until the process is dead (reaped or not: who reaps orphans is the host's business)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
