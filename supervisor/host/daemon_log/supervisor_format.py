"""The daemon's log in Supervisor's words, for monitoring that looks for its lines."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.host.daemon_log.journal import format_record
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Then

_LEVELS = {"critical": "CRIT", "error": "ERRO", "warning": "WARN", "info": "INFO", "debug": "DEBG"}

Said = tuple[str, str]
"""A level, as structlog calls it, and a line."""


@dataclass(slots=True)
class _Worker:
    """What has been logged about a program's process since it was started."""

    pid: int = 0
    was_running: bool = False
    told_to_stop: bool = False
    is_done: bool = False


@dataclass(slots=True)
class SupervisorLogFormatter:
    """A structlog renderer: `2026-11-22 01:02:03,456 INFO spawned: 'x' with pid 7`.

    What Supervisor has no line for keeps its name and its facts. Programs go by their names without the group, as
    there. It sees each record once: it remembers what it saw, as some lines need more than one record.
    """

    _workers: dict[str, _Worker] = field(default_factory=dict)

    def __call__(self, logger: object, method: str, record: MutableMapping[str, Any]) -> str:
        """One record as one line; a traceback follows on lines of its own."""
        tell, program = _LINES.get(str(record.get("event"))), record.get("program")
        entries: list[Said] = []
        if tell is not None:  # else what it calls a program may be any text that a client sent
            entries = tell(record, self._workers.setdefault(program, _Worker()) if program is not None else _Worker())
        moment = _moment(str(record.get("timestamp", "")))
        lines = entries or [(str(record.get("level", "info")), format_record(record))]
        exception = f"\n{record['exception']}" if record.get("exception") else ""
        return "\n".join(f"{moment} {_LEVELS.get(level, 'INFO')} {line}" for level, line in lines) + exception


def _moment(timestamp: str) -> str:
    """`2026-11-22T01:02:03.456789` as Supervisor writes it."""
    day, _, rest = timestamp.partition("T")
    clock, _, fraction = rest.partition(".")
    return f"{day} {clock[:8]},{fraction[:3]:0<3}"


def _name(record: Mapping[str, Any]) -> str:
    return str(record["program"]).rpartition(":")[2]


def _spawned(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    worker.pid, worker.was_running, worker.told_to_stop, worker.is_done = record["pid"], False, False, False
    return [("info", f"spawned: '{_name(record)}' with pid {record['pid']}")]


def _adopted(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    worker.pid, worker.was_running, worker.told_to_stop, worker.is_done = record["pid"], True, False, False
    return []


def _not_spawned(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    return [("info", f"spawnerr: {record['error']}")]


def _told_to_stop(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    worker.told_to_stop = True
    return [("info", f"waiting for {_name(record)} to stop")]


def _flush_asked(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    """How a job is told to stop."""
    return _told_to_stop(record, worker) if record["then"] == Then.STOP else []


def _killed(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    return [("warning", f"killing '{_name(record)}' ({worker.pid}) with SIGKILL")]


def _done(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    worker.is_done = True
    return []


def _exited(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    how = str(record["how"]).partition(" (")[0]  # without what our own exit codes mean
    if worker.told_to_stop:
        is_good = record["expected"] or how in ("exit status 0", f"exit status {WorkerExit.STOPPED}")
        return [("info" if is_good else "warning", f"stopped: {_name(record)} ({how})")]
    is_expected = worker.was_running and (worker.is_done or bool(record["expected"]))
    level, was = ("info", "expected") if is_expected else ("warning", "not expected")
    return [(level, f"exited: {_name(record)} ({how}; {was})")]


def _changed(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    """Supervisor gives up for one reason; where there are others, our own line says which."""
    match record["was"], record["state"]:
        case "STARTING", "RUNNING":
            worker.was_running = True
            stayed = f"process has stayed up for > than {int(record.get('startsecs') or 0)} seconds (startsecs)"
            return [("info", f"success: {_name(record)} entered RUNNING state, {stayed}")]
        case _, "FAILED":
            gave_up = f"gave up: {_name(record)} entered FATAL state, too many start retries too quickly"
            return [("info", gave_up), (str(record.get("level", "error")), format_record(record))]
    return []


def _ready(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    return [("info", f"supervisord started with pid {record['pid']}")]


def _signalled(record: Mapping[str, Any], worker: _Worker) -> list[Said]:
    match record["signal"]:
        case "SIGHUP":  # at which Supervisor restarts
            return [("warning", format_record(record))]
        case "SIGUSR2":
            return [("info", "received SIGUSR2 indicating log reopen request")]
    return [("warning", f"received {record['signal']} indicating exit request")]


_LINES: Mapping[str, Callable[[Mapping[str, Any], _Worker], list[Said]]] = {
    "worker.spawned": _spawned,
    "worker.adopted": _adopted,
    "worker.not_spawned": _not_spawned,
    "worker.told_to_stop": _told_to_stop,
    "flush.asked": _flush_asked,
    "worker.killed": _killed,
    "training.done": _done,
    "worker.exited": _exited,
    "program.changed": _changed,
    "daemon.ready": _ready,
    "daemon.signalled": _signalled,
}
"""By event: what Supervisor would say; nothing for what it would not."""
