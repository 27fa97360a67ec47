"""The command `supervisord`: its options, what it checks before it begins, and its exit status."""

import supervisor.host.service.slim_imports  # noqa: F401 - has to come first

# isort: split

import asyncio
import contextlib
import gc
import getpass
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import structlog

from supervisor.config import Config, ConfigError, load_config, options
from supervisor.config.migrate import MigrationOutcome, explain_migration
from supervisor.config.schema.secret import hash_password
from supervisor.control.endpoints import ListenError
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.notices.sources import UnknownSourceError
from supervisor.host.processes import limits
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.service.background import (
    Background,
    Foreground,
    detach,
    drop_privileges,
    open_standard_descriptors,
)
from supervisor.host.service.single_instance import (
    AlreadyRunning,
    StateFolder,
    pid_file,
    refuse_shared_environment,
)
from supervisor.lifecycle import SIGNALS, DaemonLifecycle, notice_sources
from supervisor.protocol.plurals import counted

gc.freeze()  # modules stay for good, so the garbage collector need not scan them again and again

log = structlog.get_logger()

EXIT_BUSY = 75  # EX_TEMPFAIL: another daemon is here
EXIT_CONFIG = 78  # EX_CONFIG: systemd must not try the same configuration again
EXIT_CANNOT_RUN = 71  # EX_OSERR: a folder, file or socket this daemon needs can't be had


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `supervisord`; gives its exit status."""
    asked = options.parse_arguments(arguments)
    if asked.hash_password:
        return _hash_password()
    if asked.migrate is not None:
        return _migrate(asked.migrate)
    try:
        refuse_shared_environment()
        said, path = options.overridden_keys(asked), options.configuration_path(asked)  # whole: `directory` may move us
        config = load_config(path, os.environ, said)
        notice_sources(config.supervisord)
    except (ConfigError, AlreadyRunning, UnknownSourceError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - before there is a log
        return EXIT_CONFIG
    if asked.check_config:
        print(*config.warnings, f"{path}: good, {counted(len(config.programs), 'program')}", sep="\n")  # noqa: T201 - the answer
        return 0
    return _run(config, lambda: load_config(path, os.environ, said))


def _migrate(path: Path) -> int:
    try:
        judged = explain_migration(path, os.environ)
    except ConfigError as error:
        return _refuse(str(error), EXIT_CONFIG)
    print(*judged, sep="\n")  # noqa: T201 - the answer that was asked for
    refused = sum(each.outcome is MigrationOutcome.REFUSED for each in judged)
    print(  # noqa: T201
        f"{path}: {refused} to change before stepkeeper can use it" if refused else f"{path}: can be used as it is"
    )
    return EXIT_CONFIG if refused else 0


def _hash_password() -> int:
    is_typed = sys.stdin.isatty()
    password = getpass.getpass("Password: ") if is_typed else sys.stdin.readline().rstrip("\n")
    if not password or (is_typed and getpass.getpass("Again: ") != password):
        return _refuse("the two are not the same, or empty; try again", 1)
    print(hash_password(password))  # noqa: T201 - the answer that was asked for
    return 0


def _run(config: Config, read: Callable[[], Config]) -> int:
    open_standard_descriptors()
    settings = config.supervisord
    state = StateFolder(settings.state_dir)
    background: Background | Foreground = Foreground()
    started_in = _started_in()
    try:
        limits.raise_inherited_limits(settings.minfds, settings.minprocs)
        limits.raise_own_nofile()
        if settings.user is not None:
            _become(settings.user)
        os.umask(settings.umask)
        if settings.directory is not None:
            os.chdir(settings.directory)
        state.lock()
        settings.childlogdir.mkdir(parents=True, exist_ok=True)
        if not settings.nodaemon:
            background = detach()
        state.write_pid()
        with pid_file(settings.pidfile):
            status = _live(config, read, background)
    except AlreadyRunning as error:
        return _refuse(str(error), EXIT_BUSY)
    except (OSError, ListenError, LedgerError, SpawnError, limits.LimitError) as error:
        background.report_failure(EXIT_CANNOT_RUN)
        return _refuse(f"cannot run: {_in_words(error)}", EXIT_CANNOT_RUN)
    if status is None:
        _begin_anew(config.path, started_in)
    return status


def _in_words(error: Exception) -> str:
    """What keeps the daemon from running; our own errors say it themselves."""
    if isinstance(error, OSError) and error.filename is not None:
        remedy = "let this user write there, or name another place in [supervisord]"
        return f"{error.filename}: {error.strerror}; {remedy}"
    return str(error)


def _started_in() -> Path:
    """The present folder; if it was deleted, it is the root from now on."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        os.chdir("/")
        return Path("/")


def _become(user: str) -> None:
    """Gives up being root for this user, unless it is who we are already (after a reload, or as an ordinary user)."""
    wanted = find_credentials(user)
    if wanted.uid != os.geteuid():
        drop_privileges(wanted)


def _begin_anew(configuration: Path, folder: Path) -> NoReturn:
    """Becomes a fresh daemon with the same options, its configuration named by the full path.

    `folder`: where it was started, as paths among the options may start from there.
    """
    limits.restore_own_nofile()
    with contextlib.suppress(OSError):  # it may be gone, or another user's
        os.chdir(folder)
    named = ["-c", str(configuration)]
    given = sys.argv[1:] if sys.argv[-2:] == named else [*sys.argv[1:], *named]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "supervisor.daemon", *given])  # noqa: S606 - no shell


def _live(config: Config, read: Callable[[], Config], background: Background | Foreground) -> int | None:
    settings = config.supervisord
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # threads inherit it: signals are the loop's, or wait for it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as exec keeps it, no child's end could be asked for
    daemon_log = DaemonLog(
        settings.loglevel,
        settings.logfile,
        settings.logfile_maxbytes,
        settings.logfile_backups,
        foreground=settings.nodaemon and not settings.silent,
        journal_stream=os.environ.get("JOURNAL_STREAM", ""),
        syslog_tag=settings.identifier if settings.log_to_syslog else None,
        in_supervisors_words=settings.log_format == "supervisor",
    )
    for each in config.warnings:
        log.warning("configuration.remark", text=str(each))
    try:
        return asyncio.run(_supervise(config, read, background, daemon_log))
    finally:
        daemon_log.stop()


async def _supervise(
    config: Config, read: Callable[[], Config], background: Background | Foreground, daemon_log: DaemonLog
) -> int | None:
    return await DaemonLifecycle(config, read, background, daemon_log).run()


def _refuse(text: str, status: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - for whoever started it
    return status


if __name__ == "__main__":
    sys.exit(main())
