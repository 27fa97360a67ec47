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
from worker.process.console import Terminal
from worker.process.control_pipe import Channel
from worker.process.requests import Requests
from worker.process.user_messages import remark

DRAIN_TIMEOUT_S = 2.0  # how long a process that is over waits for a daemon that doesn't read
MAX_ERROR = 2000  # characters of an error's text; a line on the pipe is at most 64 KiB
MAX_TRACEBACK = 8000  # characters, the end of it: there the cause stands


class Leaving(SystemExit):
    """This process ends on purpose, with a code of `WorkerExit`; all that had to be said is said."""


class Reporter(Protocol):
    """Whoever is told what happens here: the daemon, or the person at the terminal."""

    def say(self, message: FromWorker) -> None:
        """Tells what must arrive."""

    def progress(self, message: Progress) -> None:
        """Tells what only the newest of counts."""

    def remark(self, text: str) -> None:
        """Something for the person who reads stderr, on one line."""

    def drain(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until all of it is out."""


@dataclass(slots=True)
class Attempt:
    """`channel` is None without a daemon; `number` is then only known once the checkpoint directory is."""

    launch: Launch
    requests: Requests
    reporter: Reporter
    channel: Channel | None = None
    number: int = 1
    has_begun: bool = False  # from where the daemon said; a later run of the script goes on from what that one saved
    failed: bool = False

    @property
    def is_standby(self) -> bool:
        """Whether it waits for the daemon's word before it is an attempt at all."""
        return self.launch.waits_for is not None

    def become(self, promotion: Promote) -> None:
        """The standby is an attempt from now on."""
        self.number = promotion.attempt
        self.launch = replace(
            self.launch,
            control=Control(promotion.attempt, Path(promotion.pipes)),
            between_failures_s=promotion.between_failures_s,
            microbatches=promotion.microbatches,
            waits_for=None,
        )

    def last_words(
        self,
        error: str,
        step: int | None = None,
        detail: str = "",
        *,
        out_of_memory: bool = False,
        code: int | None = None,
    ) -> None:
        """Says once why this attempt fails; what fails afterwards is a consequence."""
        self._say(Failed(self.number, step, error[:MAX_ERROR], detail[-MAX_TRACEBACK:], out_of_memory, code=code))

    def diverged(self, error: str, step: int, go_back: bool, batches: tuple[str, ...] = ()) -> NoReturn:
        """Leaves because training diverged at `step`.

        `go_back`: the next attempt begins from before that; `batches`: those that it leaves out, as `EPOCH:BATCH`.
        """
        self._say(
            Failed(
                self.number, step, error[:MAX_ERROR], go_back=go_back, batches=batches, code=int(WorkerExit.DIVERGED)
            )
        )
        self.reporter.drain(DRAIN_TIMEOUT_S)
        raise Leaving(int(WorkerExit.DIVERGED))

    def failed_by_member(self, what: str, words: Failed | None) -> None:
        """Says once that a process which trains together with this one is gone, in its own words if it had any."""
        if words is None:
            self._say(Failed(self.number, None, what))
        else:
            self._say(replace(words, attempt=self.number, error=f"{what}: {words.error}"[:MAX_ERROR]))
        self.reporter.drain(DRAIN_TIMEOUT_S)

    def _say(self, words: Failed) -> None:
        if not self.failed:
            self.failed = True
            self.reporter.say(words)

    def give_up(self, code: WorkerExit, error: str, step: int | None = None) -> NoReturn:
        """Says why, and leaves the process with the code that says which kind of failure it is."""
        self.last_words(error, step, code=int(code))
        self.reporter.drain(DRAIN_TIMEOUT_S)
        raise Leaving(int(code))

    def excepted(self, error: BaseException, step: int | None = None) -> None:
        """Last words for an exception in the script; its traceback goes to stderr as always."""
        detail = "".join(traceback.format_exception(error))
        self.last_words(
            one_line(error), step, detail, out_of_memory=lacks_memory(error), code=int(WorkerExit.USER_ERROR)
        )


_OUT_OF_MEMORY = frozenset({"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"})
"""Python's (and NumPy's), TensorFlow's, PyTorch's; by name, as none of them is imported for this."""


_DISK_FULL = ("no space left", "quota exceeded")
"""As strerror(3) says ENOSPC and EDQUOT, inside TensorFlow's messages."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception, or what it was raised from, says that there was no memory left.

    TensorFlow has one class for memory and for disks; the text tells them apart.
    """
    one: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes a circle
    while one is not None and id(one) not in seen:
        if _OUT_OF_MEMORY & {kind.__name__ for kind in type(one).__mro__} and not says_disk_full(str(one)):
            return True
        seen.add(id(one))
        one = one.__cause__
    return False


def says_disk_full(text: str) -> bool:
    """Whether an error's text says that there is no space, or no quota, left on a disk."""
    return any(each in text.lower() for each in _DISK_FULL)


def one_line(error: BaseException) -> str:
    """An exception as Python prints it, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


_current: Attempt | None = None


def begin() -> Attempt:
    """Reads the launch environment and, under a daemon, says hello. Leaves with BAD_LAUNCH if it can't."""
    global _current
    requests = Requests()
    try:
        told = launch.from_environment(os.environ)
        daemon = standby.watch(told.waits_for) if told.waits_for is not None else None
        channel = Channel(told.control, requests, daemon) if told.control is not None else None
    except LaunchError as error:
        _refuse(f"cannot start: {error}")
    except OSError as error:
        _refuse(
            f"cannot open the control pipe {error.filename}: {error.strerror}; is the daemon's runtime folder there?"
        )
    if told.member is not None:
        from worker.process.local_processes import MemberEnd  # it reads this module

        _current = Attempt(told, requests, MemberEnd(told.member))
        _hide_launch()
        _report_uncaught(_current)
        return _current
    if channel is None:
        _current = Attempt(told, requests, Terminal())
        _start_others(told)
        return _current
    _current = Attempt(told, requests, channel, channel, number=channel.attempt)
    channel.on_promoted = _current.become
    _hide_launch()
    _report_uncaught(_current)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            line_buffering=True
        )  # into a pipe, and yet people follow it, and SIGKILL flushes nothing
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # the daemon sends SIGABRT to a worker that hangs: all threads' stacks go to stderr
    try:
        stack_dumps.register(channel.pipes)
    except OSError as error:
        _current.reporter.remark(f"cannot leave stacks for a hang: {error}; they go to stderr alone")
    channel.serve()  # last: a standby that has said hello may become an attempt at once, its pipes elsewhere
    _start_others(told)
    return _current


def _start_others(told: Launch) -> None:
    """Those that train together with this process, at once: so all import TensorFlow at the same time."""
    if told.waits_for is None and told.strategy == "multiworker" and told.workers is not None and told.workers > 1:
        from worker.process import local_processes  # it reads this module

        try:
            local_processes.start(told.workers)
        except OSError as error:
            this().give_up(WorkerExit.USER_ERROR, f"cannot start {counted(told.workers - 1, 'more worker')}: {error}")


def present() -> Attempt:
    """What `begin` began: an attempt, or a standby that may become one."""
    return _current if _current is not None else begin()


def this() -> Attempt:
    """The attempt that this process is. A standby waits here until it is one: nobody trains before."""
    begun = present()
    if begun.channel is not None and begun.is_standby:
        standby.wait(begun)
    return begun


def _refuse(text: str) -> NoReturn:
    remark(text)
    raise SystemExit(int(WorkerExit.BAD_LAUNCH))


def _hide_launch() -> None:
    """Children that import this package too (data loaders) must not take themselves for the worker."""
    for name in os.environ.keys() - launch.without_launch_variables(os.environ).keys():
        del os.environ[name]


def _report_uncaught(attempt: Attempt) -> None:
    """Tells the daemon of an exception that ends the script anywhere, also before there is a Run."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        attempt.excepted(error)
        previous(kind, error, where)

    sys.excepthook = report
    atexit.register(attempt.reporter.drain, DRAIN_TIMEOUT_S)
