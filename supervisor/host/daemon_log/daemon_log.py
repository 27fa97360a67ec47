"""The daemon's own log: structlog events to a rotating file, the journal or standard error, by a thread of its own."""

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import structlog

from supervisor.host.daemon_log.journal import FallbackStream, JournalHandler
from supervisor.host.daemon_log.supervisor_format import SupervisorLogFormatter
from supervisor.host.logs import journal
from supervisor.host.logs.syslog import ADDRESS, SyslogHandler
from supervisor.protocol.printable import printable

LEVELS = {
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
    "blather": logging.DEBUG,
}
"""Supervisor's names; its two levels below debug are debug here."""

MAX_QUOTED = 4000  # characters of a record that JSON can't hold

CHANGES = "changes"
"""The logger of changes that clients requested, which is written at every level."""


@dataclass(frozen=True, slots=True)
class ChangesFile:
    """A file for the logger CHANGES alone: nothing that programs do can push its lines out."""

    path: Path
    maxbytes: int
    backups: int


class DaemonLog:
    """Writes structlog's events to the file and, in the foreground, to standard error, until `stop`.

    A terminal gets colored lines, the journal entries with fields, everything else JSON lines. The event loop only
    queues: a slow or full disk delays the log, not the daemon. `journal_stream`: $JOURNAL_STREAM, if it is set.
    `syslog_tag`: also writes to syslog, under this name. `supervisor_format`: lines in the format of PyPI's Supervisor,
    except for the journal. Below `level` only the logger CHANGES is written, which has a file of its own in `changes`
    besides. `foreground_level`: what of that goes to standard error.
    """

    def __init__(
        self,
        level: str,
        file: Path | None,
        maxbytes: int,
        backups: int,
        *,
        foreground: bool,
        foreground_level: str = "debug",
        journal_stream: str = "",
        syslog_tag: str | None = None,
        syslog_at: Path = ADDRESS,
        supervisor_format: bool = False,
        changes: ChangesFile | None = None,
    ) -> None:
        handlers: list[logging.Handler] = []
        if file is not None:
            handlers.append(_LogHandler(file, maxBytes=maxbytes, backupCount=backups, encoding="utf-8"))
        if syslog_tag is not None:
            handlers.append(SyslogHandler(syslog_tag, syslog_at))
        lines = _CachedFormatter(_formatter(SupervisorLogFormatter() if supervisor_format else _json_renderer()))
        for handler in handlers:
            handler.setFormatter(lines)
        if foreground or not handlers:
            handlers.append(_foreground_handler(journal_stream, supervisor_format, lines))
            handlers[-1].setLevel(LEVELS[foreground_level])
        if changes is not None:
            handlers.append(_changes_handler(changes))
        self._file_handlers = [handler for handler in handlers if isinstance(handler, logging.FileHandler)]
        waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self._handlers = handlers
        self._listener = logging.handlers.QueueListener(waiting, *handlers, respect_handler_level=True)
        root = logging.getLogger()
        root.handlers[:] = [_RawQueueHandler(waiting)]
        root.setLevel(LEVELS[level])
        logging.getLogger(CHANGES).setLevel(logging.INFO)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        _configure_structlog()
        self._listener.start()

    def reopen(self) -> None:
        """Reopens the file by its name, after somebody has rotated it."""
        for handler in self._file_handlers:
            handler.acquire()
            try:
                handler.close()  # the next record opens it
            finally:
                handler.release()

    def take_standard_error(self) -> None:
        """What is written to standard error from now on goes into the log's file, if there is one."""
        for handler in self._file_handlers:
            if isinstance(handler, _LogHandler) and handler.stream is not None:
                os.dup2(handler.stream.fileno(), 2)

    def stop(self) -> None:
        """Writes what is queued, and closes the outputs."""
        self._listener.stop()
        for handler in self._handlers:
            handler.close()


class _RawQueueHandler(logging.handlers.QueueHandler):
    """Leaves the record as it is: each handler renders it in its own format."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


class _CachedFormatter(logging.Formatter):
    """Renders a record once for all handlers; that of the file renders twice, to see whether it has to rotate first."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        self._last: Callable[[], logging.LogRecord | None] = lambda: None  # weak: it may hold a traceback
        self._text = ""

    def format(self, record: logging.LogRecord) -> str:
        if self._last() is not record:
            self._last, self._text = weakref.ref(record), self._inner.format(record)
        return self._text


def _shared() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
        structlog.processors.format_exc_info,
    ]


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _formatter(*rendering: structlog.typing.Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(), processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering]
    )


def _foreground_handler(journal_stream: str, supervisor_format: bool, lines: logging.Formatter) -> logging.Handler:
    """The journal, if systemd connected standard error to it and nobody has redirected it since; else that stream."""
    if journal.is_at(sys.stderr.fileno(), journal_stream):
        plain = FallbackStream(sys.stderr)
        plain.setFormatter(lines)
        return JournalHandler(journal.JournalSocket(), plain)
    return _stream_handler(sys.stderr, supervisor_format, lines)


class _FileHandler(logging.handlers.RotatingFileHandler):
    """Says when its file can't be written, once until it can."""

    _error: BaseException | None = None
    _not_written = 0

    def emit(self, record: logging.LogRecord) -> None:
        failed_before, self._error = self._error, None
        super().emit(record)  # calls handleError on the way
        if self._error is not None:
            self._not_written += 1
            if failed_before is None:
                self.on_failure(self._error)
        elif failed_before is not None:
            not_written, self._not_written = self._not_written, 0
            self.on_recovery(not_written)

    def handleError(self, record: logging.LogRecord) -> None:
        """Remembers why the record was not written."""
        self._error = sys.exc_info()[1]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it writes what it could not write before
            super().close()

    def on_failure(self, error: BaseException) -> None:
        """Says that a record was not written."""

    def on_recovery(self, not_written: int) -> None:
        """Says that one was written after so many were not."""


class _LogHandler(_FileHandler):
    def on_failure(self, error: BaseException) -> None:
        """Says it on standard error, as there is no log."""
        effect = "what happens meanwhile is not in the log; programs are supervised as ever"
        with contextlib.suppress(OSError, ValueError):  # as standard error may be on the same disk
            print(f"cannot write {self.baseFilename}: {error}; {effect}", file=sys.stderr, flush=True)  # noqa: T201

    def on_recovery(self, not_written: int) -> None:
        """Says it in the log."""
        structlog.get_logger().warning("log.written_again", path=self.baseFilename, lost_records=not_written)


class _ChangesHandler(_FileHandler):
    def on_failure(self, error: BaseException) -> None:
        """Says it in the daemon's log."""
        remedy = "make its disk writable, or set changes_logfile"
        structlog.get_logger().error(
            "changes.not_written", path=self.baseFilename, error=str(error), effect="in this log only", remedy=remedy
        )


def _changes_handler(file: ChangesFile) -> logging.Handler:
    handler = _ChangesHandler(file.path, maxBytes=file.maxbytes, backupCount=file.backups, encoding="utf-8")
    handler.addFilter(logging.Filter(CHANGES))
    handler.setFormatter(_CachedFormatter(_formatter(_json_renderer())))
    return handler


def _json_renderer() -> structlog.processors.JSONRenderer:
    return structlog.processors.JSONRenderer(serializer=_encode)


def _encode(record: object, **options: Any) -> str:
    """The record as JSON, which has no words for numbers that are not finite: such a record is quoted as a whole."""
    try:
        return json.dumps(record, allow_nan=False, **options)
    except ValueError:
        return json.dumps({"event": "log.not_json", "record": repr(record)[:MAX_QUOTED]}, allow_nan=False)


def _stream_handler(stream: TextIO, supervisor_format: bool, lines: logging.Formatter) -> logging.Handler:
    if not stream.isatty():
        handler: logging.Handler = logging.StreamHandler(stream)
        handler.setFormatter(lines)
    elif supervisor_format:
        handler = _TerminalHandler(stream)
        handler.setFormatter(lines)
    else:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_formatter(_show_control_characters, structlog.dev.ConsoleRenderer(sort_keys=False)))
    return handler


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """Shows control characters, which may come from a program, as such."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _show_control_characters(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}
