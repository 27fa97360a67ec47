"""Runs the operator's hook commands, one after the other, in a thread, with JSON on their standard input.

Nobody waits for them. A command that takes too long is killed with all it started. Programs take turns, as one that
fails again and again, or is told to by its user, must not keep the events of others from people. Events that do not fit
into a program's queue are dropped and counted.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from supervisor.host.child_output import wait_and_read
from supervisor.host.children import start_own
from supervisor.protocol.plurals import counted

QUEUED = 100  # of a program; if each command takes its 30 s, the last is 50 minutes late: more would be of no use
SHOWN_BYTES = 500  # the last of what a command that failed wrote to standard error
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FOLDER = Path("/")  # where each command runs (`start_own`)

log = structlog.get_logger()

HookFact = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class HookEvent:
    """What a hook is run for: `command` gets `facts` as JSON; `event` of `program` is what happened."""

    command: tuple[str, ...]
    event: str
    program: str
    facts: Mapping[str, HookFact]


class HookRunner:
    """The queue and its thread, which starts with the first event. `timeout_s`: how long a command may take."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.dropped = self.failed = 0
        self._timeout_s = timeout_s
        self._queues: dict[str, deque[HookEvent]] = {}
        """By program, of those that have events; the one whose turn it is comes first."""
        self._overflowing: set[str] = set()
        """Programs whose last event was dropped, which was logged."""
        self._changed = threading.Condition()
        self._closing = self._busy = False
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def failure_summary(self) -> str | None:
        """How many hooks failed or were dropped since the daemon's start; None if none."""
        if not (self.dropped or self.failed):
            return None
        failed, dropped = counted(self.failed, "hook command"), counted(self.dropped, "event")
        return f"{failed} failed, {dropped} dropped; see hook.failed and hook.dropped in the daemon's log"

    def run_hook(self, event: HookEvent) -> None:
        """Queues the event; never waits."""
        program = event.program
        with self._changed:
            if self._closing or len(self._queues.get(program, ())) >= QUEUED:
                self.dropped += 1
                if program not in self._overflowing:
                    self._overflowing.add(program)
                    log.warning("hook.dropped", hook=event.event, program=program, queued=self._queued)
                return
            self._overflowing.discard(program)
            self._queues.setdefault(program, deque()).append(event)
            if self._thread is None:  # not earlier: a thread inherits the signals that are blocked during the start
                self._begin()
            self._changed.notify_all()

    @property
    def _queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the host has no thread to spare
            log.warning("hook.delayed", error=str(error), queued=self._queued, next="it runs with the next hook")
        else:
            self._thread = thread

    def close(self, timeout_s: float) -> None:
        """Lets queued hooks run for `timeout_s`; then kills the running one and drops the others."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queues or self._busy), timeout_s)
            self._closing = True
            self.dropped += self._queued
            if self._queues:
                log.warning("hook.dropped", hook="all queued", program="", queued=self._queued)
            self._queues.clear()
            self._changed.notify_all()
            if self._process is not None:
                _kill(self._process)
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queues or self._closing)
                if self._closing:
                    return
                event = self._next_event()
                self._busy = True
            error = self._run_command(event)
            if error is not None:
                self.failed += 1
                log.error("hook.failed", hook=event.event, program=event.program, error=error)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next_event(self) -> HookEvent:
        program = next(iter(self._queues))
        queue = self._queues.pop(program)
        event = queue.popleft()
        if queue:
            self._queues[program] = queue
        return event

    def _run_command(self, event: HookEvent) -> str | None:
        """Runs the command to its end; returns what went wrong."""
        variables = {"STEPKEEPER_EVENT": event.event, "STEPKEEPER_PROGRAM": event.program}
        try:
            content = json.dumps(event.facts, allow_nan=False).encode() + b"\n"
            return self._wait(event.command, content, {"PATH": PATH, "LANG": "C.UTF-8", **variables})
        except OSError as error:
            return f"cannot run {event.command[0]}: {error.strerror}; it must be an executable file"
        except ValueError as error:
            return f"cannot run {event.command[0]}: what it is to get is no JSON: {error}"

    def _wait(self, command: tuple[str, ...], content: bytes, environment: Mapping[str, str]) -> str | None:
        errors, printing = os.pipe2(os.O_CLOEXEC)
        try:
            with open(os.memfd_create("facts"), "w+b") as facts:  # noqa: PTH123 - it has no path
                facts.write(content)
                facts.seek(0)
                try:
                    process = start_own(command, environment, stdin=facts.fileno(), stderr=printing)
                finally:
                    os.close(printing)
            with self._changed:
                self._process = process
            began = time.monotonic()
            try:
                printed = wait_and_read(process, errors, self._timeout_s, SHOWN_BYTES)
            except subprocess.TimeoutExpired:
                _kill(process)
                return f"killed after {time.monotonic() - began:.0f} s; make it faster, or raise hook_timeout"
            finally:
                with self._changed:  # before it is reaped: then another may have its number
                    self._process = None
                status = process.wait()
        finally:
            os.close(errors)
        return None if status == 0 else f"exit status {status}: {printed.decode(errors='replace').strip()}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
