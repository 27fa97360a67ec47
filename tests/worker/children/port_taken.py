"""One of several workers whose port another program takes before TensorFlow does: FOLDER RANK.

The chief is that program too. It takes the port of RANK, once; all write `ready-RANK` when they are a cluster. With
FOLDER/raise, the last worker raises an exception instead, before it joins the others.
"""

import json
import os
import socket
import sys
from pathlib import Path

import worker  # with a launch variable it starts the others
from worker.process import local_processes

folder, victim = Path(sys.argv[1]), int(sys.argv[2])
cluster = json.loads(os.environ[local_processes.CLUSTER])
rank, addresses = cluster["task"]["index"], cluster["cluster"]["worker"]
if rank == len(addresses) - 1 and (folder / "raise").exists():
    raise RuntimeError("no data here")
if rank == 0 and not (folder / "taken").exists():
    port = addresses[victim].rpartition(":")[2]
    taken = socket.socket()
    taken.bind(("", int(port)))
    taken.listen()
    (folder / "taken").write_text(port)
strategy = worker.strategy("multiworker")
(folder / f"ready-{rank}").write_text(f"{strategy.num_replicas_in_sync} of {' '.join(addresses)}")
if (others := local_processes.find_local_processes()) is not None:
    others.allow_exits()
