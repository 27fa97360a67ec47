"""The command line of `supervisord`: its options, its checks before the start, and its exit status."""

import supervisor.early_interrupt
import supervisor.host.service.slim_classes
import supervisor.host.service.slim_imports  # noqa: F401 - these three have to come first

# isort: split

import asyncio
import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from supervisor import __version__, early_interrupt
from supervisor.assembly import notice_sources
from supervisor.config import Config, ConfigError, load_config, options
from supervisor.control.listening_sockets import ListenError
from supervisor.host.daemon_log.daemon_log import ChangesFile, DaemonLog
from supervisor.host.gpu_guard.client import GpuHelper
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.notices.sources import UnknownSourceError
from supervisor.host.processes import limits
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.service import heap
from supervisor.host.service.background import (
    Background,
    Foreground,
    detach,
    discard,
    drop_privileges,
    open_standard_descriptors,
)
from supervisor.host.service.folder_claims import claim_runtime_dir
from supervisor.host.service.next_daemon import KEEP_CHECKED, NextDaemon
from supervisor.host.service.reloading import Reload
from supervisor.host.service.single_instance import (
    AlreadyRunning,
    SharedEnvironment,
    StateFolder,
    pid_file,
    refuse_shared_environment,
)
from supervisor.host.service.systemd import SystemdNotifier
from supervisor.lifecycle import DaemonLifecycle
from supervisor.one_shot_options import EXIT_CANNOT_RUN, EXIT_CONFIG, check, fail, run_one_shot
from supervisor.protocol import allocation
from supervisor.protocol.allocation import AllocationError
from supervisor.protocol.disk_space import DISK_FULL, full_disk_reason
from supervisor.protocol.plurals import counted
from supervisor.protocol.printable import accept_any_text
from supervisor.signals import SIGNALS

gc.freeze()  # modules stay for good, so the garbage collector need not scan them again and again

log = structlog.get_logger()

EXIT_BUSY = 75  # EX_TEMPFAIL: another daemon is running
START_FAILURES = (OSError, ListenError, LedgerError, SpawnError, limits.LimitError)


def main(arguments: Sequence[str] | None = None, gpu_helper: GpuHelper | None = None) -> int:
    """The command `supervisord`; returns its exit status. `gpu_helper`: for tests, on hosts without GPUs."""
    accept_any_text()
    if any(option in sys.argv for option in ("-h", "--help", "--migrate", "--check-config")):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `supervisord --migrate FILE | head` ends quietly
    parsed = options.parse_arguments(arguments)
    if (status := run_one_shot(parsed)) is not None:
        return status
    early_interrupt.end()
    reload = Reload.of_environment(os.environ)
    keeps_checked = os.environ.pop(KEEP_CHECKED, None) is not None
    refuse = fail if parsed.check_config else _fail_start
    try:
        refuse_shared_environment()
        overrides, path = options.overridden_keys(parsed), options.configuration_path(parsed)  # before any chdir
        config = _read_checked(reload) or load_config(path, os.environ, overrides)
        notice_sources(config.supervisord)
        if parsed.check_config:
            status = check(config)
            if keeps_checked and status == 0:
                _keep_checked(config)
            return status
    except (ConfigError, SharedEnvironment, UnknownSourceError) as error:
        return refuse(str(error), EXIT_CONFIG)
    except UnicodeEncodeError as error:
        text = f"cannot use {error.object!r:.200}: the encoding of this locale, {error.encoding}, lacks a character"
        return refuse(f"{text}; set LC_ALL=C.UTF-8", EXIT_CONFIG)
    return _run(config, lambda: load_config(path, os.environ, overrides), gpu_helper or GpuHelper(), reload)


def _keep_checked(config: Config) -> None:
    """Writes what was read to standard input, a file in memory of the daemon that a reload will replace."""
    with open(0, "wb", closefd=False) as file:
        pickle.dump((__version__, config), file)


def _read_checked(reload: Reload) -> Config | None:
    """The configuration that was checked before the reload; None if the files are to be read."""
    if not reload.checked:
        return None
    try:
        version, config = pickle.loads(reload.checked)  # noqa: S301 - of this daemon's memory
    except Exception:  # noqa: BLE001 - the check was cut off, or the package was replaced since
        return None
    return config if version == __version__ and isinstance(config, Config) else None


def _run(config: Config, read_config: Callable[[], Config], gpu_helper: GpuHelper, reload: Reload) -> int:
    open_standard_descriptors()
    settings = config.supervisord
    state = StateFolder(settings.state_dir)
    background: Background | Foreground = Foreground()
    next_daemon = NextDaemon(config.path, _current_folder())
    try:
        limits.raise_inherited_limits(settings.minfds, settings.minprocs)
        limits.raise_own_nofile()
        if settings.user is not None:
            _switch_user(settings.user)
        os.umask(settings.umask)
        if settings.directory is not None:
            os.chdir(settings.directory)
        if settings.engine == "slurm":
            from supervisor.host.slurm import claim_folder, sweep_folders  # only here: most daemons have no use for it

            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # until there is a handler
            claim_folder(state.path)
            threading.Thread(target=sweep_folders, args=(state.path,), name="sweep", daemon=True).start()
        state.lock()
        claim_runtime_dir(settings.runtime_dir, state.path)
        settings.childlogdir.mkdir(parents=True, exist_ok=True)
        if not (settings.nodaemon or settings.engine != "alone" or reload.was_daemon):  # that one had the same pid
            background = detach()
            if not settings.silent:
                background.announcement = _announcement(config)
        state.write_pid()
        with pid_file(settings.pidfile):
            status = _run_daemon(config, read_config, background, gpu_helper, state, reload, next_daemon)
    except AlreadyRunning as error:
        return _fail_start(str(error), EXIT_BUSY)
    except AllocationError as error:
        return _fail_start(str(error), EXIT_CONFIG)
    except START_FAILURES as error:
        background.report_failure(EXIT_CANNOT_RUN)
        return _fail_start(_explain_start_failure(error), EXIT_CANNOT_RUN)
    if status is None:
        next_daemon.execute(reload)
    if settings.engine == "slurm":
        from supervisor.host.slurm import remove_folder

        remove_folder(state.path, status)
    return status


def _fail_start(text: str, status: int) -> int:
    """Says why there is no daemon, also in the line that `systemctl status` shows; gives the exit status back."""
    SystemdNotifier(os.environ).send_status(text)
    return fail(text, status)


def _explain_start_failure(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)  # one of our own, whose text is complete
    if error.filename is None:
        return f"cannot start supervisord: {error.strerror or error}"
    remedy = "make it writable for this user, or configure another path in [supervisord]"
    if error.errno in DISK_FULL:
        remedy = "free space there"
    place = Path(os.fsdecode(error.filename))
    return f"cannot start supervisord: cannot use {place}: {full_disk_reason(error, place)}; {remedy}"


def _current_folder() -> Path:
    """The current folder; if it was deleted, changes to the root."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        os.chdir("/")
        return Path("/")


def _switch_user(user: str) -> None:
    """Drops root privileges for this user, unless we already run as it (after a reload, or as an ordinary user)."""
    credentials = find_credentials(user)
    if credentials.uid != os.geteuid():
        drop_privileges(credentials)


def _announcement(config: Config) -> str:
    """Where the daemon in the background keeps what it writes."""
    settings = config.supervisord
    log_file = "the system's log" if settings.log_to_syslog else settings.logfile or "none"
    programs = counted(len(config.programs), "program")
    return (
        f"supervisord {os.getpid()} runs in the background with {programs} of {config.path}\n"
        f"  its log: {log_file}\n  logs of programs: {settings.childlogdir}\n"
        f"  state and history: {settings.state_dir}\n"
    )


def _run_daemon(
    config: Config,
    read_config: Callable[[], Config],
    background: Background | Foreground,
    gpu_helper: GpuHelper,
    state: StateFolder,
    reload: Reload,
    next_daemon: NextDaemon,
) -> int | None:
    """Runs the daemon with its log; returns the exit status, or None for a reload."""
    settings = config.supervisord
    heap.share_heap()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the loop handles them; threads inherit the mask
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was inherited as ignored, no exit status could be read
    is_detached = not (settings.nodaemon or settings.engine != "alone")
    has_shared_output = settings.engine == "slurm" and settings.logfile is not None
    output_level = allocation.output_level(os.environ) if has_shared_output else "debug"
    daemon_log = DaemonLog(
        settings.loglevel,
        settings.logfile,
        settings.logfile_maxbytes,
        settings.logfile_backups,
        foreground=not is_detached and not settings.silent and output_level is not None,
        foreground_level=output_level or "debug",
        journal_stream=os.environ.get("JOURNAL_STREAM", ""),
        syslog_tag=settings.identifier if settings.log_to_syslog else None,
        supervisor_format=settings.log_format == "supervisor",
        changes=None
        if settings.changes_logfile is None
        else ChangesFile(settings.changes_logfile, settings.changes_logfile_maxbytes, settings.changes_logfile_backups),
    )
    for warning in config.warnings:
        log.warning("configuration.remark", text=str(warning))
    if reload.was_daemon and is_detached:
        discard(2)  # until here it was the log of the daemon before
    lifecycle = DaemonLifecycle(config, read_config, background, daemon_log, gpu_helper, state, reload, next_daemon)
    try:
        status = asyncio.run(lifecycle.run())
        if status is None and is_detached:
            daemon_log.take_standard_error()  # the next daemon may fail before it has a log
        return status
    except START_FAILURES as error:
        if reload.was_daemon:  # whose standard error nobody sees if it is in the background
            log.error("daemon.not_started", reason=_explain_start_failure(error), effect="programs run on without it")
        raise
    finally:
        daemon_log.stop()


if __name__ == "__main__":
    sys.exit(main())
