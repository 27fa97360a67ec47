"""Runs scripts in forks of a process that has imported their framework: `python forks.py MODULE...`.

Each line of standard input is a JSON object, as `starter.Starter` writes it; each line of standard output says how the
fork ended. Importing TensorFlow takes five seconds, and a fork has it at once. Each fork is a process of its own, with
its own devices, threads and random state, because none of them exists before the fork; `worker` is imported in it. A
strike is a real SIGKILL of the fork.
"""

import collections
import importlib
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import strike


def main() -> None:
    sys.path.pop(0)  # the folder of this file, whose modules are nothing to the scripts
    for name in sys.argv[1:]:
        importlib.import_module(name)
    replies = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            replies.close()
            return become(order)
        print(json.dumps(wait(child, order["seconds"])), file=replies, flush=True)
    return None


def wait(child: int, seconds: float) -> dict[str, Any]:
    """How the fork ended: its exit status, or minus the signal's number, and the processor time that it took. It is
    killed if it takes too long."""
    descriptor = os.pidfd_open(child)
    is_over = bool(select.select([descriptor], [], [], seconds)[0])
    os.close(descriptor)
    if not is_over:
        os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "is_late": not is_over,
        "processor_s": used.ru_utime + used.ru_stime,
    }


def become(order: dict[str, Any]) -> None:
    """Runs the script in this fork, as Python would have started it."""
    os.setsid()
    folder, script = Path(order["folder"]), order["script"]
    os.chdir(folder)
    os.environ.update(order["environment"])
    for descriptor, name in ((0, os.devnull), (1, order["stdout"]), (2, order["stderr"])):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [script, *order["arguments"]]
    sys.path.insert(0, str(Path(script).parent))
    if order["counts"] is not None:
        count_lines(script, Path(order["counts"]))
    if order["strike"] is not None:
        pattern, count = order["strike"]
        hits = folder / "strikes.hits"
        if pattern == strike.CHECKPOINT:
            strike.kill_at_checkpoint(folder / "checkpoints", count, hits)
        elif pattern == strike.SAVE:
            strike.kill_in_save(count, hits)
        else:
            strike.kill_at(script, pattern, count, hits)
    runpy.run_path(script, run_name="__main__")


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

    importlib.import_module("atexit").register(write)
    sys.settrace(on_call)


if __name__ == "__main__":
    main()
