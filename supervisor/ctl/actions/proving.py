"""`checkpoints --verify PATH`: proves checkpoints here and now, without a daemon."""

import time
from dataclasses import asdict
from pathlib import Path

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.checkpoints.verification import VerifiedCheckpoint, verify_all


def checkpoints_at(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """All at a place, each read to its last byte; fine if there is one and every one is whole."""
    if len(arguments) != 1:
        raise UsageError("Error: checkpoints --verify requires one folder or checkpoint")
    place = Path(arguments[0]).expanduser()
    try:
        proven = verify_all(place)
    except OSError as error:
        terminal.print_line(f"{place}: ERROR ({error.strerror})")
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json({"checkpoints": [asdict(each) for each in proven]})
    else:
        _tell(terminal, place, proven)
    judged = [each.valid for each in proven if not each.quarantined]
    return ExitStatus.OK if judged and all(judged) else ExitStatus.ERROR


def _tell(terminal: Terminal, place: Path, proven: list[VerifiedCheckpoint]) -> None:
    now = time.time()
    rows = [
        (
            render.number(each.step),
            each.name,
            render.age(each.created_wall_at, now),
            render.size(each.size_bytes),
            _verdict(each),
        )
        for each in proven
    ]
    head = ("STEP", "CHECKPOINT", "AGE", "SIZE", "STATE")
    for line in render.table(head, rows) if rows else [f"{place}: ERROR (no checkpoint there)"]:
        terminal.print_line(line)


def _verdict(each: VerifiedCheckpoint) -> str:
    if each.quarantined:
        return f"set aside: {each.reason}"
    return "whole" if each.valid else f"damaged: {each.reason}"
