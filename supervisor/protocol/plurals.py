"""Numbers and lists in sentences for people."""

from collections.abc import Sequence

LISTED_ITEMS = 5  # what a person reads; the rest is counted
UNITS = ("KB", "MB", "GB", "TB")
LISTED_CHARACTERS = 500  # of each: a reason is a sentence, with a path in it


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """As `1 program`, `2 programs`. `plural`: where that is not `noun` with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def counted_bytes(count: int) -> str:
    """As `1 byte`, `21.2 KB`, `1.2 GB`. As in the configuration, and as Supervisor has it, 1 KB is 1,024 bytes."""
    if count < 1024:
        return counted(count, "byte")
    power = min(len(UNITS), (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {UNITS[power - 1]}"


def listed(items: Sequence[str], separator: str = "; ", at_most: int = LISTED_ITEMS) -> str:
    """The first of `items`, each cut to LISTED_CHARACTERS, and how many more there are: `a; b; and 4998 more`.

    For texts that status, log and ledger repeat, about things whose number somebody else decides.
    """
    shown = [item if len(item) <= LISTED_CHARACTERS else f"{item[:LISTED_CHARACTERS]}…" for item in items[:at_most]]
    if len(items) > at_most:
        shown.append(f"and {len(items) - at_most} more")
    return separator.join(shown)
