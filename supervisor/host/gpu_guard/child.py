"""The helper for GPUs, which `client.py` starts: follows the kernel's log, and asks NVML.

Three threads. The main one reads questions from standard input and ends the process with it. One alone talks to NVML,
and may hang there for ever. One follows the kernel's log, so that this goes on while the other hangs, and says so if it
does. What is known of a GPU is in the messages; nothing is decided here.
"""

import fcntl
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from supervisor.core.gpus.xid import GpuNamed, XidLine, XidReader
from supervisor.host.gpu_guard import messages
from supervisor.host.gpu_guard.log_sources import JournalSource, KmsgSource, LogSource
from supervisor.host.gpu_guard.nvml import Nvml
from supervisor.host.resources.kernel_log import KernelLog, KernelRecord
from supervisor.protocol.wire.codec import ProtocolError, decode_record, fit_record, parse_object
from supervisor.protocol.wire.lines import MAX_LINE_BYTES

HANGS_AFTER_S = 10.0  # a driver in order answers in milliseconds, for eight GPUs in about a second
REPEATED_S = 5.0  # the same line again is reported this often
MAX_REPEATED = 500  # different lines that are remembered
SOURCE_AGAIN_S = 60.0  # after the kernel's log could not be read, or ended
LOOK_S = 0.5  # of the log's thread at the other; both clocks are compared that often
LOCK_WAIT_S = 3.0  # a helper that was killed is gone within milliseconds, unless it hangs


class HelperOutput:
    """Standard output, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, message: messages.Message) -> None:
        with self._lock:
            sys.stdout.buffer.write(messages.LINES.encode(fit_record(message)))
            sys.stdout.buffer.flush()


class _Asker:
    """The thread that talks to NVML. `call`, `since`: what it is in, and since when; for the other thread to read."""

    def __init__(self, output: HelperOutput, settings: messages.HelperSettings) -> None:
        self.questions: SimpleQueue[messages.Question | messages.Pace | None] = SimpleQueue()
        self.in_call: tuple[str, float] | None = None
        self._output = output
        self._settings = settings
        self._nvml = Nvml(self._on_call)
        self._poll_s = settings.poll_s

    def _on_call(self, name: str) -> None:
        self.in_call = (name, time.monotonic()) if name else None

    def run(self) -> None:
        due_at = time.monotonic()
        while True:
            try:
                question = self.questions.get(timeout=max(0.0, due_at - time.monotonic()))
            except Empty:
                question = None
            match question:
                case messages.Pace():
                    self._poll_s = self._settings.poll_s if question.is_training else self._settings.idle_poll_s
                    due_at = min(due_at, time.monotonic() + self._poll_s)
                    continue
                case messages.MemoryRequest():
                    self._output.write(messages.MemoryHeld(question.id, self._nvml.memory_by_pid()))
                    continue
                case messages.LoadRequest():
                    self._output.write(messages.GpuLoads(question.id, self._nvml.loads()))
                    continue
                case messages.ListRequest():
                    gpus = self._nvml.list_gpus(with_pids=True)
                    self._output.write(
                        messages.GpuList(question.id, gpus.gpus, gpus.error, gpus.why, gpus.is_from_nvml)
                    )
                case _:
                    self._output.write(self._nvml.list_gpus(with_pids=False))
            due_at = time.monotonic() + self._poll_s


class _Follower:
    """The thread that follows the kernel's log."""

    def __init__(
        self, output: HelperOutput, asker: _Asker, open_log: Callable[[], KernelLog], settings: messages.HelperSettings
    ) -> None:
        self.requests: SimpleQueue[messages.CatchUpRequest] = SimpleQueue()
        self._output = output
        self._asker = asker
        self._open_log = open_log
        self._after = settings.after
        self._reader = XidReader()
        self._source: LogSource | None = None
        self._source_at = 0.0
        self._why: str | None = None
        self._is_backlog = True  # lines from before this process
        self._hangs = ""
        self._lines: dict[tuple[str, int, int | None], tuple[float, int]] = {}
        self._wake, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        while True:
            if self._source is None and time.monotonic() >= self._source_at:
                self._open()
            waited: list[int | LogSource] = [self._wake, *([self._source] if self._source is not None else [])]
            readable, _, _ = select.select(waited, [], [], LOOK_S)
            if self._wake in readable:
                os.read(self._wake, 4096)
            asked = []
            while not self.requests.empty():
                asked.append(self.requests.get())
            if asked or any(source is self._source for source in readable):
                self._read()
            for request in asked:
                self._output.write(messages.CaughtUp(request.id))
            self._look_at_asker()

    def _open(self) -> None:
        why = ""
        try:
            self._source = KmsgSource(self._open_log, self._after)
        except OSError as error:
            try:
                self._source = JournalSource()
            except OSError:
                self._source_at = time.monotonic() + SOURCE_AGAIN_S
                why = f"cannot read /dev/kmsg: {error.strerror}, and there is no journalctl"
        if why != self._why:
            self._why = why
            self._output.write(messages.Sources(kernel_log=why))

    def _read(self) -> None:
        records = self._source.read() if self._source is not None else []
        if records is None:
            assert self._source is not None
            self._source.close()
            self._source, self._source_at = None, time.monotonic() + SOURCE_AGAIN_S
            records = []
        has_new_fault = False
        for record in records:
            self._after = max(self._after or 0, record.number) or self._after
            has_new_fault = self._report(record) or has_new_fault
        self._is_backlog = False
        if has_new_fault and self._asker.questions.empty():
            self._asker.questions.put(None)  # what the driver wants done about it, now

    def _report(self, record: KernelRecord) -> bool:
        seen = self._reader.read(record.text)
        if isinstance(seen, GpuNamed):
            self._output.write(messages.NameSeen(seen.address, seen.uuid))
        if not isinstance(seen, XidLine):
            return False
        now = time.monotonic()
        kind = (seen.address, seen.number, seen.pid) if seen.recovery is None else (seen.address, seen.recovery, -1)
        last_at, times = self._lines.get(kind, (-REPEATED_S, 0))
        if now - last_at < REPEATED_S:
            self._lines[kind] = (last_at, times + 1)
            return False
        if len(self._lines) >= MAX_REPEATED:
            self._lines.clear()
        self._lines[kind] = (now, 0)
        # both clocks stand still while the host is suspended, but drift apart over weeks: new lines are new
        age_s = max(0.0, time.monotonic() - record.at_s) if self._is_backlog else 0.0
        self._output.write(
            messages.XidSeen(
                seen.number,
                seen.address,
                seen.text,
                age_s,
                seen.pid,
                seen.recovery,
                seen.is_fatal,
                record.number or None,
                times + 1,
            )
        )
        return True

    def _look_at_asker(self) -> None:
        in_call = self._asker.in_call
        hangs = in_call is not None and time.monotonic() - in_call[1] >= HANGS_AFTER_S
        if in_call is not None and hangs and not self._hangs:
            self._hangs = in_call[0]
            self._output.write(messages.DriverHangs(self._hangs, time.monotonic() - in_call[1]))
        elif self._hangs and not hangs:
            self._output.write(messages.DriverHangs(self._hangs, 0.0))
            self._hangs = ""


def _run_or_end(run: Callable[[], None]) -> None:
    """A helper with a thread less would answer some questions and not others."""
    try:
        run()
    except BaseException as error:  # noqa: BLE001 - the daemon reports it, and starts another helper
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def _hold_lock(path: str) -> None:
    """One helper at a time, also of daemons before: one that hangs in the driver may outlive its daemon."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os._exit(messages.EXIT_LOCKED)
            time.sleep(0.05)
        else:
            return


def main(open_log: Callable[[], KernelLog] = KernelLog) -> None:
    """Works until standard input ends. `open_log`: opens the kernel's log."""
    settings = decode_record(parse_object(sys.argv[1]), messages.HelperSettings, "settings")
    _hold_lock(settings.lock)
    output = HelperOutput()
    asker = _Asker(output, settings)
    follower = _Follower(output, asker, open_log, settings)
    for run in (asker.run, follower.run):
        threading.Thread(target=partial(_run_or_end, run), daemon=True).start()
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
        try:
            message = messages.LINES.decode(line)
        except ProtocolError as error:
            sys.stderr.write(f"{error}\n")
            continue
        if isinstance(message, messages.CatchUpRequest):
            follower.requests.put(message)
            os.write(follower.waker, b"\0")
        elif isinstance(message, messages.ListRequest | messages.MemoryRequest | messages.LoadRequest | messages.Pace):
            asker.questions.put(message)
    os._exit(0)
