"""One of several workers, without TensorFlow: prints its rank, then does what its arguments say: RANK:ACT[=FILE] ..."""

import atexit
import json
import os
import signal
import sys
import time
from pathlib import Path


def wait_like_tensorflow() -> None:
    """Does what its shutdown does, last of all: waits for the others, or at least takes its time."""
    if act in ("over", "refuse"):
        Path(place).touch()
        time.sleep(60)
    elif act in ("follow", "refuse-later"):
        time.sleep(1.0)


atexit.register(wait_like_tensorflow)

import worker  # noqa: E402, F401 - starts the others
from worker.process import local_processes  # noqa: E402
from worker.process.startup import current_attempt  # noqa: E402

task = json.loads(os.environ[local_processes.CLUSTER])
rank = task["task"]["index"]
act, _, place = dict(each.split(":") for each in sys.argv[1:]).get(str(rank), "wait").partition("=")
os.write(sys.stdout.fileno(), f"{json.dumps({'pid': os.getpid(), **task})}\n".encode())  # at once: all have one pipe
match act:
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "unfit":
        current_attempt().exit_with_error(65, "the checkpoint does not fit")
    case "raise":
        raise MemoryError("no room for the batch")
    case "end":
        if (others := local_processes.find_local_processes()) is not None:
            others.allow_exits()
    case "again":  # trains once more, after another may have left
        others = local_processes.find_local_processes()
        assert others is not None
        others.allow_exits()
        while not Path(place).exists():
            time.sleep(0.01)
        time.sleep(0.5)
        others.require_all_alive()
        time.sleep(60)
    case "leave":
        Path(place).touch()
    case "fail":  # its first training fails, and its script goes on
        current_attempt().report_failure("cannot fit")
        Path(place).touch()
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    case "over":
        pass
    case "refuse":  # its run fails, and the script catches that
        current_attempt().report_failure("cannot fit")
    case "follow" | "refuse-later":  # comes to its end a moment after the one that makes the file
        while not Path(place).exists():
            time.sleep(0.01)
        if act == "refuse-later":
            current_attempt().report_failure("cannot fit")
        time.sleep(0.5)
    case _:
        time.sleep(60)
