"""One of several workers, without TensorFlow: prints its rank, then does what its arguments say: RANK:ACT ..."""

import json
import os
import signal
import sys
import time

import worker  # noqa: F401 - starts the others
from worker.process import local_processes
from worker.process.startup import current_attempt

task = json.loads(os.environ[local_processes.CLUSTER])
rank = task["task"]["index"]
acts = dict(each.split(":") for each in sys.argv[1:])
os.write(sys.stdout.fileno(), f"{json.dumps({'pid': os.getpid(), **task})}\n".encode())  # at once: all have one pipe
match acts.get(str(rank), "wait"):
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "unfit":
        current_attempt().exit_with_error(65, "the checkpoint does not fit")
    case "raise":
        raise MemoryError("no room for the batch")
    case "end":
        if (others := local_processes.find_local_processes()) is not None:
            others.allow_exits()
    case _:
        time.sleep(60)
