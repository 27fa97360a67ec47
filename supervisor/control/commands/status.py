"""The command `status`: everything that clients may want to know about each program."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from supervisor.config import ProgramConfig
from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.control.commands import groups
from supervisor.control.commands.descriptions import full_description, wire_state, wire_state_or_unknown
from supervisor.control.commands.job_status import JobStatus, job_status
from supervisor.control.commands.notices import NoticeStatus, notice_status, slow_flush_warning
from supervisor.control.commands.prove import difference_found
from supervisor.core.diagnosis.evidence import Diagnosis
from supervisor.core.program.facts import State
from supervisor.host.logs import journal, syslog
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.listeners.hub import ListenerStatus
from supervisor.runner.program.runner import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """What `status` says of a program.

    `wire_state` and `wire_code` are the state in Supervisor's words and numbers. `wanted`: whether it should run;
    `cgroup`: the control group that holds all its processes, null where there is none and its descendants are only
    watched; `can_outlive`: which of them can outlive a program that they are to end with, in words; `says`: the status
    text it sent itself; `diagnosis`: why its last attempt died, until the next one begins, null if it was meant to end;
    `durable_s`: how long a job's flush is expected to take; `not_applied`: why the last
    update left it as it was, though its section has changed.
    """

    name: str
    group: str
    process: str
    group_priority: int
    priority: int
    state: State
    wire_state: str
    wire_code: int
    description: str
    pid: int | None
    cgroup: str | None
    can_outlive: str | None
    started_wall_at: float | None
    ended_wall_at: float | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    diagnosis: Diagnosis | None
    says: str | None
    wanted: bool
    warning: str | None
    not_applied: str | None
    durable_s: float | None
    notice: NoticeStatus | None
    listener: ListenerStatus | None
    stdout_logfile: str | None
    stderr_logfile: str | None
    job: JobStatus | None


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """All programs by group and name, and what is wrong with the daemon's own records and hooks."""

    programs: tuple[ProgramStatus, ...]
    ledger_error: str | None
    hooks_error: str | None


async def status(context: CommandContext) -> StatusAnswer:
    """Gives the status of every program, by group and name."""
    log_errors, flush_times_s = context.logs.failures, context.expected_times.flush_times_s()
    shortest_s = context.notices.shortest_s
    await context.proofs.look_at_scripts()
    return StatusAnswer(
        tuple(
            _status_or_line(runner, log_errors, flush_times_s.get(runner.name), shortest_s, context.proofs)
            for runner in groups.in_order(context.programs.runners.values())
        ),
        context.ledger.last_error,
        context.hooks.failure_summary,
    )


def _status_or_line(
    runner: Runner,
    log_errors: Mapping[Path, str],
    flush_time_s: float | None,
    shortest_s: float | None,
    proofs: Proofs,
) -> ProgramStatus:
    """As `_status`; for a program of which something can't be shown, what is always known, and why."""
    try:
        return _status(runner, log_errors, flush_time_s, shortest_s, proofs)
    except Exception as error:  # noqa: BLE001 - it must not hide the others
        word, code = wire_state_or_unknown(runner)
        nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(ProgramStatus))
        shown = {"wire_state": word, "wire_code": code, "description": not_shown(runner.name, error)}
        return ProgramStatus(**nothing | shown | _always_known(runner))


def _always_known(runner: Runner) -> dict[str, Any]:
    """Fields of ProgramStatus that need nothing of what the program or its job say."""
    config = runner.config
    return {
        "name": runner.name,
        "group": config.group,
        "process": config.process,
        "group_priority": config.group_priority,
        "priority": config.priority,
        "state": runner.state,
        "pid": runner.pid,
        "wanted": runner.wanted,
        "not_applied": runner.not_applied,
        "stdout_logfile": _path_text(config.stdout_logfile),
        "stderr_logfile": _path_text(config.stderr_logfile),
    }


def _status(
    runner: Runner,
    log_errors: Mapping[Path, str],
    flush_time_s: float | None,
    shortest_s: float | None,
    proofs: Proofs,
) -> ProgramStatus:
    """`log_errors`: by path. `flush_time_s`: of this job; `shortest_s`: the shortest warning this host gives."""
    word, code = wire_state(runner)
    last_exit = runner.records.process.last_exit
    log_error = next((log_errors[path] for path in _log_destinations(runner.config) if path in log_errors), None)
    is_uploaded = runner.mirror is not None and runner.mirror.is_awaited
    warning = slow_flush_warning(flush_time_s, shortest_s, is_uploaded)
    difference = difference_found(proofs, runner.name)
    return ProgramStatus(
        **_always_known(runner),
        wire_state=word,
        wire_code=code,
        description=full_description(runner, log_error, warning, difference),
        cgroup=_path_text(runner.current.cgroup),
        can_outlive=runner.current.can_outlive,
        started_wall_at=runner.records.process.started_wall_at,
        ended_wall_at=runner.records.process.ended_wall_at,
        exit_code=last_exit.code if last_exit else None,
        signal=last_exit.signal if last_exit else None,
        reason=runner.reason,
        diagnosis=runner.records.process.diagnosis,
        says=runner.records.process.status_text,
        warning=warning,
        durable_s=flush_time_s,
        notice=notice_status(runner, time.monotonic()),
        listener=runner.listener_status,
        job=job_status(runner, proofs),
    )


def _log_destinations(config: ProgramConfig) -> list[Path]:
    """The files and addresses that a program's output goes to."""
    paths = [path for path in (config.stdout_logfile, config.stderr_logfile) if path is not None]
    if config.stdout_syslog or config.stderr_syslog:
        paths.append(syslog.ADDRESS)
    if config.stdout_journal or config.stderr_journal:
        paths.append(journal.SOCKET)
    return paths


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
