"""`checkpoints --verify PATH`: proves checkpoints here and now, without a daemon."""

import time
from dataclasses import asdict
from pathlib import Path

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, Usage
from supervisor.ctl.terminal import Status, Terminal
from supervisor.protocol.checkpoints.proving import VerifiedCheckpoint, verify_all


def checkpoints_at(terminal: Terminal, arguments: Arguments) -> Status:
    """All at a place, each read to its last byte; fine if there is one and every one is whole."""
    if len(arguments) != 1:
        raise Usage("Error: checkpoints --verify requires one folder or checkpoint")
    place = Path(arguments[0]).expanduser()
    try:
        proven = verify_all(place)
    except OSError as error:
        terminal.say(f"{place}: ERROR ({error.strerror})")
        return Status.WRONG
    if terminal.as_json:
        terminal.show({"checkpoints": [asdict(each) for each in proven]})
    else:
        _tell(terminal, place, proven)
    judged = [each.valid for each in proven if not each.quarantined]
    return Status.FINE if judged and all(judged) else Status.WRONG


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
        terminal.say(line)


def _verdict(each: VerifiedCheckpoint) -> str:
    if each.quarantined:
        return f"set aside: {each.reason}"
    return "whole" if each.valid else f"damaged: {each.reason}"
