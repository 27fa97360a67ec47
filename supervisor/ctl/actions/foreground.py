"""The action `fg`: a program's output on the terminal, and what is typed as its standard input."""

import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.actions.logs import CHANNELS, decoded
from supervisor.ctl.client import Refusal, Unreachable
from supervisor.ctl.naming import Program, program_of
from supervisor.ctl.terminal import ExitStatus, Terminal

FIRST_BYTES = 1024  # of each log, with which Supervisor's fg begins
POLL_S = 0.5  # how often the program's status is read while nothing is typed
LAST_OUTPUT_S = 1.0  # to show the last output
ANSWER_S = 5.0  # to wait for output if the input came from a pipe, as then no one can press Ctrl-C
RUNNING = 20


class _ProgramEnded(Exception):
    """The program has ended."""


def fg(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows output and sends input until Ctrl-C or the end of the input; the program keeps running."""
    if terminal.as_json:
        raise UsageError("Error: fg has no JSON form; leave out --json")
    if not arguments:
        terminal.print_line("ERROR: no process name supplied")
        terminal.print_line("fg <process>\tConnect to a process in foreground mode\n\t\tCtrl-C to exit")
        return ExitStatus.ERROR
    if len(arguments) > 1:
        terminal.print_line("ERROR: too many process names supplied")
        return ExitStatus.ERROR
    name = program_of(arguments[0])
    program = _status(terminal, name)
    if program is None:
        terminal.print_line("ERROR: bad process name supplied")
        return ExitStatus.ERROR
    if program["wire_code"] != RUNNING:
        terminal.print_line("ERROR: process not running")
        return ExitStatus.ERROR
    terminal.print_line("==> Press Ctrl-C to exit <==")
    streams = [_Stream(terminal, name, channel) for channel in CHANNELS if program[f"{channel}_logfile"]]
    if not streams:
        terminal.print_detail("it has no log files, so its output can't be shown; what you type is sent")
    try:
        _send_lines(terminal, name, program["pid"], streams)
    finally:
        for stream in streams:
            stream.close()
    terminal.print_line("Exiting foreground")
    return ExitStatus.OK


def _status(terminal: Terminal, name: str) -> Program | None:
    programs: list[Program] = terminal.client.call("status")["programs"]
    return next((program for program in programs if program["name"] == name), None)


def _send_lines(terminal: Terminal, name: str, pid: int, streams: list["_Stream"]) -> None:
    """Sends lines until the input or the program ends, or Ctrl-C is pressed."""
    try:
        with _end_watch(terminal, name, pid):
            if not sys.stdin.isatty():
                _wait_for_first_output(streams)
            sent_at = None
            while line := sys.stdin.readline():
                sent_at = time.monotonic()
                terminal.client.call("send_stdin", name=name, chars=line if line.endswith("\n") else f"{line}\n")
            if not sys.stdin.isatty():
                _wait_for_output(streams, sent_at)
    except KeyboardInterrupt:
        return
    except UnicodeDecodeError as error:
        terminal.print_line(f"ERROR: cannot decode the input ({error.reason})")
        return
    except _ProgramEnded:
        _print_end(terminal, streams)
        return
    except Refusal as error:
        if error.code != "NOT_RUNNING":
            terminal.print_line(f"ERROR: {error.code}: {error}")
            return
        _print_end(terminal, streams)
        return


def _print_end(terminal: Terminal, streams: list["_Stream"]) -> None:
    _wait_until_quiet(streams)
    terminal.print_line("Process got killed")


def _wait_for_first_output(streams: list["_Stream"]) -> None:
    """Waits until the logs are shown as they are, so that later output can be recognised as new."""
    for stream in streams:
        stream.has_begun.wait(POLL_S)


def _wait_for_output(streams: list["_Stream"], sent_at: float | None) -> None:
    """Waits for output after the line that was sent last, if one was, and then until no more comes."""
    while sent_at is not None and streams and time.monotonic() < sent_at + ANSWER_S:
        if any(stream.shown_at > sent_at for stream in streams):
            break
        time.sleep(POLL_S / 10)
    _wait_until_quiet(streams)


def _wait_until_quiet(streams: list["_Stream"]) -> None:
    """Waits a moment for the last output."""
    until = time.monotonic() + LAST_OUTPUT_S
    while time.monotonic() < until and any(stream.is_busy for stream in streams):
        time.sleep(POLL_S / 10)


@contextlib.contextmanager
def _end_watch(terminal: Terminal, name: str, pid: int) -> Iterator[None]:
    """Raises _ProgramEnded inside once the process has ended or been replaced, also while nothing is typed."""
    main, over, gone = threading.main_thread(), threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            try:
                program = _status(terminal, name)
            except (Refusal, Unreachable):
                continue  # the daemon may come back; otherwise sending the next line fails
            if program is None or program["pid"] != pid:
                gone.set()
                if not over.is_set() and main.ident is not None:
                    signal.pthread_kill(main.ident, signal.SIGINT)  # interrupts the wait for a line
                return

    watcher = threading.Thread(target=look, name="fg", daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        if gone.is_set():
            raise _ProgramEnded from None
        raise
    finally:
        over.set()


class _Stream:
    """One of the program's logs, shown by a thread as it grows, until `close`."""

    def __init__(self, terminal: Terminal, name: str, channel: str) -> None:
        self._terminal = terminal
        self._name = name
        self._channel = channel
        self.shown_at = time.monotonic()
        self.has_begun = threading.Event()
        self._connection: socket.socket | None = None
        self._is_over = False
        threading.Thread(target=self._show, name=channel, daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether there was output just now, so that more may follow."""
        return time.monotonic() - self.shown_at < POLL_S

    def close(self) -> None:
        """Stops showing the log."""
        self._is_over = True
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)

    def _opened(self, connection: socket.socket) -> None:
        self._connection = connection
        if self._is_over:
            connection.close()

    def _show(self) -> None:
        with contextlib.suppress(Refusal, Unreachable, OSError, ValueError):  # the terminal may be gone
            blocks = self._terminal.client.tail(
                self._name, self._channel, FIRST_BYTES, follow=True, on_open=self._opened
            )
            for text in decoded(blocks):
                self.shown_at = time.monotonic()
                if self._is_over:
                    return
                out = self._terminal.out
                print(self._terminal.shown(text, out), end="", file=out, flush=True)
                self.has_begun.set()
