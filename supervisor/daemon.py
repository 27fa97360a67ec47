"""supervisord: puts the parts together and lives until it is told to leave."""

import argparse
import asyncio
import contextlib
import getpass
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import structlog

from supervisor import __version__
from supervisor.config import Config, ConfigError, SupervisordConfig, find, load
from supervisor.config.migrate import Fate, judge
from supervisor.config.secret import hashed
from supervisor.control.asked import Daemon
from supervisor.control.doors import open_doors
from supervisor.control.listening import ListenError
from supervisor.control.server import serve
from supervisor.core.finishing import ExitOn, Finish, finish
from supervisor.core.notices import Certainty, Kind, Notice
from supervisor.host import limits, orphans
from supervisor.host.alone import NotAlone, StateFolder, pid_file, refuse_beside_supervisor
from supervisor.host.background import Background, Foreground, become, detach
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.daemon_log import LEVELS, DaemonLog
from supervisor.host.hooks import Hooks
from supervisor.host.ledger import Ledger, LedgerError
from supervisor.host.ledger_pruning import Pruning
from supervisor.host.logs import LogPump
from supervisor.host.notices.choose import UnknownSourceError, sources
from supervisor.host.notices.drill import Drills
from supervisor.host.notices.settings import NoticeSettings
from supervisor.host.notices.source import Source
from supervisor.host.process import SpawnError, credentials
from supervisor.host.systemd import Systemd, without_notify
from supervisor.runner.acts import Services
from supervisor.runner.noticing import Noticing
from supervisor.runner.programs import Programs
from supervisor.runner.standing import standing
from supervisor.runner.watching import Watching

EXIT_BUSY = 75  # EX_TEMPFAIL: another daemon is here
EXIT_CONFIG = 78  # EX_CONFIG: systemd must not try the same configuration again
EXIT_CANNOT_RUN = 71  # EX_OSERR: a folder, file or socket this daemon needs can't be had

EXIT_FATAL = 70  # EX_SOFTWARE: exit_on, and a program did not end as it should

STATUS_EVERY_S = 10.0  # for people who look at `systemctl status`; no more often than they would
HOOKS_PATIENCE_S = 5.0  # what was told last gets out on a good day; a slow command must not keep the daemon
EXTEND_EVERY_S = 5.0  # well within TimeoutStopSec of the unit, and seldom enough to be no load

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2, signal.SIGPWR})

log = structlog.get_logger()


class Supervisord:
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
        self._systemd = Systemd(os.environ)
        self._leave = asyncio.Event()
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
        logs, checkpoints = LogPump(settings.state_dir), CheckpointStore()
        logs.start()
        services = Services(
            ledger=ledger,
            logs=logs,
            checkpoints=checkpoints,
            state_dir=settings.state_dir,
            runtime_dir=settings.runtime_dir,
            environment={**without_notify(os.environ), **settings.environment},
            server_url=self._server_url(),
            notice_grace=settings.notice_grace,
            hooks=Hooks(settings.hook_timeout),
            hook_commands=settings.hooks(),
        )
        programs = Programs(self._config, self._read, services)
        services.saves.learn(ledger)
        noticing = Noticing(services.saves, settings.notice_grace, lambda: programs.runners)
        programs.on_new = noticing.meet
        self._trap_signals(programs, logs, noticing)
        daemon = Daemon(
            programs,
            ledger,
            logs,
            checkpoints,
            shut_down=self._leave.set,
            reload=self._ask_reload,
            settings=settings,
            is_reloading=lambda: self._reload,
            noticing=noticing,
            hooks=services.hooks,
            drills=Drills(noticing.received, noticing.withdrawn),
        )
        try:
            async with self._listening(daemon):
                self._background.ready()
                self._stay_alive()
                noticing.begin(_sources(settings))
                with orphans.reaped(programs.has_worker):
                    await self._supervise(programs, services.environment)
        finally:
            await noticing.end()
            if self._reload:
                logs.detach()
            else:
                logs.close()
            ledger.close()
            await asyncio.to_thread(services.hooks.close, HOOKS_PATIENCE_S)
        return None if self._reload else self._status

    async def _supervise(self, programs: Programs, environment: Mapping[str, str]) -> None:
        """Takes the programs up, waits for the word to leave, and leaves; also if taking them up fails."""
        begin = asyncio.create_task(programs.begin())
        leave = asyncio.create_task(self._leave.wait())
        watching = Watching(lambda: programs.runners, environment)
        watch = asyncio.create_task(watching.watch())
        try:
            while not (begin.done() or leave.done()):
                self._systemd.extend(2 * EXTEND_EVERY_S)  # workers of an earlier daemon have their limits to leave in
                await asyncio.wait({begin, leave}, timeout=EXTEND_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if begin.done():
                begin.result()
                log.info("daemon.ready", pid=os.getpid(), programs=len(programs.runners), version=__version__)
                self._systemd.ready(standing(programs.runners.values()))
                self._tell_standing(programs)
                programs.on_change = partial(self._programs_changed, programs, watching)
                programs.on_change()
            await leave
        finally:
            leave.cancel()
            watch.cancel()
            await self._end(programs)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # after a reload the fresh daemon hears them
            begin.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await begin
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def _programs_changed(self, programs: Programs, watching: Watching) -> None:
        watching.changed()
        self._leave_if_finished(programs)

    def _leave_if_finished(self, programs: Programs) -> None:
        """Leaves by itself if `exit_on` says that there is nothing left to live for."""
        exit_on = [ExitOn(each) for each in self._config.supervisord.exit_on]
        if not exit_on or self._leave.is_set() or (how := finish(exit_on, programs.endings())) is None:
            return
        self._status = 0 if how is Finish.DONE else EXIT_FATAL
        log.warning("daemon.finished", how=how.value, exit_status=self._status)
        self._leave.set()

    async def _end(self, programs: Programs) -> None:
        """Flushes and stops everything, and has systemd wait for it: every program's own limits bound how long."""
        log.info("daemon.leaving", programs=len(programs.runners), reload=self._reload)
        if self._reload:  # the workers don't notice: the next daemon takes them over
            programs.hand_over()
            return
        self._systemd.stopping("flushing and stopping all programs")
        leaving = asyncio.create_task(programs.leave())
        while not leaving.done():
            self._systemd.extend(2 * EXTEND_EVERY_S)  # at once: TimeoutStopSec= may be shorter than our period
            await asyncio.wait({leaving}, timeout=EXTEND_EVERY_S)
        await leaving

    def _stay_alive(self) -> None:
        """Feeds systemd's watchdog from the supervising loop, at half its period, as sd_watchdog_enabled(3) asks."""
        if self._systemd.watchdog_s is not None:
            self._systemd.alive()
            asyncio.get_running_loop().call_later(self._systemd.watchdog_s / 2, self._stay_alive)

    def _tell_standing(self, programs: Programs) -> None:
        """Tells systemd where training stands, at a low rate, until the daemon leaves."""
        if self._systemd.listens and not self._leave.is_set():
            self._systemd.status(standing(programs.runners.values()))
            asyncio.get_running_loop().call_later(STATUS_EVERY_S, self._tell_standing, programs)

    @contextlib.asynccontextmanager
    async def _listening(self, daemon: Daemon) -> AsyncIterator[None]:
        with open_doors(self._config) as doors:
            if not doors:
                reason = (
                    "there is no [unix_http_server] and no [inet_http_server]; supervisorctl can't reach this daemon"
                )
                log.warning("control.off", reason=reason)
            server = await serve(doors, daemon)
            try:
                yield
            finally:
                await server.cleanup()

    def _server_url(self) -> str | None:
        if self._config.unix_http_server is not None:
            return f"unix://{self._config.unix_http_server.file}"
        inet = self._config.inet_http_server
        return f"http://{inet.address[0] or 'localhost'}:{inet.address[1]}" if inet else None

    def _trap_signals(self, programs: Programs, logs: LogPump, noticing: Noticing) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, partial(self._asked_to_leave, number, programs))
        loop.add_signal_handler(signal.SIGPWR, self._power_fails, programs, noticing)
        loop.add_signal_handler(signal.SIGHUP, self._start_update, programs)
        loop.add_signal_handler(signal.SIGUSR2, self._reopen_logs, logs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _asked_to_leave(self, number: signal.Signals, programs: Programs) -> None:
        again = self._leave.is_set()
        log.warning("daemon.signalled", signal=number.name, effect="hurry" if again else "flush and stop")
        if again:
            programs.hurry()
        self._leave.set()

    def _power_fails(self, programs: Programs, noticing: Noticing) -> None:
        """SIGPWR: everything is to be on the disk within power_timeout, and the daemon leaves."""
        loop = asyncio.get_running_loop()
        gone_at = loop.time() + self._config.supervisord.power_timeout
        noticing.received(
            Notice("signal", "SIGPWR", Kind.SHUTDOWN, Certainty.CERTAIN, gone_at, is_cancellable=False, text="SIGPWR")
        )
        self._asked_to_leave(signal.SIGPWR, programs)
        loop.call_at(gone_at, programs.hurry)

    def _ask_reload(self) -> None:
        self._reload = True
        self._leave.set()

    def _reopen_logs(self, logs: LogPump) -> None:
        logs.reopen()
        self._daemon_log.reopen()

    def _start_update(self, programs: Programs) -> None:
        task = asyncio.create_task(_update(programs, self._systemd))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _sources(settings: SupervisordConfig) -> tuple[Source, ...]:
    """Where notices of this host come from. Raises UnknownSourceError."""
    told = NoticeSettings(
        notice_dir=settings.notice_dir,
        owner_uids=settings.notice_owners,
        azure_acknowledge=settings.azure_acknowledge,
        google_preemption_notice_s=settings.google_preemption_notice,
    )
    return sources(settings.notices, told)


async def _update(programs: Programs, systemd: Systemd) -> None:
    """SIGHUP: the configuration is read again, and what differs is changed; an unusable one changes nothing."""
    if programs.closing:
        return
    systemd.reloading("reading the configuration again")
    try:
        await programs.reread()
        actions = await programs.update()
        log.info("configuration.updated", actions=[f"{name}: {action}" for name, action in actions])
    except ConfigError as error:
        log.error("configuration.refused", error=str(error), kept="the one before")
    finally:
        systemd.ready(standing(programs.runners.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `supervisord`; gives its exit status."""
    options = _options().parse_args(arguments)
    if options.hash_password:
        return _hash_password()
    if options.migrate is not None:
        return _migrate(options.migrate)
    try:
        refuse_beside_supervisor()
        path = (options.configuration or find()).absolute()  # `directory` may move us
        config = _with_overrides(load(path, os.environ), options)
        _sources(config.supervisord)
    except (ConfigError, NotAlone, UnknownSourceError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - before there is a log
        return EXIT_CONFIG
    if options.check_config:
        print(f"{path}: good, {len(config.programs)} programs")  # noqa: T201 - the answer that was asked for
        return 0
    return _run(config, lambda: load(path, os.environ))


def _migrate(path: Path) -> int:
    try:
        judged = judge(path, os.environ)
    except ConfigError as error:
        return _refuse(str(error), EXIT_CONFIG)
    print(*judged, sep="\n")  # noqa: T201 - the answer that was asked for
    refused = sum(each.fate is Fate.REFUSED for each in judged)
    print(  # noqa: T201
        f"{path}: {refused} to change before stepkeeper can use it" if refused else f"{path}: can be used as it is"
    )
    return EXIT_CONFIG if refused else 0


def _hash_password() -> int:
    is_typed = sys.stdin.isatty()
    password = getpass.getpass("Password: ") if is_typed else sys.stdin.readline().rstrip("\n")
    if not password or (is_typed and getpass.getpass("Again: ") != password):
        return _refuse("the two are not the same, or empty; try again", 1)
    print(hashed(password))  # noqa: T201 - the answer that was asked for
    return 0


def _run(config: Config, read: Callable[[], Config]) -> int:
    settings = config.supervisord
    limits.raise_own()
    state = StateFolder(settings.state_dir)
    background: Background | Foreground = Foreground()
    try:
        if settings.user is not None:
            become(credentials(settings.user))
        os.umask(settings.umask)
        if settings.directory is not None:
            os.chdir(settings.directory)
        state.hold()
        settings.childlogdir.mkdir(parents=True, exist_ok=True)
        if not settings.nodaemon:
            background = detach()
        state.sign()
        with pid_file(settings.pidfile):
            status = _live(config, read, background)
    except NotAlone as error:
        return _refuse(str(error), EXIT_BUSY)
    except (OSError, ListenError, LedgerError, SpawnError) as error:
        background.failed(EXIT_CANNOT_RUN)
        return _refuse(f"cannot run: {error}", EXIT_CANNOT_RUN)
    if status is None:
        _begin_anew(config.path)
    return status


def _begin_anew(configuration: Path) -> NoReturn:
    """Becomes a fresh daemon with the same options, its configuration named by the full path: we may have moved."""
    limits.restore_own()
    named = ["-c", str(configuration)]
    options = sys.argv[1:] if sys.argv[-2:] == named else [*sys.argv[1:], *named]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "supervisor.daemon", *options])  # noqa: S606 - no shell


def _live(config: Config, read: Callable[[], Config], background: Background | Foreground) -> int | None:
    settings = config.supervisord
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # threads inherit it: signals are the loop's, or wait for it
    daemon_log = DaemonLog(
        settings.loglevel,
        settings.logfile,
        settings.logfile_maxbytes,
        settings.logfile_backups,
        foreground=settings.nodaemon,
        journal_stream=os.environ.get("JOURNAL_STREAM", ""),
    )
    try:
        return asyncio.run(_supervise(config, read, background, daemon_log))
    finally:
        daemon_log.stop()


async def _supervise(
    config: Config, read: Callable[[], Config], background: Background | Foreground, daemon_log: DaemonLog
) -> int | None:
    return await Supervisord(config, read, background, daemon_log).run()


def _refuse(text: str, status: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - for whoever started it
    return status


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="supervisord",
        description="Keeps training jobs and other programs running; see supervisorctl for talking to it.",
        epilog="Exit status: 0 after a shutdown, 78 for a bad configuration, 75 where another supervisord is running, "
        "71 where a needed file or socket can't be had, 70 where exit_on says so. Signals: TERM, INT, QUIT flush and "
        "stop all programs (twice: in a hurry); PWR: the same within power_timeout; HUP reads the configuration and "
        "changes what differs; USR2 reopens log files.",
    )
    add = parser.add_argument
    add("-c", "--configuration", type=Path, metavar="FILE", help="configuration file (searched for if absent)")
    add("-n", "--nodaemon", action="store_true", help="stay in the foreground")
    add("-t", "--check-config", action="store_true", help="say all that is wrong with the configuration, and exit")
    add("-l", "--logfile", type=Path, metavar="FILE", help="the daemon's log")
    add("-e", "--loglevel", choices=list(LEVELS), metavar="LEVEL", help="critical, error, warn, info or debug")
    add("-j", "--pidfile", type=Path, metavar="FILE", help="where to write the pid")
    add("--migrate", type=Path, metavar="FILE", help="say of every line of Supervisor's FILE what becomes of it here")
    add("--hash-password", action="store_true", help="read a password and print what to write for it in the file")
    add("-v", "--version", action="version", version=__version__)
    return parser


def _with_overrides(config: Config, options: argparse.Namespace) -> Config:
    """The configuration, with what the command line says instead of the file. Raises ConfigError."""
    said = {key: getattr(options, key) for key in ("nodaemon", "loglevel", "logfile", "pidfile")}
    return config.with_settings({key: value for key, value in said.items() if value})


if __name__ == "__main__":
    sys.exit(main())
