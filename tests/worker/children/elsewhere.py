"""Trains variables that belong to another process, as a TPU's do: FOLDER, with the folders `here` and `there` in it.

The files that each process makes lie in its own working directory, so one can see whose they are.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

folder = Path(sys.argv[1])
with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
server = os.fork()
if not server:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: it ends with the one that trains
os.chdir(folder / ("here" if server else "there"))

import tensorflow as tf  # noqa: E402 - after the fork

if not server:
    tf.distribute.Server({"worker": [address]}, job_name="worker", task_index=0).join()

import worker  # noqa: E402
from worker.checkpoint import snapshot  # noqa: E402
from worker.checkpoint.checkpoint_tensors import CheckpointTensors  # noqa: E402
from worker.checkpoint.copy_memory import BufferPool  # noqa: E402
from worker.devices import tpu  # noqa: E402

cluster = tf.train.ClusterSpec({"worker": [address]})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, master=f"grpc://{address}")
tf.config.experimental_connect_to_cluster(resolver)
tpu._connected = True  # as worker.strategy("tpu") leaves it, where TPU_NAME names another host's


def tracked(value: float) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(value=tf.Variable(tf.fill([3], value)))


def run(directory: str, value: float, copied: bool) -> list[float]:
    """The value at the beginning of a step, which is then saved."""
    of_run = tracked(value)
    with worker.Run(of_run, directory=directory) as run:
        begun = of_run.value.numpy().tolist()
        run._checkpoints._writer._can_capture = copied
        of_run.value.assign_add(tf.ones([3]))
        run.step_done()
    return begun


found = {
    "owner": tracked(1.0).value.device,
    "copies": [
        each.tolist()
        for _, each in snapshot.capture_tensors(
            CheckpointTensors(tracked(1.0)), copied=True, pool=BufferPool()
        ).elements()
    ],
    "begun": {name: [run(name, value, name == "copied") for value in (1.0, 7.0)] for name in ("copied", "written")},
    "foreign": None,
}
tracked(5.0).save("other/ckpt", options=tpu.host_io_options())
found["foreign"] = run("other", 1.0, copied=True)
Path("found.json").write_text(json.dumps(found))
