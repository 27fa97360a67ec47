"""Numbers in sentences for people."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """As `1 program`, `2 programs`. `plural`: where that is not `noun` with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
