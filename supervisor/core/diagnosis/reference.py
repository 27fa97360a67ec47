"""Prints the causes in docs/why-it-died.md: `python -m supervisor.core.diagnosis.reference`.

Without advice: that is said with each death.
"""

from supervisor.core.diagnosis.evidence import DeathKind, Who
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.diagnosis.rules import EXCEPTIONS

BY_ITSELF = {
    DeathKind.EXCEPTION: "an exception that nothing else here knows",
    DeathKind.USAGE: "exit status 2, and a line with the usage",
    DeathKind.EXIT_TEXT: "an exit status other than 0, without a traceback, and a last line",
    DeathKind.OTHER_SIGNAL: "another signal",
    DeathKind.STATUS: "an exit status other than 0, and nothing printed",
    DeathKind.REPORTED: "an exit status with a meaning of its own: diverged, locked, unfit checkpoint, wrong setup",
    DeathKind.BY_DAEMON: "this daemon ended it: a hang, a limit, a failed health check",
    DeathKind.UNKNOWN: "it ended while no daemon was there to see it",
}
"""What a kind is whose meaning differs from death to death, as the line that shows it says it."""


def causes() -> list[str]:
    """The lines of the lists, one list for each who has to act."""
    lines = []
    for who in Who:
        kinds = [kind for kind in DeathKind if MEANINGS[kind].who is who]
        heading = f"For {who} to act:" if who is not Who.NOBODY else "Nobody has to act, or it depends:"
        lines += ["", heading, "", *(f"- `{kind}`: {_what(kind)}" for kind in kinds)]
    return lines[1:]


def _what(kind: DeathKind) -> str:
    """What it means, or for kinds without one meaning what shows them."""
    exceptions = ", ".join(f"`{name}`" for name, its_kind in EXCEPTIONS.items() if its_kind is kind)
    return MEANINGS[kind].what or BY_ITSELF.get(kind) or exceptions


if __name__ == "__main__":
    print("\n".join(causes()))  # noqa: T201 - it is for a terminal
