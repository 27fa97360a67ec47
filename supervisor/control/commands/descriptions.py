"""The third column of `status`: where a program stands, in a line of plain words.

Supervisor's clients read it too, and scripts read its beginning (`pid 123, uptime 0:01:02`), so that stays as
Supervisor writes it.
"""

import time
from datetime import datetime, timedelta
from pathlib import Path

from supervisor.control.base.isolation import not_shown
from supervisor.control.commands.notices import notice_description
from supervisor.core.diagnosis.evidence import describe_remedy
from supervisor.core.listeners.wire_states import WireState
from supervisor.core.program.facts import ALIVE, UP, State
from supervisor.core.standby.facts import StandbyStage
from supervisor.protocol.plurals import counted_bytes, listed
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.mirror.asking import MirrorStatus
from supervisor.runner.program.runner import Runner

MAX_NAMES = 8  # of nodes
MAX_SPAN_S = 1e11  # 3,000 years


def wire_state(runner: Runner) -> tuple[str, int]:
    """The state in Supervisor's words and numbers (XML-RPC API version 3.0); a flush before a stop is STOPPING.

    A program whose turn to start has not come is STARTING, so that `stop all` stops it too.
    """
    state = WireState.STARTING if runner.is_due else runner.wire_state
    return (state.name, int(state))


def wire_state_or_unknown(runner: Runner) -> tuple[str, int]:
    """The program's state in Supervisor's words and numbers; UNKNOWN if that fails too."""
    try:
        return wire_state(runner)
    except Exception as error:  # noqa: BLE001 - this is for a program of which something has failed already
        not_shown(runner.name, error)
        return "UNKNOWN", 1000


def full_description(runner: Runner, *warnings: str | None) -> str:
    """Where the program stands, and whatever else should be known about it."""
    refused = runner.records.losses.describe(time.monotonic())
    not_applied = None if runner.not_applied is None else f"its section is not applied: {runner.not_applied}"
    unknown = runner.records.process.health_unknown if runner.pid is not None else None
    parts = [_description(runner), str(runner.listener_status or ""), unknown, not_applied, *refused, *warnings]
    return ", ".join(filter(None, parts))


def _description(runner: Runner) -> str:
    if (spare_of := runner.spare_of) is not None and runner.pid is None:
        names, generation = listed(spare_of, ", ", MAX_NAMES), runner.place.generation if runner.place else 0
        return f"spare node, waits until one of those that train is lost or leaves ({names}), generation {generation}"
    if not runner.takeover.is_startable and runner.takeover.has_leftovers:
        return "waiting for processes of an earlier daemon to exit"
    if runner.is_due:
        return "waiting for its turn to start"
    if runner.waits_for is not None:
        return runner.waits_for
    pid = f"pid {runner.pid}"
    match runner.state:
        case State.RUNNING | State.FLUSHING:
            uptime = f"uptime {_h_mm_ss(runner.records.process.run_time_s or 0.0)}"
            return ", ".join([pid, uptime, *_gang(runner), *_training(runner), *_notice(runner), *_own_words(runner)])
        case State.STARTING if runner.config.notify:
            return ", ".join([pid, *(_own_words(runner) or ["not ready yet"])])
        case State.STARTING if runner.current.waits_for_gpus:
            return "waiting for the last attempt to free its GPU memory"
        case State.STARTING if runner.config.job is not None:
            parts = [*_gang(runner), _startup_phase(runner), *_asked_of_mirror(runner), *_notice(runner)]
            return ", ".join([pid, *parts])
        case State.ADOPTING:
            return f"{pid}, started by an earlier daemon, waiting for its answer"
        case State.BACKOFF | State.FAILED:
            reason = ", at ".join([runner.reason or "unknown error", *_innermost_frame(runner)])
            return "; ".join([", ".join([reason, *_awaited_upload(runner)]), *advice(runner)])
        case State.STOPPED | State.SUCCEEDED | State.EXITED:
            ended = (
                _local_time(runner.records.process.ended_wall_at)
                if runner.records.process.ended_wall_at is not None
                else "Not started"
            )
            parts = [ended, *(_training(runner) or _awaited_upload(runner)), runner.reason or ""]
            return "; ".join([", ".join(filter(None, parts)), *advice(runner)])
        case _:
            return ""


def advice(runner: Runner) -> list[str]:
    """Who has to act after a death, and what to do, where its reason alone does not say it."""
    diagnosis, last_exit, left = runner.records.process.diagnosis, runner.records.process.last_exit, runner.takeover
    if left.left_alone and last_exit is not None and last_exit.code == WorkerExit.LOCKED:
        pids = " ".join(map(str, sorted(left.left_alone)))
        return [
            "a worker of this state folder as it was before it was deleted or replaced still runs, and nothing proves "
            f"that no other daemon has it; to end it, after a save: kill {pids}"
        ]
    if diagnosis is None or not diagnosis.what or runner.state is State.STOPPED:
        return []
    return [describe_remedy(diagnosis)]


def _innermost_frame(runner: Runner) -> list[str]:
    """The last place in the script that the traceback names, if there is a traceback."""
    frames = [line.strip() for line in runner.records.training.traceback if line.lstrip().startswith("File ")]
    return frames[-1:]


def _mirror(runner: Runner) -> list[str]:
    """How far the job's mirror is, what is being asked of it, and whether it answers."""
    mirror = runner.mirror
    if mirror is None:
        return []
    status = mirror.status
    parts = [] if mirror.newest is None else [f"mirror has step {mirror.newest.step}"]
    if mirror.error is not None:
        parts.append(f"not in the mirror: {mirror.error}")
    elif status.error is not None:
        parts.append(f"mirror: {status.error}")
    return [*parts, *mirror_activity(status)]


def mirror_activity(status: MirrorStatus) -> list[str]:
    """What is being asked of a mirror, and for how long it has not answered."""
    parts, request = [], status.request
    if request is not None and (request.what == "uploading" or request.for_s >= 1.0):
        text = f"{' '.join(filter(None, [request.what, request.checkpoint]))} for {_h_mm_ss(request.for_s)}"
        if request.copied_bytes is not None and request.size_bytes is not None:
            text += f" ({counted_bytes(request.copied_bytes)} of {counted_bytes(request.size_bytes)})"
        parts.append(text)
    elif request is None and status.error is None and status.waits is not None and status.epoch is not None:
        parts.append(f"uploading {status.waits}")
    if status.silent_s > 0:
        parts.append(f"the mirror has not answered for {_h_mm_ss(status.silent_s)}")
    return parts


def _asked_of_mirror(runner: Runner) -> list[str]:
    """What a start waits for, if that is the mirror."""
    return [] if runner.mirror is None else mirror_activity(runner.mirror.status)


def _awaited_upload(runner: Runner) -> list[str]:
    """How far the mirror is, if a job without a worker waits for it."""
    return _mirror(runner) if runner.facts.upload_waits else []


def _notice(runner: Runner) -> list[str]:
    return notice_description(runner, time.monotonic())


def _own_words(runner: Runner) -> list[str]:
    """The status text that the program sent itself."""
    return [runner.records.process.status_text] if runner.records.process.status_text else []


def _startup_phase(runner: Runner) -> str:
    training, chosen = runner.records.training, runner.facts.current.checkpoint
    restored = training.restored
    if not training.is_imported:
        return "importing"
    if training.step is None:
        return f"restoring {Path(chosen.path).name}" if chosen is not None and chosen.path is not None else "preparing"
    return f"restored {restored}, tracing" if restored else "tracing"


def _gang(runner: Runner) -> list[str]:
    """Which part of the gang this is."""
    place = runner.place
    if runner.config.job is None or place is None:
        return []
    parts = [f"{place.describe(place.rank)} of {place.size} nodes, generation {place.generation}"]
    if runner.left_nodes:
        parts.append(f"left because of a notice: {listed(runner.left_nodes, ', ', MAX_NAMES)}")
    return parts


def _training(runner: Runner) -> list[str]:
    """How far training is, how fast it is, and how much it would lose."""
    training = runner.records.training
    if runner.config.job is None or training.step is None:
        return []
    parts = [f"step {training.step}" + (f"/{training.total_steps}" if training.total_steps else "")]
    if runner.state in UP:
        if training.step_s:
            parts.append(f"{_rate(1 / training.step_s)} steps/s")
        parts += _newest_state(runner)
        if training.interval_s is not None:
            parts.append(f"saves every {training.interval_s:.0f} s")
        parts += [] if runner.facts.current.slowdown is None else [str(runner.facts.current.slowdown)]
        parts += _silence(runner) + _devices(runner) + _standby(runner)
    parts += _mirror(runner)
    if training.save_error is not None:
        parts.append(f"last save failed: {training.save_error}")
    if training.changed:
        parts.append(f"conditions changed since the checkpoint: {'; '.join(training.changed)}")
    if runner.facts.current.older is not None and runner.state in ALIVE:  # the next attempt begins elsewhere
        parts.append(runner.facts.current.older.text)
    parts += runner.records.storage_remarks
    if training.left_out:
        parts.append(f"a restart would not bring back: {', '.join(training.left_out)}")
    return parts


def _newest_state(runner: Runner) -> list[str]:
    """What would be restored if the worker died now, and what copies in memory cost, or why there are none."""
    training, saved = runner.records.training, runner.records.training.checkpoint
    age = f"({_h_mm_ss(time.monotonic() - runner.records.committed_at)} ago)"
    if training.memory_step is None:
        parts = [] if saved is None else [f"checkpoint {saved.step} {age}"]
        return parts if training.memory_off is None else [*parts, f"no copies in memory: {training.memory_off}"]
    on_disk = f"{saved.step:,} on disk {age}" if saved is not None else _reported_on_disk(runner)
    parts = [f"newest: step {training.memory_step:,} in memory, {on_disk}"]
    if training.memory_interval_s is not None and training.memory_cost_s is not None:
        cost = f"{_short(1000 * training.memory_cost_s)} ms each, {counted_bytes(training.memory_bytes)}"
        parts.append(f"copied every {_short(training.memory_interval_s)} s ({cost})")
    return parts


def _short(value: float) -> str:
    """A measured number, without digits that mean nothing."""
    return f"{value:.0f}" if value >= 1 else f"{value:.2g}"


def _reported_on_disk(runner: Runner) -> str:
    """The newest checkpoint of earlier attempts, or of this one under an earlier daemon."""
    newest = runner.facts.account.newest
    if newest is None:
        return "none on disk"
    age = "" if newest.wall_at is None else f" ({_h_mm_ss(max(0.0, time.time() - newest.wall_at))} ago)"
    return f"{newest.step:,} on disk{age}"


def _silence(runner: Runner) -> list[str]:
    """What the last look at its processes showed, if it has been silent for long."""
    current = runner.facts.current
    if current.silence is None:
        return []
    return [f"silent for {_h_mm_ss(time.monotonic() - current.progressed_at)}: {current.silence.why}"]


def _devices(runner: Runner) -> list[str]:
    """That it trains on fewer devices than its section asks for."""
    training, wanted = runner.records.training, runner.config.job.replicas if runner.config.job is not None else None
    parts = []
    if training.replicas is not None and wanted is not None and training.replicas < wanted:
        parts.append(f"on {training.replicas} of {wanted} devices")
    if (left_out := runner.facts.current.gpus_left_out) is not None:
        parts.append(f"without {left_out}")
    if training.gpus_missing is not None:
        parts.append(training.gpus_missing)
    return parts


def _standby(runner: Runner) -> list[str]:
    """Whether the next attempt would start without loading everything first."""
    if runner.standby is None:
        return []
    standby = runner.standby.status()
    if standby["stage"] in (StandbyStage.READY, StandbyStage.LOADING):
        size = f", {counted_bytes(standby['memory_bytes'])}" if standby["memory_bytes"] else ""
        return [f"standby {standby['stage']} ({standby['kind'] or standby['wanted']}{size})"]
    return [f"no standby: {standby['reason']}"] if standby["reason"] else []


def _rate(value: float) -> str:
    """Three digits, without an exponent for large values."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _h_mm_ss(length_s: float) -> str:
    return str(timedelta(seconds=int(min(length_s, MAX_SPAN_S))))


def _local_time(wall_at: float) -> str:
    return datetime.fromtimestamp(wall_at).strftime("%b %d %I:%M %p")
