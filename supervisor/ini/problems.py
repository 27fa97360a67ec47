"""What is wrong with a configuration, and where."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol.plurals import counted

SHOWN = 50  # problems in one message: enough for every real file, and a wrong file doesn't flood the terminal


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file, counted from 1; None: the file as a whole."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return str(self.file) if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: what, why and what to do about it, in words.

    `section`: the one that can't be loaded for it; None if it concerns more than that. `is_change`: of a remark, that
    the line has an effect, but not the one that it has in Supervisor.
    """

    location: Location
    text: str
    section: str | None = None
    is_change: bool = False

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


class ConfigError(Exception):
    """A configuration that can't be used. `problems` holds everything that is wrong with it; the text, one a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"... and {counted(len(self.problems) - SHOWN, 'more problem')}")
        super().__init__("\n".join(lines))


def nearest_word(word: str, known: Iterable[str], likeness: float = 0.7) -> str | None:
    """The known word that `word` was most likely meant to be; None if none is near."""
    import difflib  # only here: a daemon whose configuration is right has no use for it

    words = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=likeness)
    return words[0] if words else None
