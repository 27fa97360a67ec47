"""One run of the daemon: puts the parts together and lives until it is told to leave."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from types import FrameType
from typing import Any

import structlog

from supervisor import __version__
from supervisor.config import Config, ConfigError, SupervisordConfig
from supervisor.control.base.context import CommandContext
from supervisor.control.endpoints import open_endpoints
from supervisor.control.server import serve
from supervisor.core.fleet.exit_conditions import DaemonExit, ExitOn, daemon_exit
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.writer import Pruning
from supervisor.host.logs.capture import LogCapture
from supervisor.host.notices.drills import Drills
from supervisor.host.notices.source import NoticeSource
from supervisor.host.notices.sources import NoticeSettings, make_sources
from supervisor.host.notices.store import NoticeStore
from supervisor.host.processes import orphans
from supervisor.host.resources import cgroup
from supervisor.host.resources.gpus import Gpus
from supervisor.host.service import systemd
from supervisor.host.service.background import Background, Foreground
from supervisor.host.service.systemd import SystemdNotifier, environment_for_children
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.summary import status_line
from supervisor.runner.fleet.suspend_watch import SuspendWatch
from supervisor.runner.fleet.watch import ResourceWatch
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.listeners.output import OutputPublisher

EXIT_FATAL = 70  # EX_SOFTWARE: exit_on, and a program did not end as it should

STATUS_EVERY_S = 10.0  # for people who look at `systemctl status`; no more often than they would
HOOKS_PATIENCE_S = 5.0  # what was told last gets out on a good day; a slow command must not keep the daemon
SHUTDOWN_ANSWER_S = 0.5  # a flush does not wait longer for the word whether it is the host that leaves
SAME_SIGNAL_S = 0.5  # so long two signals are one: timeout(1) sends its own to the process, and again to its group
EXTEND_EVERY_S = 5.0  # well within TimeoutStopSec of the unit, and seldom enough to be no load

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2, signal.SIGPWR})

log = structlog.get_logger()


class DaemonLifecycle:
    """One run of the daemon, from the ledger's opening to the last process's end."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        background: Background | Foreground,
        daemon_log: DaemonLog,
    ) -> None:
        self._config = config
        self._daemon_log = daemon_log
        self._read = read
        self._background = background
        self._systemd = SystemdNotifier(os.environ)
        self._leave = asyncio.Event()
        self._asking = False
        self._told_at: float | None = None
        self._reload = False
        self._status = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int | None:
        """Supervises until told to leave; its exit status, or None if a fresh daemon is to take over (reload)."""
        settings = self._config.supervisord
        pruning = Pruning(settings.history_attempts, settings.history_days)
        ledger = Ledger(settings.state_dir / "ledger.sqlite3", pruning)
        if ledger.set_aside is not None:
            log.error("ledger.set_aside", moved_to=str(ledger.set_aside), effect="history begins anew")
        services = self._services(ledger)
        logs = services.logs
        programs = Programs(self._config, self._read, services)
        self._printing.start(programs.on_output)
        services.save_durations.load_history(ledger)
        memory = NoticeStore(settings.runtime_dir)
        notices = NoticeDispatcher(services.save_durations, settings.notice_grace, lambda: programs.runners, memory)
        programs.on_program_added = notices.post_current_notice
        self._trap_signals(programs, logs, notices)
        context = CommandContext(
            programs,
            ledger,
            logs,
            services.checkpoints,
            shut_down=self._leave.set,
            reload=self._ask_reload,
            settings=settings,
            is_reloading=lambda: self._reload,
            notices=notices,
            hooks=services.hooks,
            drills=Drills(notices.add, notices.withdraw),
            listening=services.listeners,
        )
        try:
            async with self._listening(context):
                self._background.report_ready()
                self._stay_alive()
                notices.watch_sources(notice_sources(settings))
                with orphans.reaping_orphans(programs.has_worker):
                    await self._supervise(programs, services.environment)
                services.listeners.close()
        finally:
            await notices.stop_watching()
            if self._reload:
                logs.detach()
            else:
                logs.close()
            ledger.close()
            await asyncio.to_thread(services.hooks.close, HOOKS_PATIENCE_S)
            await _let_go_of_signals(_pass_on if self._reload else signal.SIG_IGN)
        return None if self._reload else self._status

    def _services(self, ledger: Ledger) -> Services:
        """What all programs share, the log capture among it begun."""
        settings = self._config.supervisord
        logs = LogCapture(settings.state_dir)
        self._printing = OutputPublisher()
        logs.subscribers.on_output, logs.subscribers.on_missed = self._printing.on_output, self._printing.on_missed
        logs.start()
        return Services(
            ledger=ledger,
            logs=logs,
            checkpoints=CheckpointStore(),
            state_dir=settings.state_dir,
            runtime_dir=settings.runtime_dir,
            environment={**environment_for_children(os.environ), **settings.environment},
            server_url=self._server_url(),
            notice_grace=settings.notice_grace,
            cgroups=cgroup.prepare_cgroups(),
            gpus=Gpus(),
            hooks=HookRunner(settings.hook_timeout),
            hook_commands=settings.hooks(),
            listeners=ListenerHub(settings.identifier),
        )

    async def _supervise(self, programs: Programs, environment: Mapping[str, str]) -> None:
        """Takes the programs up, waits for the word to leave, and leaves; also if taking them up fails."""
        begin = asyncio.create_task(programs.start_all())
        leave = asyncio.create_task(self._leave.wait())
        watching, pulse = ResourceWatch(lambda: programs.runners, environment), SuspendWatch(lambda: programs.runners)
        watch = asyncio.create_task(watching.watch())
        programs.on_change = partial(self._programs_changed, programs, watching, pulse, begin.done)
        try:
            while not (begin.done() or leave.done()):
                self._systemd.extend_timeout(
                    2 * EXTEND_EVERY_S
                )  # workers of an earlier daemon have their limits to leave in
                await asyncio.wait({begin, leave}, timeout=EXTEND_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if begin.done():
                begin.result()
                log.info("daemon.ready", pid=os.getpid(), programs=len(programs.runners), version=__version__)
                self._systemd.send_ready(status_line(programs.runners.values()))
                self._tell_standing(programs)
                programs.on_change()
            await leave
        finally:
            leave.cancel()
            watch.cancel()
            pulse.stop()
            await self._end(programs)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # after a reload the fresh daemon hears them
            begin.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await begin
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def _programs_changed(
        self, programs: Programs, watching: ResourceWatch, pulse: SuspendWatch, all_taken_up: Callable[[], bool]
    ) -> None:
        watching.on_change()
        pulse.on_change()
        if all_taken_up():
            self._leave_if_finished(programs)

    def _leave_if_finished(self, programs: Programs) -> None:
        """Leaves by itself if `exit_on` says that there is nothing left to live for."""
        exit_on = [ExitOn(each) for each in self._config.supervisord.exit_on]
        if not exit_on or self._leave.is_set() or (how := daemon_exit(exit_on, programs.exit_conditions())) is None:
            return
        self._status = 0 if how is DaemonExit.DONE else EXIT_FATAL
        log.warning("daemon.finished", how=how.value, exit_status=self._status)
        self._leave.set()

    async def _end(self, programs: Programs) -> None:
        """Flushes and stops everything, and has systemd wait for it: every program's own limits bound how long."""
        log.info("daemon.leaving", programs=len(programs.runners), reload=self._reload)
        if self._reload:  # the workers don't notice: the next daemon takes them over
            programs.hand_over()
            return
        self._systemd.send_stopping("flushing and stopping all programs")
        leaving = asyncio.create_task(programs.stop_all())
        while not leaving.done():
            self._systemd.extend_timeout(2 * EXTEND_EVERY_S)  # at once: TimeoutStopSec= may be shorter than our period
            await asyncio.wait({leaving}, timeout=EXTEND_EVERY_S)
        await leaving

    def _stay_alive(self) -> None:
        """Feeds systemd's watchdog from the supervising loop, at half its period, as sd_watchdog_enabled(3) asks."""
        if self._systemd.watchdog_s is not None:
            self._systemd.send_watchdog()
            asyncio.get_running_loop().call_later(self._systemd.watchdog_s / 2, self._stay_alive)

    def _tell_standing(self, programs: Programs) -> None:
        """Tells systemd where training stands, at a low rate, until the daemon leaves."""
        if self._systemd.is_connected and not self._leave.is_set():
            self._systemd.send_status(status_line(programs.runners.values()))
            asyncio.get_running_loop().call_later(STATUS_EVERY_S, self._tell_standing, programs)

    @contextlib.asynccontextmanager
    async def _listening(self, context: CommandContext) -> AsyncIterator[None]:
        with open_endpoints(self._config) as endpoints:
            if not endpoints:
                reason = (
                    "there is no [unix_http_server] and no [inet_http_server]; supervisorctl can't reach this daemon"
                )
                log.warning("control.off", reason=reason)
            async with serve(endpoints, context):
                yield

    def _server_url(self) -> str | None:
        for unix in self._config.unix_http_servers:
            return f"unix://{unix.file}"
        for inet in self._config.inet_http_servers:
            host, port = inet.address
            return f"http://{f'[{host}]' if host and ':' in host else host or 'localhost'}:{port}"
        return None

    def _trap_signals(self, programs: Programs, logs: LogCapture, notices: NoticeDispatcher) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, partial(self._asked_to_leave, number, programs))
        loop.add_signal_handler(signal.SIGPWR, self._power_fails, programs, notices)
        loop.add_signal_handler(signal.SIGHUP, self._start_update, programs)
        loop.add_signal_handler(signal.SIGUSR2, self._reopen_logs, logs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _asked_to_leave(self, number: signal.Signals, programs: Programs) -> None:
        if self._reload:
            log.warning("daemon.signalled", signal=number.name, effect="left to the daemon that this one becomes")
            _pass_on(number)
            return
        now, told_at = asyncio.get_running_loop().time(), self._told_at
        if told_at is not None and now - told_at < SAME_SIGNAL_S:
            log.warning("daemon.signalled", signal=number.name, effect="none: so soon after the last it is the same")
            return
        self._told_at, again = now, self._leave.is_set() or self._asking
        log.warning("daemon.signalled", signal=number.name, effect="hurry" if again else "flush and stop")
        if again:
            programs.hurry()
        if number is signal.SIGTERM and not again:  # the one that systemd sends
            self._asking = True
            self._begin(self._ask_and_leave(programs))
        else:
            self._leave.set()

    async def _ask_and_leave(self, programs: Programs) -> None:
        """Leaves, knowing whether the host does too; who does not answer soon is heard when it does."""
        asking = asyncio.create_task(systemd.host_is_shutting_down())
        await asyncio.wait({asking}, timeout=SHUTDOWN_ANSWER_S)
        late = not asking.done()
        if late:
            self._leave.set()
        if await asking:
            log.warning("daemon.host_shutdown", known="late" if late else "at once")
            programs.on_host_shutdown()
        self._leave.set()

    def _power_fails(self, programs: Programs, notices: NoticeDispatcher) -> None:
        """SIGPWR: everything is to be on the disk within power_timeout, and the daemon leaves."""
        if self._reload:
            self._asked_to_leave(signal.SIGPWR, programs)
            return
        loop = asyncio.get_running_loop()
        gone_at = loop.time() + self._config.supervisord.power_timeout
        notices.add(
            Notice(
                "signal", "SIGPWR", NoticeKind.SHUTDOWN, Certainty.CERTAIN, gone_at, is_cancellable=False, text="SIGPWR"
            )
        )
        self._asked_to_leave(signal.SIGPWR, programs)
        loop.call_at(gone_at, programs.hurry)

    def _ask_reload(self) -> None:
        if not (self._leave.is_set() or self._asking):  # told to leave while the configuration was read, it leaves
            self._reload = True
            self._leave.set()

    def _reopen_logs(self, logs: LogCapture) -> None:
        logs.reopen()
        self._daemon_log.reopen()
        log.info("daemon.signalled", signal="SIGUSR2", effect="log files are opened again")

    def _start_update(self, programs: Programs) -> None:
        effect = "none, it is leaving" if programs.closing else "read the configuration again"
        log.warning("daemon.signalled", signal="SIGHUP", effect=effect)
        self._begin(_update(programs, self._systemd))

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _let_go_of_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """All there is to do is done: from now on every signal is for `handler`, and not for the loop, which ends.

    Blocked here first, as the loop sets them back to what kills when it lets go of them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        signal.signal(number, handler)
    for _ in range(2):  # the loop hears of those that were caught before
        await asyncio.sleep(0)
    for number in SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, handler)


def _pass_on(number: int, frame: FrameType | None = None) -> None:
    """For the daemon that this process becomes: sent to this thread, where it is blocked, it waits, in what the thread
    executes too. Other threads, in which it is not blocked, may have caught it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.raise_signal(number)


def notice_sources(settings: SupervisordConfig) -> tuple[NoticeSource, ...]:
    """Where notices of this host come from. Raises UnknownSourceError."""
    told = NoticeSettings(
        notice_dir=settings.notice_dir,
        owner_uids=settings.notice_owners,
        azure_acknowledge=settings.azure_acknowledge,
        google_preemption_notice_s=settings.google_preemption_notice,
    )
    return make_sources(settings.notices, told)


async def _update(programs: Programs, systemd: SystemdNotifier) -> None:
    """SIGHUP: the configuration is read again, and what differs is changed; an unusable one changes nothing."""
    if programs.closing:
        return
    systemd.send_reloading("reading the configuration again")
    try:
        await programs.reread()
        actions = await programs.update()
        log.info("configuration.updated", actions=[f"{name}: {action}" for name, action in actions])
    except ConfigError as error:
        log.error("configuration.refused", error=str(error), kept="the one before")
    finally:
        systemd.send_ready(status_line(programs.runners.values()))
