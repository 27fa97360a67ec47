"""Prints the table of docs/why-it-died.md: `python -m supervisor.core.diagnosis.reference`.

It has no advice: that is said with each death.
"""

from supervisor.core.diagnosis.evidence import DeathKind, Who
from supervisor.core.diagnosis.kinds import MEANINGS, Meaning
from supervisor.core.diagnosis.rules import EXCEPTIONS

BY_ITSELF = {
    DeathKind.EXCEPTION: "an exception that nothing else in this table knows",
    DeathKind.USAGE: "exit status 2, and a line with the usage",
    DeathKind.EXIT_TEXT: "an exit status other than 0, without a traceback, and a last line",
    DeathKind.OTHER_SIGNAL: "another signal",
    DeathKind.STATUS: "an exit status other than 0, and nothing printed",
    DeathKind.REPORTED: "an exit status with a meaning of its own: diverged, locked, unfit checkpoint, wrong setup",
    DeathKind.BY_DAEMON: "this daemon ended it: a hang, a limit, a failed health check",
    DeathKind.UNKNOWN: "it ended while no daemon was there to see it",
}
"""What a kind is whose meaning differs from death to death, as the line that shows it says it."""


def table() -> list[str]:
    """The lines of the table."""
    rows = ["| cause | what it means | who |", "|---|---|---|"]
    for kind in DeathKind:
        rows.append(f"| `{kind}` | {_what(kind)} | {_who(MEANINGS[kind])} |")
    return rows


def _who(meaning: Meaning) -> str:
    """Who has to act, in a word, if anybody has."""
    return "-" if meaning.who is Who.NOBODY else str(meaning.who).rpartition(" ")[2]


def _what(kind: DeathKind) -> str:
    """What it means, or for kinds without one meaning what shows them."""
    exceptions = ", ".join(f"`{name}`" for name, its_kind in EXCEPTIONS.items() if its_kind is kind)
    return MEANINGS[kind].what or BY_ITSELF.get(kind) or exceptions


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - it is for a terminal
