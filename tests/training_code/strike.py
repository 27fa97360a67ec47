"""Runs a script and kills the process with SIGKILL when it is about to execute a certain line for the n-th time.

`python strike.py SCRIPT`. STRIKES names a JSON file: a list of [pattern, count], one for each attempt, in order; a line
counts if the pattern is found in its text. With the pattern `checkpoint` the process dies as soon as the checkpoint of
that step exists, for loops that are in a library. With the pattern `save` it dies in its n-th save, when all files of
the checkpoint are written and its folder is about to get its name. Each strike that happened is appended to the
neighbour `.hits`. COUNTS, where it is set, names a file that gets at the end how often each line was executed.
Only the script's own lines are watched, so libraries run at their full speed.
"""

import atexit
import collections
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any


def next_strike(strikes: Path) -> tuple[str, int] | None:
    """Takes the first strike out of the file; None if none is left."""
    waiting = json.loads(strikes.read_text())
    if not waiting:
        return None
    strikes.write_text(json.dumps(waiting[1:]))
    pattern, count = waiting[0]
    return pattern, count


CHECKPOINT = "checkpoint"
SAVE = "save"


def die(strike: tuple[str, int], hits: Path) -> None:
    """Records the strike and kills this process."""
    with hits.open("a") as file:
        file.write(f"{json.dumps(strike)}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_checkpoint(folder: Path, step: int, hits: Path) -> None:
    """Kills this process once the checkpoint of `step`, or of a later step, is in `folder`."""

    def watch() -> None:
        while not any(int(path.name[5:15]) >= step for path in folder.glob("step-??????????.a*[0-9]")):
            time.sleep(0.001)
        die((CHECKPOINT, step), hits)

    threading.Thread(target=watch, daemon=True).start()


def kill_in_save(count: int, hits: Path) -> None:
    """Kills this process when its `count`-th checkpoint is about to be committed by a rename."""
    left = count

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "os.rename" and str(arguments[0]).endswith(".partial"):
            left -= 1
            if left == 0:
                die((SAVE, count), hits)

    sys.addaudithook(on_event)


def kill_at(script: str, pattern: str, count: int, hits: Path) -> None:
    """Kills this process at the `count`-th execution of a line of `script` in which `pattern` is found."""
    lines = Path(script).read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if re.search(pattern, line)}
    if not wanted:
        raise SystemExit(f"no line of {script} has {pattern!r}")
    left = count

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line" and frame.f_lineno in wanted:
            left -= 1
            if left == 0:
                die((pattern, count), hits)
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename == script else None

    sys.settrace(on_call)


def count_lines(script: str, counts: Path) -> None:
    """Writes down at the end how often each line of the script was executed."""
    executed: collections.Counter[int] = collections.Counter()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            executed[frame.f_lineno] += 1
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename == script else None

    def write() -> None:
        sys.settrace(None)
        counts.write_text(json.dumps(executed))

    atexit.register(write)
    sys.settrace(on_call)


def main() -> None:
    script = str(Path(sys.argv[1]).resolve())
    strikes = Path(os.environ["STRIKES"])
    sys.argv = [script, *sys.argv[2:]]
    sys.path[0] = str(Path(script).parent)
    strike = next_strike(strikes)
    hits = strikes.with_suffix(".hits")
    if (counts := os.environ.get("COUNTS")) is not None:
        count_lines(script, Path(counts))
    if strike is not None and strike[0] == CHECKPOINT:
        kill_at_checkpoint(strikes.parent / "checkpoints", strike[1], hits)
    elif strike is not None and strike[0] == SAVE:
        kill_in_save(strike[1], hits)
    elif strike is not None:
        kill_at(script, *strike, hits)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
