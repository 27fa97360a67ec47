"""A program as Supervisor's interface describes it: two structures in which every key is always there."""

import shlex
import time
from collections.abc import Iterable
from typing import Any

from supervisor.config import ProgramConfig
from supervisor.control.base.isolation import not_shown
from supervisor.control.commands import descriptions
from supervisor.core.program.facts import State
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.runner.program.runner import Runner

NONE = "none"  # how a value that is not set is written


def process_info(runner: Runner) -> dict[str, Any]:
    """The state of the program. Times are whole seconds of Unix time, 0: never.

    Of a program of which something can't be shown, what is always known, and why in the description.
    """
    try:
        return _process_info(runner)
    except Exception as error:  # noqa: BLE001 - it must not hide the others
        word, code = descriptions.wire_state_or_unknown(runner)
        return {
            "name": runner.config.process,
            "group": runner.config.group,
            "start": 0,
            "stop": 0,
            "now": int(time.time()),
            "state": code,
            "statename": word,
            "spawnerr": "",
            "exitstatus": 0,
            "logfile": "",
            "stdout_logfile": "",
            "stderr_logfile": "",
            "pid": runner.pid or 0,
            "description": not_shown(runner.name, error),
        }


def _process_info(runner: Runner) -> dict[str, Any]:
    config, process, (word, code) = runner.config, runner.records.process, descriptions.wire_state(runner)
    failed = runner.state in (State.BACKOFF, State.EXITED, State.FAILED)
    stdout, stderr = ("" if path is None else str(path) for path in (config.stdout_logfile, config.stderr_logfile))
    return {
        "name": config.process,
        "group": config.group,
        "start": int(process.started_wall_at or 0),
        "stop": int(process.ended_wall_at or 0),
        "now": int(time.time()),
        "state": code,
        "statename": word,
        "spawnerr": (runner.reason or "") if failed else "",
        "exitstatus": _exit_status(process.last_exit),
        "logfile": stdout,
        "stdout_logfile": stdout,
        "stderr_logfile": stderr,
        "pid": process.pid or 0,
        "description": descriptions.full_description(runner),
    }


def _exit_status(last: Exit | None) -> int:
    if last is None:
        return 0
    return -1 if last.signal is not None else last.code or 0


def config_info(config: ProgramConfig, in_use: bool, uid: int | str) -> dict[str, Any]:
    """The configuration of the program, as far as the interface has keys for it. `uid`: of its user, from `uids`."""
    return {
        "name": config.process,
        "group": config.group,
        "command": shlex.join(config.command),
        "directory": NONE if config.directory is None else str(config.directory),
        "uid": uid,
        "inuse": in_use,
        "autostart": config.autostart,
        "exitcodes": sorted(config.exitcodes),
        "group_prio": config.group_priority,
        "process_prio": config.priority,
        "startsecs": _whole(config.startsecs),
        "startretries": config.startretries,
        "stopsignal": int(config.stopsignal),
        "stopwaitsecs": _whole(config.stopwaitsecs),
        "killasgroup": config.killasgroup,
        "redirect_stderr": config.redirect_stderr,
        "serverurl": NONE,
        **_log(config, "stdout"),
        **_log(config, "stderr"),
    }


def _log(config: ProgramConfig, channel: str) -> dict[str, Any]:
    path = getattr(config, f"{channel}_logfile")
    others = ("logfile_maxbytes", "logfile_backups", "capture_maxbytes", "events_enabled", "syslog")
    return {
        f"{channel}_logfile": NONE if path is None else str(path),
        **{f"{channel}_{other}": getattr(config, f"{channel}_{other}") for other in others},
    }


def uids(users: Iterable[str | None]) -> dict[str | None, int | str]:
    """The uids of users; blocks until the password database has answered."""
    return {user: _uid(user) for user in users}


def _uid(user: str | None) -> int | str:
    try:
        return NONE if user is None else find_credentials(user).uid
    except SpawnError:
        return NONE


def _whole(seconds: float) -> int | float:
    """A whole number where possible, as Supervisor's are; ours may have fractions."""
    return int(seconds) if seconds.is_integer() else seconds
