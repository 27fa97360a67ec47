"""The daemon's log in Supervisor's words, for monitoring that looks for its lines."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.host.journal_log import facts_in_words

_LEVELS = {"critical": "CRIT", "error": "ERRO", "warning": "WARN", "info": "INFO", "debug": "DEBG"}

Said = tuple[str, str]
"""A level, as structlog calls it, and a line."""


@dataclass(slots=True)
class _Worker:
    """What was told of a program's process since it was started."""

    pid: int = 0
    was_running: bool = False
    told_to_stop: bool = False
    is_done: bool = False


@dataclass(slots=True)
class SupervisorLines:
    """A structlog renderer: `2026-11-22 01:02:03,456 INFO spawned: 'x' with pid 7`.

    What Supervisor has no line for keeps its name and its facts. Programs go by their names without the group, as
    there. One for each handler: it remembers what it saw, as some lines need more than one record.
    """

    _workers: dict[str, _Worker] = field(default_factory=dict)

    def __call__(self, logger: object, method: str, record: MutableMapping[str, Any]) -> str:
        """One record as one line; a traceback follows on lines of its own."""
        told = _LINES.get(str(record.get("event")))
        program = record.get("program")
        worker = self._workers.setdefault(program, _Worker()) if program is not None else _Worker()
        level = str(record.get("level", "info"))
        level, line = (told(record, worker) if told else None) or (level, facts_in_words(record))
        exception = f"\n{record['exception']}" if record.get("exception") else ""
        return f"{_moment(str(record.get('timestamp', '')))} {_LEVELS.get(level, 'INFO')} {line}{exception}"


def _moment(timestamp: str) -> str:
    """`2026-11-22T01:02:03.456789` as Supervisor writes it."""
    day, _, rest = timestamp.partition("T")
    clock, _, fraction = rest.partition(".")
    return f"{day} {clock[:8]},{fraction[:3]:0<3}"


def _name(record: Mapping[str, Any]) -> str:
    return str(record["program"]).rpartition(":")[2]


def _spawned(record: Mapping[str, Any], worker: _Worker) -> Said:
    worker.pid, worker.was_running, worker.told_to_stop, worker.is_done = record["pid"], False, False, False
    return "info", f"spawned: '{_name(record)}' with pid {record['pid']}"


def _adopted(record: Mapping[str, Any], worker: _Worker) -> None:
    worker.pid, worker.was_running, worker.told_to_stop, worker.is_done = record["pid"], True, False, False


def _not_spawned(record: Mapping[str, Any], worker: _Worker) -> Said:
    return "info", f"spawnerr: {record['error']}"


def _told_to_stop(record: Mapping[str, Any], worker: _Worker) -> Said:
    worker.told_to_stop = True
    return "info", f"waiting for {_name(record)} to stop"


def _killed(record: Mapping[str, Any], worker: _Worker) -> Said:
    return "warning", f"killing '{_name(record)}' ({worker.pid}) with SIGKILL"


def _done(record: Mapping[str, Any], worker: _Worker) -> None:
    worker.is_done = True


def _exited(record: Mapping[str, Any], worker: _Worker) -> Said:
    how = str(record["how"]).partition(" (")[0]  # without what our own exit codes mean
    if worker.told_to_stop:
        is_good = record["expected"] or how == "exit status 0"
        return "info" if is_good else "warning", f"stopped: {_name(record)} ({how})"
    is_expected = worker.was_running and (worker.is_done or bool(record["expected"]))
    return (
        ("info", f"exited: {_name(record)} ({how}; expected)")
        if is_expected
        else ("warning", f"exited: {_name(record)} ({how}; not expected)")
    )


def _changed(record: Mapping[str, Any], worker: _Worker) -> Said | None:
    match record["was"], record["state"]:
        case "STARTING", "RUNNING":
            worker.was_running = True
            stayed = f"process has stayed up for > than {int(record.get('startsecs') or 0)} seconds (startsecs)"
            return "info", f"success: {_name(record)} entered RUNNING state, {stayed}"
        case _, "FAILED":
            return "info", f"gave up: {_name(record)} entered FATAL state, too many start retries too quickly"
    return None


def _ready(record: Mapping[str, Any], worker: _Worker) -> Said:
    return "info", f"supervisord started with pid {record['pid']}"


def _signalled(record: Mapping[str, Any], worker: _Worker) -> Said:
    return "warning", f"received {record['signal']} indicating exit request"


_LINES: Mapping[str, Callable[[Mapping[str, Any], _Worker], Said | None]] = {
    "worker.spawned": _spawned,
    "worker.adopted": _adopted,
    "worker.not_spawned": _not_spawned,
    "worker.told_to_stop": _told_to_stop,
    "worker.killed": _killed,
    "training.done": _done,
    "worker.exited": _exited,
    "program.changed": _changed,
    "daemon.ready": _ready,
    "daemon.signalled": _signalled,
}
"""By event: what Supervisor would say; None for what it would not."""
