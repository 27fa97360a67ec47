"""Turns the daemon's log records into journal entries that can be searched by program, attempt, step and event."""

import json
import logging
import math
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog

from supervisor.host.logs.journal import JournalSocket

PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
"""syslog's numbers for the levels from the gravest down; 5 (notice) has no counterpart here."""

_FIELDS = {"program": ("PROGRAM", "JOB"), "step": ("STEP",), "last_step": ("STEP",), "attempt": ("ATTEMPT",)}
"""Facts under names of their own, as they are what one looks for; the others get the prefix."""

_PREFIX = "STEPKEEPER_"  # so that no fact takes a name that means something else to the journal (ERRNO, UNIT ...)

_OWN = frozenset({"event", "level", "timestamp", "exception", "_record", "_from_structlog"})
"""Keys that are not facts: the journal has its own time and priority, the rest has fields of its own."""


log = structlog.get_logger()


class FallbackStream(logging.StreamHandler[TextIO]):
    """Standard error, for what the journal does not take: it leads there too, and may be as dead."""

    has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        self.has_failed = False
        super().emit(record)  # calls handleError on the way

    def handleError(self, record: logging.LogRecord) -> None:
        """Remembers that the record was not written."""
        if isinstance(sys.exc_info()[1], OSError):
            self.has_failed = True
        else:
            super().handleError(record)


class JournalHandler(logging.Handler):
    """Gives each record to the journal, and to `otherwise` what the journal does not take.

    Once the journal takes records again, it says how many neither of the two has taken.
    """

    def __init__(self, journal: JournalSocket, otherwise: logging.Handler) -> None:
        super().__init__()
        self._journal = journal
        self._otherwise = otherwise
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._journal.send(_fields(record))
        except OSError:
            self._otherwise.handle(record)
            if isinstance(self._otherwise, FallbackStream) and self._otherwise.has_failed:
                self._lost += 1
        except Exception:  # noqa: BLE001 - it can't be worded; as logging's own handlers do, lest it end the thread
            self.handleError(record)
        else:
            lost, self._lost = self._lost, 0
            if lost:
                log.warning("log.written_again", path="the journal", lost_records=lost)

    def close(self) -> None:
        self._journal.close()
        super().close()


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """The entry's fields. A record of another library has no facts, only its text."""
    facts: Mapping[str, Any] = record.msg if isinstance(record.msg, dict) else {}
    event = str(facts.get("event", record.name))
    shown = _shown_facts(facts)
    fields = {
        "MESSAGE": _message(event, shown, facts.get("exception")) if facts else _foreign(record),
        "PRIORITY": str(next((number for level, number in PRIORITIES if record.levelno >= level), 7)),
        "SYSLOG_IDENTIFIER": "supervisord",
        "EVENT": event,
    }
    for key, value in shown.items():
        for name in _FIELDS.get(key, (_PREFIX + _upper(key),)):
            fields.setdefault(name, value)
    return fields


def format_record(record: Mapping[str, Any]) -> str:
    """A record in one line: its event, then its facts, the program among them."""
    facts = " ".join(f"{key}={_quoted(value)}" for key, value in _shown_facts(record).items())
    return f"{record.get('event')} {facts}".rstrip()


def _shown_facts(record: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in record.items() if key not in _OWN and value is not None}


def _message(event: str, shown: Mapping[str, str], exception: object) -> str:
    """The text that `journalctl` shows: program and event first, then the facts; a traceback on lines of its own."""
    program = shown.get("program")
    facts = " ".join(f"{key}={_quoted(value)}" for key, value in shown.items() if key != "program")
    line = f"{program}: {event} {facts}" if program else f"{event} {facts}"
    return line.rstrip() + (f"\n{exception}" if exception else "")


def _foreign(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{logging.Formatter().formatException(record.exc_info)}" if record.exc_info else text


def _text(value: object) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(_finite(value), default=str, ensure_ascii=False, allow_nan=False)
    )


def _finite(value: object) -> object:
    """JSON has no words for numbers that are not finite: as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _quoted(value: str) -> str:
    is_plain = value and value.isprintable() and not any(character in value for character in ' "=')
    return value if is_plain else json.dumps(value, ensure_ascii=not value.isprintable(), allow_nan=False)


def _upper(key: str) -> str:
    """`key` as the end of a field's name: keys are our own constant texts, with the odd dot."""
    kept = "".join(character if character.isascii() and character.isalnum() else "_" for character in key.upper())
    return kept[: 64 - len(_PREFIX)]
