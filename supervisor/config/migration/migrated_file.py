"""Writes a copy of a file of Supervisor's that can be used here: what is refused becomes a comment, with the reason.

Everything else stays as it is written, comments too. Relative paths start from the folder of their file, so in a copy
that lies elsewhere they are written in full.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from supervisor.config.load import check_config
from supervisor.config.migration.outcomes import PATHS
from supervisor.ini.problems import Problem
from supervisor.ini.reader import read_ini

RIGHTS = frozenset({"user", "username", "password"})
"""Keys without which a program would run as root, or a server be open to more people."""
ROUNDS = 20  # what one line hides, the next round finds: a section that is gone may be needed by another


class CannotMigrate(Exception):
    """The file can't be copied into one that can be used; the text says why and what to do."""


def write_migrated(source: Path, target: Path, environment: Mapping[str, str]) -> list[str]:
    """Writes `target`, which must not exist; returns the lines of `source` that it leaves out, with the reasons.

    Raises CannotMigrate, ConfigError, FileExistsError or another OSError; then there is no `target`.
    """
    lines = _with_full_paths(source, target, environment)
    left_out: list[str] = []
    with target.open("x") as file:
        try:
            for _ in range(ROUNDS):
                file.seek(0)
                file.truncate()
                file.write("".join(lines))
                file.flush()
                problems = check_config(target, environment).problems
                if not problems:
                    return left_out
                left_out += _comment_out(lines, problems, target)
            raise CannotMigrate(f"cannot write {target}: {problems[0]}; change that line in {source} first")
        except BaseException:
            target.unlink()
            raise


def _with_full_paths(source: Path, target: Path, environment: Mapping[str, str]) -> list[str]:
    """The lines of the file, with a last one that ends, and with full paths if `target` lies in another folder."""
    lines = [f"{line}\n" for line in source.read_text(errors="surrogateescape").splitlines()]
    if target.absolute().parent == source.absolute().parent:
        return lines
    for section in read_ini(source, environment, includes=False).sections.values():
        kind = section.name.partition(":")[0]
        for key, entry in section.entries.items():
            if entry.location.line is None or ((kind, key) != ("include", "files") and key not in PATHS.get(kind, ())):
                continue
            words = entry.value.split() if kind == "include" else [entry.value]
            full = " ".join(word if _stays(word) else os.path.join(entry.folder, word) for word in words)  # noqa: PTH118
            if full != entry.value:
                at = entry.location.line - 1
                del lines[at + 1 : at + 1 + _continued(lines, at)]
                lines[at] = f"{key} = {full}\n"
    return lines


def _stays(word: str) -> bool:
    return word.startswith(("/", "~", "%(")) or word.lower() in ("auto", "none", "off", "syslog", "journal", "")


def _comment_out(lines: list[str], problems: Iterable[Problem], target: Path) -> list[str]:
    """Makes comments of the lines that have problems; returns what was left out."""
    left_out = []
    at_lines: dict[int, list[str]] = {}
    for problem in problems:
        if problem.location.line is None or problem.location.file != target:
            raise CannotMigrate(f"cannot write {target}: {problem}; only lines of the file itself can be left out")
        key = re.split("[=:]", lines[problem.location.line - 1], maxsplit=1)[0].strip().lower()
        if key in RIGHTS:
            raise CannotMigrate(f"cannot write {target}: {problem}; leaving out {key} would give rights away")
        at_lines.setdefault(problem.location.line - 1, []).append(problem.text)
    for at, texts in sorted(at_lines.items(), reverse=True):
        last = at + _length_of(lines, at)
        left_out += [f"{lines[at].strip()}: {text}" for text in texts]
        lines[at:last] = [f"; left out: {text}\n" for text in texts] + [f"; {line}" for line in lines[at:last]]
    return left_out[::-1]


def _length_of(lines: list[str], at: int) -> int:
    """How many lines go with this one: a header with its section, a key with what continues it."""
    if not lines[at].lstrip().startswith("["):
        return 1 + _continued(lines, at)
    following = range(at + 1, len(lines))
    return next((line for line in following if lines[line].startswith("[")), len(lines)) - at


def _continued(lines: list[str], at: int) -> int:
    """How many lines behind this one continue its value."""
    following = range(at + 1, len(lines))
    return next((line for line in following if not lines[line].startswith((" ", "\t"))), len(lines)) - at - 1
