"""A program's standing in the words that Supervisor's clients know, and for people to read.

State codes are those of Supervisor's XML-RPC interface, API version 3.0.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from supervisor.config import ProgramConfig
from supervisor.control.base.context import Arguments, CommandContext, Result
from supervisor.control.commands import groups, notices
from supervisor.core.listeners.wire_states import WireState
from supervisor.core.program.facts import State
from supervisor.core.program.standby import Stage
from supervisor.host.logs import journal, syslog
from supervisor.runner.program.runner import Runner


async def status(context: CommandContext, arguments: Arguments) -> Result:
    """Every program, by group and name."""
    troubles, durable_s = context.logs.failures, context.notices.flush_times_s()
    warnings = {
        name: notices.slow_flush_warning(takes_s, context.notices.shortest_s) for name, takes_s in durable_s.items()
    }
    return {
        "programs": [
            {**status_of(each, troubles, warnings.get(each.name)), "durable_s": durable_s.get(each.name)}
            for each in groups.in_order(context.programs.runners.values())
        ],
        "ledger_error": context.ledger.last_error,
        "hooks_error": context.hooks.failure_summary,
    }


def status_of(runner: Runner, troubles: Mapping[Path, str], warning: str | None = None) -> dict[str, Any]:
    """All that `status` says of a program. `troubles`: what is wrong with log files, by path. `warning`: more words."""
    word, code = wire_state(runner)
    exited = runner.executor.last_exit
    listener = runner.listener_status
    log_error = next((troubles[path] for path in _logs(runner.config) if path in troubles), None)
    return {
        "name": runner.name,
        "group": runner.config.group,
        "process": runner.config.process,
        "group_priority": runner.config.group_priority,
        "priority": runner.config.priority,
        "state": str(runner.state),
        "wire_state": word,
        "wire_code": code,
        "description": full_description(runner, log_error, warning),
        "pid": runner.executor.pid,
        "started_wall_at": runner.executor.started_wall_at,
        "ended_wall_at": runner.executor.ended_wall_at,
        "exit_code": exited.code if exited else None,
        "signal": exited.signal if exited else None,
        "reason": runner.reason,
        "says": runner.executor.status_text,
        "warning": warning,
        "notice": notices.notice_status(runner, time.monotonic()),
        "wanted": runner.wanted,
        "listener": asdict(listener) if listener is not None else None,
        "stdout_logfile": _text(runner.config.stdout_logfile),
        "stderr_logfile": _text(runner.config.stderr_logfile),
        "job": _job(runner),
    }


def full_description(runner: Runner, *more: str | None) -> str:
    """Where it stands in a line, with `more` that is to be known."""
    return ", ".join(filter(None, [describe(runner), str(runner.listener_status or ""), *more]))


def _logs(config: ProgramConfig) -> list[Path]:
    """The files and addresses that what it prints goes to."""
    files = [path for path in (config.stdout_logfile, config.stderr_logfile) if path is not None]
    if config.stdout_syslog or config.stderr_syslog:
        files.append(syslog.ADDRESS)
    if config.stdout_journal or config.stderr_journal:
        files.append(journal.SOCKET)
    return files


def _job(runner: Runner) -> dict[str, Any] | None:
    if runner.config.job is None:
        return None
    training = asdict(runner.executor.training)
    policy, detector = runner.facts.policy, runner.facts.hang_detector
    learned = policy.hang_timeout_min is not None
    return {
        "attempt": runner.attempt,
        "checkpoint_dir": str(runner.config.job.checkpoint_dir),
        "section": str(detector.section) if runner.executor.pid is not None else None,
        "hang_limit_s": detector.limit(detector.section, policy.hang_timeout_min or 0.0)
        if learned
        else policy.hang_timeout,
        "suspects": sorted(runner.facts.suspects.avoid),
        "standby": runner.executor.standby.status() if runner.executor.standby is not None else None,
        **training,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def wire_state(runner: Runner) -> tuple[str, int]:
    """Supervisor's name and number for where the program stands; a flush before a stop is STOPPING.

    What waits for the last of an earlier daemon's is on its way, so that a stop of all stops it too.
    """
    found = WireState.STARTING if runner.is_due else runner.wire_state
    return (found.name, int(found))


def describe(runner: Runner) -> str:
    """The third column of `status`."""
    if not runner.startable.is_set():
        return "being taken up; what an earlier daemon left behind has to leave first"
    if runner.waits_for is not None:
        return runner.waits_for
    match runner.state:
        case State.RUNNING | State.FLUSHING:
            since = f"uptime {_span(runner.executor.run_time_s or 0.0)}"
            return ", ".join(
                [f"pid {runner.executor.pid}", since, *_training(runner), *_notice(runner), *_says(runner)]
            )
        case State.STARTING if runner.config.notify:
            return ", ".join([f"pid {runner.executor.pid}", *(_says(runner) or ["not ready yet"])])
        case State.STARTING if runner.executor.waits_for_gpus:
            return "waits for its GPUs to be free of the last attempt"
        case State.STARTING if runner.config.job is not None:
            return ", ".join([f"pid {runner.executor.pid}", _starting(runner), *_notice(runner)])
        case State.ADOPTING:
            return f"pid {runner.executor.pid}, of an earlier daemon; asked where it stands"
        case State.BACKOFF | State.FAILED:
            return ", at ".join([runner.reason or "unknown error", *_where(runner)])
        case State.STOPPED | State.SUCCEEDED | State.EXITED:
            ended = (
                _local(runner.executor.ended_wall_at) if runner.executor.ended_wall_at is not None else "Not started"
            )
            return ", ".join(filter(None, [ended, *_training(runner), runner.reason]))
        case _:
            return ""


def _where(runner: Runner) -> list[str]:
    """The last place in the script that the traceback names."""
    frames = [line.strip() for line in runner.executor.training.traceback if line.lstrip().startswith("File ")]
    return frames[-1:]


def _notice(runner: Runner) -> list[str]:
    return notices.notice_description(runner, time.monotonic())


def _says(runner: Runner) -> list[str]:
    return [runner.executor.status_text] if runner.executor.status_text else []


def _starting(runner: Runner) -> str:
    restored = runner.executor.training.restored
    if runner.executor.training.step is None:
        return "loading"
    return f"restored {restored}, tracing" if restored else "tracing"


def _training(runner: Runner) -> list[str]:
    """How far training is, how fast, and what it would lose."""
    training = runner.executor.training
    if runner.config.job is None or training.step is None:
        return []
    parts = [f"step {training.step}" + (f"/{training.total_steps}" if training.total_steps else "")]
    if runner.state in (State.RUNNING, State.FLUSHING):
        if training.step_s:
            parts.append(f"{1 / training.step_s:.3g} steps/s")
        if training.checkpoint is not None:
            age = _span(time.monotonic() - runner.executor.committed_at)
            parts.append(f"checkpoint {training.checkpoint.step} ({age} ago)")
        if training.interval_s is not None:
            parts.append(f"saves every {training.interval_s:.0f} s")
        parts += _standby(runner)
    if training.save_error is not None:
        parts.append(f"last save failed: {training.save_error}")
    if training.changed:
        parts.append(f"trains under other conditions: {'; '.join(training.changed)}")
    if training.left_out:
        parts.append(f"not in its checkpoints: {', '.join(training.left_out)}")
    return parts


def _standby(runner: Runner) -> list[str]:
    """Whether a death would cost a whole start."""
    if runner.executor.standby is None:
        return []
    standby = runner.executor.standby.status()
    if standby["stage"] in (Stage.READY, Stage.LOADING):
        size = f", {standby['memory_bytes'] / 1e6:.0f} MB" if standby["memory_bytes"] else ""
        return [f"standby {standby['stage']} ({standby['kind'] or standby['wanted']}{size})"]
    return [f"no standby: {standby['reason']}"] if standby["reason"] else []


def _span(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _local(wall: float) -> str:
    return datetime.fromtimestamp(wall).strftime("%b %d %I:%M %p")
