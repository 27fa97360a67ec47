"""What signals make the daemon do, and the request to exit that most of them lead to.

| signal | effect |
|---|---|
| SIGTERM, SIGINT, SIGQUIT | flush and stop all programs, then exit; a second one hurries |
| SIGPWR | the same, within `power_timeout` |
| SIGHUP | read the configuration again and apply what differs |
| SIGUSR2 | reopen the log files |
| SIGUSR1 | under Slurm: the allocation ends, so the same as SIGTERM, and the job is queued again |

No signal may be lost or kill the daemon at the edges of its life. So SIGNALS are blocked from before the first thread
starts until `trap`, and from `release` on they have a handler of their own again: during a reload it passes them to the
daemon that replaces this one, which inherits pending signals through exec(2).
"""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType

import structlog

from supervisor.config import ConfigError
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.logs.capture import LogCapture
from supervisor.host.loop_signals import LoopSignals
from supervisor.host.service.systemd import SystemdNotifier, host_is_shutting_down
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.summary import status_line

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2, signal.SIGPWR})

SHUTDOWN_ANSWER_S = 0.5  # how long a flush waits for systemd to say whether the host is shutting down
SAME_SIGNAL_S = 0.5  # timeout(1) signals the process and then its group: within this time, two signals count as one

log = structlog.get_logger()


class ExitRequest:
    """Whether the daemon has been asked to exit, with which status, and whether a fresh one replaces it (reload)."""

    def __init__(self) -> None:
        self.is_reload = False
        self.is_being_decided = False
        """A SIGTERM came, and systemd is being asked whether the host is shutting down."""
        self.exit_status = 0
        self._requested = asyncio.Event()

    @property
    def is_made(self) -> bool:
        """Whether the daemon is to exit."""
        return self._requested.is_set()

    def request_exit(self, exit_status: int = 0) -> None:
        """Asks for the exit. The status of the first request counts."""
        if not self.is_made:
            self.exit_status = exit_status
            self._requested.set()

    def request_reload(self) -> None:
        """Asks for a fresh daemon in this process; does nothing if an exit was requested before."""
        if not (self.is_made or self.is_being_decided):
            self.is_reload = True
            self._requested.set()

    async def wait(self) -> None:
        """Returns once the exit is requested."""
        await self._requested.wait()


class SignalHandlers:
    """The handlers of SIGNALS in the running loop. `power_timeout_s`: how long the host runs on after SIGPWR."""

    def __init__(
        self,
        exit_request: ExitRequest,
        programs: Programs,
        notices: NoticeDispatcher,
        logs: LogCapture,
        daemon_log: DaemonLog,
        systemd: SystemdNotifier,
        power_timeout_s: float,
    ) -> None:
        self._exit_request = exit_request
        self._programs = programs
        self._notices = notices
        self._logs = logs
        self._daemon_log = daemon_log
        self._systemd = systemd
        self._power_timeout_s = power_timeout_s
        self.allocation_ends = False
        """Slurm said that the allocation ends (SIGUSR1)."""
        self.loop_signals = LoopSignals()
        self._last_exit_signal_at: float | None = None
        self._tasks = BackgroundTasks(log)

    def trap(self, leaves_allocation: bool = False) -> None:
        """Installs the handlers and unblocks the signals. `leaves_allocation`: SIGUSR1 has a meaning too."""
        handle = self.loop_signals.handle
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            handle(number, partial(self._on_exit_signal, number))
        handle(signal.SIGPWR, self._on_power_failure)
        handle(signal.SIGHUP, self._on_hangup)
        handle(signal.SIGUSR2, self._reopen_logs)
        if leaves_allocation:
            handle(signal.SIGUSR1, self._on_allocation_end)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    async def release(self) -> None:
        """Ends handling, as nothing is left to do: further signals go to the next daemon (reload) or are ignored."""
        handler: Callable[[int, FrameType | None], None] | signal.Handlers
        handler = _pass_to_next_daemon if self._exit_request.is_reload else signal.SIG_IGN
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number in SIGNALS:
            signal.signal(number, handler)
        for _ in range(2):  # the loop handles those that were caught before
            await asyncio.sleep(0)
        self.loop_signals.close()

    def _on_exit_signal(self, number: signal.Signals) -> None:
        request = self._exit_request
        if request.is_reload:
            log.warning("daemon.signalled", signal=number.name, effect="passed to the daemon that replaces this one")
            _pass_to_next_daemon(number)
            return
        now, last_at = asyncio.get_running_loop().time(), self._last_exit_signal_at
        if last_at is not None and now - last_at < SAME_SIGNAL_S:
            log.warning(
                "daemon.signalled", signal=number.name, effect=f"none: less than {SAME_SIGNAL_S} s after the last"
            )
            return
        self._last_exit_signal_at, is_second = now, request.is_made or request.is_being_decided
        effect = "stop all programs in a hurry" if is_second else "flush and stop all programs, then exit"
        log.warning("daemon.signalled", signal=number.name, effect=effect)
        if is_second:
            self._programs.retirement.hurry()
        if number is signal.SIGTERM and not is_second:  # the one that systemd sends
            request.is_being_decided = True
            self._tasks.start(self._exit_knowing_host_state())
        else:
            request.request_exit()

    async def _exit_knowing_host_state(self) -> None:
        """Asks systemd whether the host is shutting down, then exits; does not wait long for the answer."""
        query = asyncio.create_task(host_is_shutting_down())
        await asyncio.wait({query}, timeout=SHUTDOWN_ANSWER_S)
        is_late = not query.done()
        if is_late:
            self._exit_request.request_exit()
        try:
            if await query:
                log.warning("daemon.host_shutdown", known="late" if is_late else "at once")
                self._programs.retirement.on_host_shutdown()
        finally:
            self._exit_request.request_exit()

    def _on_allocation_end(self) -> None:
        effect = "none: it is exiting" if self._exit_request.is_made else "flush and stop all programs, then exit"
        log.warning("daemon.signalled", signal="SIGUSR1", effect=effect)
        self.allocation_ends = True
        self._exit_request.request_exit()

    def _on_power_failure(self) -> None:
        """SIGPWR: everything has to be on disk within power_timeout, then the daemon exits."""
        if not self._exit_request.is_reload:
            loop = asyncio.get_running_loop()
            gone_at = loop.time() + self._power_timeout_s
            kind, certainty = NoticeKind.SHUTDOWN, Certainty.CERTAIN
            self._notices.add(Notice("signal", "SIGPWR", kind, certainty, gone_at, is_cancellable=False, text="SIGPWR"))
            loop.call_at(gone_at, self._programs.retirement.hurry)
        self._on_exit_signal(signal.SIGPWR)

    def _reopen_logs(self) -> None:
        self._logs.reopen()
        self._daemon_log.reopen()
        log.info("daemon.signalled", signal="SIGUSR2", effect="reopened the log files")

    def _on_hangup(self) -> None:
        effect = "none: the daemon is exiting" if self._programs.closing else "read the configuration again"
        log.warning("daemon.signalled", signal="SIGHUP", effect=effect)
        self._tasks.start(self._update_configuration())

    async def _update_configuration(self) -> None:
        """Reads the configuration again and applies what differs; an invalid one changes nothing."""
        if self._programs.closing:
            return
        self._systemd.send_reloading("reading the configuration again")
        try:
            await self._programs.configuration.reread()
            actions = await self._programs.updating.update(waits=True)
            log.info("configuration.updated", actions=[f"{action.name}: {action.action}" for action in actions])
        except ConfigError as error:
            log.error("configuration.refused", error=str(error), kept="the configuration in use")
        finally:
            self._systemd.send_ready(status_line(self._programs.runners.values()))


def _pass_to_next_daemon(number: int, frame: FrameType | None = None) -> None:
    """Makes the signal pending for this thread, where it is blocked; pending signals survive exec(2).

    It may have been caught in another thread, in which it was not blocked.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.raise_signal(number)
