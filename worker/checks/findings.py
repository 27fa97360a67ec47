"""What a check finds at the first step: something that would not come back after a restart, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`name`: what would not come back and where it is; `remedy`: what to write instead."""

    name: str
    remedy: str


def describe(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One text for each remedy: what would not be the same after a restart, then what to do."""
    by_remedy: dict[str, list[str]] = {}
    for finding in findings:
        names = by_remedy.setdefault(finding.remedy, [])
        if finding.name not in names:
            names.append(finding.name)
    return tuple(f"cannot resume exactly: {'; '.join(names)}; {remedy}" for remedy, names in by_remedy.items())
