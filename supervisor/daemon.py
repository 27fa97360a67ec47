"""The command `supervisord`: its options, what it checks before it begins, and its exit status."""

import supervisor.host.lean  # noqa: F401 - before whatever it keeps small

# isort: split

import argparse
import asyncio
import getpass
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from supervisor import __version__
from supervisor.config import Config, ConfigError, find, load
from supervisor.config.migrate import Fate, judge
from supervisor.config.secret import hashed
from supervisor.control.listening import ListenError
from supervisor.host import limits
from supervisor.host.alone import NotAlone, StateFolder, pid_file, refuse_beside_supervisor
from supervisor.host.background import Background, Foreground, become, detach
from supervisor.host.daemon_log import LEVELS, DaemonLog
from supervisor.host.ledger import LedgerError
from supervisor.host.notices.choose import UnknownSourceError
from supervisor.host.process import SpawnError, credentials
from supervisor.supervisord import SIGNALS, Supervisord, notice_sources

EXIT_BUSY = 75  # EX_TEMPFAIL: another daemon is here
EXIT_CONFIG = 78  # EX_CONFIG: systemd must not try the same configuration again
EXIT_CANNOT_RUN = 71  # EX_OSERR: a folder, file or socket this daemon needs can't be had


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
        notice_sources(config.supervisord)
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
        syslog_tag=settings.identifier if settings.log_to_syslog else None,
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
