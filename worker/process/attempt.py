"""This process as one attempt of a job: what it was told at its start, and whom it speaks to."""

import atexit
import faulthandler
import io
import os
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from supervisor.protocol import launch
from supervisor.protocol.exit_codes import WorkerExit
from supervisor.protocol.launch import Control, Launch, LaunchError
from supervisor.protocol.messages import Failed, FromWorker, Progress, Promote
from supervisor.protocol.wording import counted
from worker.process import stack_dumps, standby
from worker.process.console import ConsoleReporter
from worker.process.control_pipe import WorkerChannel
from worker.process.requests import PendingRequests
from worker.process.user_messages import print_message

DRAIN_TIMEOUT_S = 2.0  # how long a process that is over waits for a daemon that doesn't read
MAX_ERROR = 2000  # characters of an error's text; a line on the pipe is at most 64 KiB
MAX_TRACEBACK = 8000  # characters, the end of it: there the cause stands


class DeliberateExit(SystemExit):
    """This process ends on purpose, with a code of `WorkerExit`; all that had to be said is said."""


class Reporter(Protocol):
    """Whoever is told what happens here: the daemon, or the person at the terminal."""

    def send_message(self, message: FromWorker) -> None:
        """Tells what must arrive."""

    def send_progress(self, message: Progress) -> None:
        """Tells what only the newest of counts."""

    def show_message(self, text: str) -> None:
        """Something for the person who reads stderr, on one line."""

    def drain(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until all of it is out."""


@dataclass(slots=True)
class Attempt:
    """`channel` is None without a daemon; `number` is then only known once the checkpoint directory is."""

    launch: Launch
    requests: PendingRequests
    reporter: Reporter
    channel: WorkerChannel | None = None
    number: int = 1
    has_begun_run: bool = (
        False  # from where the daemon said; a later run of the script goes on from what that one saved
    )
    failure_sent: bool = False

    @property
    def is_standby(self) -> bool:
        """Whether it waits for the daemon's word before it is an attempt at all."""
        return self.launch.waits_for is not None

    def promote(self, promotion: Promote) -> None:
        """The standby is an attempt from now on."""
        self.number = promotion.attempt
        self.launch = replace(
            self.launch,
            control=Control(promotion.attempt, Path(promotion.pipes)),
            between_failures_s=promotion.between_failures_s,
            microbatches=promotion.microbatches,
            waits_for=None,
        )

    def report_failure(
        self,
        error: str,
        step: int | None = None,
        detail: str = "",
        *,
        out_of_memory: bool = False,
        code: int | None = None,
    ) -> None:
        """Says once why this attempt fails; what fails afterwards is a consequence."""
        self._send_failure_once(
            Failed(self.number, step, error[:MAX_ERROR], detail[-MAX_TRACEBACK:], out_of_memory, code=code)
        )

    def exit_diverged(self, error: str, step: int, go_back: bool, batches: tuple[str, ...] = ()) -> NoReturn:
        """Leaves because training diverged at `step`.

        `go_back`: the next attempt begins from before that; `batches`: those that it leaves out, as `EPOCH:BATCH`.
        """
        self._send_failure_once(
            Failed(
                self.number, step, error[:MAX_ERROR], go_back=go_back, batches=batches, code=int(WorkerExit.DIVERGED)
            )
        )
        self.reporter.drain(DRAIN_TIMEOUT_S)
        raise DeliberateExit(int(WorkerExit.DIVERGED))

    def report_member_failure(self, what: str, words: Failed | None) -> None:
        """Says once that a process which trains together with this one is gone, in its own words if it had any."""
        if words is None:
            self._send_failure_once(Failed(self.number, None, what))
        else:
            self._send_failure_once(replace(words, attempt=self.number, error=f"{what}: {words.error}"[:MAX_ERROR]))
        self.reporter.drain(DRAIN_TIMEOUT_S)

    def _send_failure_once(self, words: Failed) -> None:
        if not self.failure_sent:
            self.failure_sent = True
            self.reporter.send_message(words)

    def exit_with_error(self, code: WorkerExit, error: str, step: int | None = None) -> NoReturn:
        """Says why, and leaves the process with the code that says which kind of failure it is."""
        self.report_failure(error, step, code=int(code))
        self.reporter.drain(DRAIN_TIMEOUT_S)
        raise DeliberateExit(int(code))

    def report_exception(self, error: BaseException, step: int | None = None) -> None:
        """Last words for an exception in the script; its traceback goes to stderr as always."""
        detail = "".join(traceback.format_exception(error))
        self.report_failure(
            describe_error(error), step, detail, out_of_memory=is_out_of_memory(error), code=int(WorkerExit.USER_ERROR)
        )


_OUT_OF_MEMORY = frozenset({"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"})
"""Python's (and NumPy's), TensorFlow's, PyTorch's; by name, as none of them is imported for this."""


_DISK_FULL = ("no space left", "quota exceeded")
"""As strerror(3) says ENOSPC and EDQUOT, inside TensorFlow's messages."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or what it was raised from, says that there was no memory left.

    TensorFlow has one class for memory and for disks; the text tells them apart.
    """
    one: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes a circle
    while one is not None and id(one) not in seen:
        if _OUT_OF_MEMORY & {kind.__name__ for kind in type(one).__mro__} and not mentions_full_disk(str(one)):
            return True
        seen.add(id(one))
        one = one.__cause__
    return False


def mentions_full_disk(text: str) -> bool:
    """Whether an error's text says that there is no space, or no quota, left on a disk."""
    return any(each in text.lower() for each in _DISK_FULL)


def describe_error(error: BaseException) -> str:
    """An exception as Python prints it, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


_current: Attempt | None = None


def begin_attempt() -> Attempt:
    """Reads the launch environment and, under a daemon, says hello. Leaves with BAD_LAUNCH if it can't."""
    global _current
    requests = PendingRequests()
    try:
        told = launch.from_environment(os.environ)
        daemon = standby.open_daemon_pidfd(told.waits_for) if told.waits_for is not None else None
        channel = WorkerChannel(told.control, requests, daemon) if told.control is not None else None
    except LaunchError as error:
        _exit_bad_launch(f"cannot start: {error}")
    except OSError as error:
        _exit_bad_launch(
            f"cannot open the control pipe {error.filename}: {error.strerror}; is the daemon's runtime folder there?"
        )
    if told.member is not None:
        from worker.process.local_processes import MemberReporter  # it reads this module

        _current = Attempt(told, requests, MemberReporter(told.member))
        _remove_launch_variables()
        _report_uncaught_exceptions(_current)
        return _current
    if channel is None:
        _current = Attempt(told, requests, ConsoleReporter())
        _start_local_processes(told)
        return _current
    _current = Attempt(told, requests, channel, channel, number=channel.attempt)
    channel.on_promoted = _current.promote
    _remove_launch_variables()
    _report_uncaught_exceptions(_current)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            line_buffering=True
        )  # into a pipe, and yet people follow it, and SIGKILL flushes nothing
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # the daemon sends SIGABRT to a worker that hangs: all threads' stacks go to stderr
    try:
        stack_dumps.dump_stacks_on_signal(channel.pipes)
    except OSError as error:
        _current.reporter.show_message(f"cannot leave stacks for a hang: {error}; they go to stderr alone")
    channel.start()  # last: a standby that has said hello may become an attempt at once, its pipes elsewhere
    _start_local_processes(told)
    return _current


def _start_local_processes(told: Launch) -> None:
    """Those that train together with this process, at once: so all import TensorFlow at the same time."""
    if told.waits_for is None and told.strategy == "multiworker" and told.workers is not None and told.workers > 1:
        from worker.process import local_processes  # it reads this module

        try:
            local_processes.start_local_processes(told.workers)
        except OSError as error:
            current_attempt().exit_with_error(
                WorkerExit.USER_ERROR, f"cannot start {counted(told.workers - 1, 'more worker')}: {error}"
            )


def attempt_or_standby() -> Attempt:
    """What `begin` began: an attempt, or a standby that may become one."""
    return _current if _current is not None else begin_attempt()


def current_attempt() -> Attempt:
    """The attempt that this process is. A standby waits here until it is one: nobody trains before."""
    begun = attempt_or_standby()
    if begun.channel is not None and begun.is_standby:
        standby.wait_for_promotion(begun)
    return begun


def _exit_bad_launch(text: str) -> NoReturn:
    print_message(text)
    raise SystemExit(int(WorkerExit.BAD_LAUNCH))


def _remove_launch_variables() -> None:
    """Children that import this package too (data loaders) must not take themselves for the worker."""
    for name in os.environ.keys() - launch.without_launch_variables(os.environ).keys():
        del os.environ[name]


def _report_uncaught_exceptions(attempt: Attempt) -> None:
    """Tells the daemon of an exception that ends the script anywhere, also before there is a Run."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        attempt.report_exception(error)
        previous(kind, error, where)

    sys.excepthook = report
    atexit.register(attempt.reporter.drain, DRAIN_TIMEOUT_S)
