"""Prints the table of docs/why-it-died.md: `python -m supervisor.core.diagnosis.reference`."""

from signal import Signals

from supervisor.core.diagnosis.evidence import DeathKind, Who
from supervisor.core.diagnosis.kinds import MEANINGS, Meaning
from supervisor.core.diagnosis.rules import ABORTS, EXCEPTIONS, KERNEL_RULES, SIGNALS, TEXT_RULES, XIDS

SHOWN = 2  # pieces of text for a kind; the others are in rules.py
BY_ITSELF = {
    DeathKind.EXCEPTION: "an exception that nothing else in this table knows",
    DeathKind.USAGE: "exit status 2, and a line with the usage",
    DeathKind.EXIT_TEXT: "an exit status other than 0, without a traceback, and a last line",
    DeathKind.COMMAND: "exit status 126 or 127 of a shell, or no process at all",
    DeathKind.INODES: "a full disk that has bytes left, and no inodes",
    DeathKind.OTHER_SIGNAL: "another signal",
    DeathKind.STATUS: "an exit status other than 0, and nothing printed",
    DeathKind.REPORTED: "an exit status with a meaning of its own: diverged, locked, unfit checkpoint, wrong setup",
    DeathKind.BY_DAEMON: "this daemon ended it: a hang, a limit, a failed health check",
    DeathKind.UNKNOWN: "it ended while no daemon was there to see it",
}


def table() -> list[str]:
    """The lines of the table."""
    rows = ["| cause | what it means | what to do | what shows it |", "|---|---|---|---|"]
    for kind in DeathKind:
        meaning = MEANINGS[kind]
        cells = (f"`{kind}`", meaning.what or "the line says it", _to_do(meaning), "; ".join(_signs(kind)))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _to_do(meaning: Meaning) -> str:
    """Who has to act, in a word, if anybody has, and how."""
    advice = meaning.advice or "-"
    return advice if meaning.who is Who.NOBODY else f"{str(meaning.who).rpartition(' ')[2]}: {advice}"


def _signs(kind: DeathKind) -> list[str]:
    """What shows this kind of death, the most trusted first."""
    signs = [f"kernel: {_quoted(rule.pieces)}" for rule in KERNEL_RULES if rule.kind is kind]
    if kind in XIDS:
        signs.append(f"kernel: Xid {', '.join(map(str, sorted(XIDS[kind])))}")
    signs += [_quoted(rule.pieces) for rule in (*TEXT_RULES, *ABORTS) if rule.kind is kind]
    signs += [f"`{name}`" for name, its_kind in EXCEPTIONS.items() if its_kind is kind]
    signs += [Signals(number).name for number, its_kind in SIGNALS.items() if its_kind is kind]
    return signs or [BY_ITSELF[kind]]


def _quoted(pieces: tuple[str, ...]) -> str:
    shown = pieces if len(pieces) <= SHOWN + 1 else pieces[:SHOWN]  # "and 1 more" would be no shorter
    more = f" and {len(pieces) - SHOWN} more" if shown is not pieces else ""
    return ", ".join(f"`{piece.strip().replace('`', chr(39))}`" for piece in shown) + more


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - it is for a terminal
