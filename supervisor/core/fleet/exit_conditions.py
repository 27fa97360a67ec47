"""Whether the daemon has nothing left to do and exits, as `exit_on` configures."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, StrEnum

from supervisor.core.program.facts import State


class ExitOn(StrEnum):
    """What makes the daemon exit without being told to."""

    FATAL = "fatal"  # one program is given up
    DONE = "done"  # every program has ended by itself


class DaemonExit(Enum):
    """How the daemon ends."""

    DONE = "done"  # everything ended as it should
    FATAL = "fatal"  # something did not


EXIT_FATAL = 70  # EX_SOFTWARE: `exit_on` ended the daemon, and a program had failed
EXIT_INTERRUPTED = 143  # as of a process that SIGTERM ended: with `exit_on`, 0 says that everything is done


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """One program's state; `ran`: under this daemon; `was_done`: it had succeeded before this daemon started."""

    state: State
    ran: bool = True
    was_done: bool = False


_ENDED = frozenset({State.SUCCEEDED, State.EXITED, State.FAILED})
_AMISS = frozenset({State.EXITED, State.FAILED})


def daemon_exit(exit_on: Collection[ExitOn], programs: Collection[ProgramOutcome]) -> DaemonExit | None:
    """How the daemon is to exit now; None if it goes on.

    A program that an operator stopped may be started again, so it keeps the daemon; one that was never started doesn't.
    """
    if ExitOn.FATAL in exit_on and any(program.state is State.FAILED for program in programs):
        return DaemonExit.FATAL
    if ExitOn.DONE not in exit_on:
        return None
    idle = [program for program in programs if program.state is State.STOPPED and not program.ran]
    ended = [program for program in programs if program.state in _ENDED]
    if len(idle) + len(ended) < len(programs) or not (ended or any(outcome.was_done for outcome in idle)):
        return None
    return DaemonExit.FATAL if any(outcome.state in _AMISS for outcome in ended) else DaemonExit.DONE


def exit_status(requested: int, exit_on: Collection[ExitOn], programs: Collection[ProgramOutcome]) -> int:
    """What the daemon exits with once it has stopped everything. `requested`: what the request to exit asked for.

    With `exit_on`, whoever started the daemon takes 0 for the end of the work, so being told to stop must not look so.
    """
    if requested != 0 or not exit_on or daemon_exit((ExitOn.DONE,), programs) is DaemonExit.DONE:
        return requested
    return EXIT_INTERRUPTED
