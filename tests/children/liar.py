"""A worker that lies: after an honest beginning it writes messages as fast as its pipe takes them.

$LIES is a file with a JSON list of messages, repeated for ever (`{n}` in a text is a number that grows, for names that
are new each time). Or it is `random`: messages are drawn from the schema, with the least, the greatest and impossible
values in their fields.
"""

import json
import os
import random
import select
import sys
import time
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from supervisor.protocol import layout
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.limits import CheckpointNamed, FileNamed, Items, Range, Text
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import NAMES, PROTOCOL, FromWorker, Hello, Progress, Restored

LIES = os.environ["LIES"]
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))  # between two messages
WRONG_SHARE = 0.05  # of fields that are out of their limits: most messages have to get through
IMPOSSIBLE = (-1, 1 << 63, 1 << 64, 1e308, 1.7e308, 5e-324, 1e14, 1e18, float("inf"), float("nan"), "", None, [], {})


def main() -> None:
    told = launch.from_environment(os.environ)
    assert told.control is not None
    pipes, attempt = told.control.pipes, told.control.attempt
    out = os.open(pipes / layout.FROM_WORKER, os.O_RDWR)
    os.open(pipes / layout.TO_WORKER, os.O_RDWR)
    for honest in (
        Hello(attempt, PROTOCOL, os.getpid(), "1"), Restored(attempt, 0, None, 0.1), Progress(attempt, 1, step_s=0.1),
    ):  # fmt: skip
        os.write(out, encode_message(honest))
    time.sleep(float(os.environ.get("HONEST_S", "0.5")))
    for line in drawn(attempt) if LIES == "random" else repeated(attempt):
        select.select([], [out], [])
        time.sleep(PAUSE_S)
        unsent = line
        while unsent:
            unsent = unsent[os.write(out, unsent) :]


def repeated(attempt: int) -> Iterator[bytes]:
    number, lies = 0, json.loads(Path(LIES).read_text())
    while True:
        for lie in lies:
            number += 1
            text = json.dumps({"attempt": attempt, **lie}).replace("{n}", f"{number:010d}")
            yield text.encode() + b"\n"


def drawn(attempt: int) -> Iterator[bytes]:
    chance = random.Random(int(os.environ.get("SEED", "1")))
    kinds = typing.get_args(FromWorker)
    hints = {kind: typing.get_type_hints(kind, include_extras=True) for kind in kinds}
    while True:
        kind = chance.choice(kinds)
        body = {field.name: value(hints[kind][field.name], chance) for field in fields(kind)}
        body.pop("saving_s", None)  # a save that takes years is a hang: it would be aborted, and this one is to go on
        line = json.dumps({"type": NAMES[kind], **body, "attempt": attempt}).encode()
        yield line[:65_000] + b"\n"


def value(wanted: Any, chance: random.Random) -> Any:
    """A value of the annotated type: at an end of its limits, somewhere inside, or now and then outside."""
    if chance.random() < WRONG_SHARE:
        return chance.choice(IMPOSSIBLE)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        return limited(wanted, chance)
    if origin in (types.UnionType, typing.Union):
        return None if chance.random() < 0.2 else value(arguments[0], chance)
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return chance.choice(list(wanted))
    return chance.random() < 0.5  # a truth value


def limited(wanted: Any, chance: random.Random) -> Any:
    limit, inner = wanted.__metadata__[0], wanted.__origin__
    arguments = typing.get_args(inner)
    match limit:
        case Range():
            inside = chance.choice((chance.uniform(limit.least, limit.most), chance.uniform(0, 1000)))
            kind = int if inner is int else float
            return kind(chance.choice((limit.least, limit.most, inside, max(limit.finest, 0.0))))
        case CheckpointNamed():
            return str(layout.CheckpointName(chance.randrange(10**10), chance.randrange(1, 10**6)))
        case FileNamed():
            return chance.choice(("x", "🙂" * 250, "model.ckpt-7"))
        case Text():
            return chance.choice(("", "x", "x" * limit.most, "\x1b[2J\r\n" * (limit.most // 8), "é" * limit.most))
        case Items() if typing.get_origin(inner) is Mapping:
            count = chance.choice((0, 1, min(limit.most, 50)))
            return {
                f"{value(arguments[0], chance)}{number}"[:200]: value(arguments[1], chance) for number in range(count)
            }
        case Items():
            count = chance.choice((0, 1, min(limit.most, 20)))
            return [value(arguments[0], chance) for _ in range(count)]
    raise TypeError(f"no values for {limit}")


if __name__ == "__main__":
    sys.exit(main())
