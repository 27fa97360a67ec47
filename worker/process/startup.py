"""How this process becomes an attempt: reads how it was launched, opens the control pipes, waits while it is a standby.

`current_attempt` is the only way to the attempt, and a standby blocks in it: nothing trains before the daemon says so.
"""

import atexit
import faulthandler
import io
import os
import sys
from types import TracebackType
from typing import NoReturn

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import DaemonIdentity, Launch, LaunchError
from worker.process import standby
from worker.process.attempt import DRAIN_TIMEOUT_S, Attempt
from worker.process.control_pipe import WorkerChannel
from worker.process.proof_mode import ProofMode
from worker.process.reporting import ConsoleReporter, print_message
from worker.process.requests import PendingRequests
from worker.process.signals import dump_stacks_on_signal

_current: Attempt | None = None


def current_attempt() -> Attempt:
    """The attempt that this process is. A standby waits here until the daemon makes it one."""
    attempt = attempt_or_standby()
    if attempt.channel is not None and attempt.is_standby:
        standby.wait_for_promotion(attempt)
    return attempt


def attempt_or_standby() -> Attempt:
    """The attempt that this process is, or the standby that may become one; begins it at the first call."""
    return _current if _current is not None else begin_attempt()


def begin_attempt() -> Attempt:
    """Reads the launch environment and, under a daemon, says hello. Exits with BAD_LAUNCH if it can't."""
    global _current
    requests = PendingRequests()
    try:
        orders = launch.from_environment(os.environ)
        daemon = standby.open_daemon_pidfd(orders.waits_for) if orders.waits_for is not None else None
        channel = WorkerChannel(orders.control, requests, daemon) if orders.control is not None else None
        proof = _open_proof(orders)
    except LaunchError as error:
        _exit_bad_launch(f"cannot start: {error}")
    except OSError as error:
        _exit_bad_launch(
            f"cannot open the control pipe {error.filename}: {error.strerror}; check that the daemon's runtime folder "
            f"exists"
        )
    if orders.member is not None:
        from worker.process.local_processes import MemberReporter  # only here: most workers train alone

        _current = Attempt(orders, requests, MemberReporter(orders.member), proof=proof)
        _remove_launch_variables()
        _report_uncaught_exceptions(_current)
    elif channel is None:
        state_home, mirror_url = launch.state_home(os.environ), launch.mirror_url(os.environ)
        _current = Attempt(orders, requests, ConsoleReporter(), state_home=state_home, mirror_url=mirror_url)
        _start_local_processes(_current)
    else:
        _current = Attempt(orders, requests, channel, channel, number=channel.attempt, proof=proof)
        channel.on_promoted = _current.promote
        _leave_with_daemon(orders.leaves_with, requests, channel)
        _remove_launch_variables()
        _report_uncaught_exceptions(_current)
        _prepare_output(channel)
        channel.start()  # last: a standby that has said hello may become an attempt at once, its pipes elsewhere
        _start_local_processes(_current)
    return _current


def _open_proof(orders: Launch) -> ProofMode | None:
    """What this process does for a proof of exactness; None if it trains for its own sake. Raises LaunchError."""
    folder = launch.proof_folder(os.environ)
    if folder is None or (orders.control is None and orders.member is None):
        return None
    try:
        return ProofMode(folder, orders.checkpoint_dir, is_first=orders.member is None)
    except (OSError, ProtocolError) as error:
        raise LaunchError(f"{launch.PROOF} is {folder}, but the plan there can't be read: {error}") from error


def _leave_with_daemon(daemon: DaemonIdentity | None, requests: PendingRequests, channel: WorkerChannel) -> None:
    """Has this process end some time after the daemon that it must not outlive."""
    if daemon is not None:
        from worker.process.orphan_watch import OrphanWatch  # only here: most workers outlive their daemon

        watch = OrphanWatch(daemon, requests)
        channel.on_adopted = watch.on_adopted
        watch.start()


def _prepare_output(channel: WorkerChannel) -> None:
    """Has prints arrive in the log line by line, and stacks where the daemon looks for them."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # it is a pipe that people follow; SIGKILL flushes nothing
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # the daemon sends SIGABRT to a worker that hangs: all threads' stacks go to stderr
    try:
        dump_stacks_on_signal(channel.pipes)
    except OSError as error:
        channel.show_message(f"cannot prepare the file for stacks of a hang: {error}; they go to stderr alone")


def _start_local_processes(attempt: Attempt) -> None:
    """Starts the processes that train together with this one, early: so all import TensorFlow at the same time."""
    orders = attempt.launch
    if (
        orders.waits_for is None
        and orders.strategy == "multiworker"
        and orders.workers is not None
        and orders.workers > 1
    ):
        from worker.process import local_processes  # only here: most workers train alone

        try:
            local_processes.start_local_processes(attempt, orders.workers)
        except OSError as error:
            attempt.exit_with_error(
                WorkerExit.USER_ERROR, f"cannot start {counted(orders.workers - 1, 'more worker')}: {error}"
            )


def _exit_bad_launch(text: str) -> NoReturn:
    print_message(text)
    raise SystemExit(int(WorkerExit.BAD_LAUNCH))


def _remove_launch_variables() -> None:
    """Children that import this package too (data loaders) must not take themselves for the worker."""
    for name in os.environ.keys() - launch.without_launch_variables(os.environ).keys():
        del os.environ[name]


def _report_uncaught_exceptions(attempt: Attempt) -> None:
    """Reports an exception that ends the script anywhere, also before there is a Run."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        attempt.report_exception(error)
        previous(kind, error, where)

    sys.excepthook = report
    atexit.register(attempt.reporter.drain, DRAIN_TIMEOUT_S)
