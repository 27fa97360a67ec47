"""TPUStrategy, with TensorFlow's own calls. Our tests don't run on a TPU: see docs/strategies.md.

One process owns a TPU. Initializing the TPU clears its memory, so each attempt begins on an empty one.
"""

import os

import tensorflow as tf

NAME = "TPU_NAME"  # TensorFlow's own variable, and Google's
LOCAL = "local"  # a TPU VM's own
HOST = "/job:localhost"  # what TensorFlow calls this process, once it is connected to another host's TPU

_connected = False  # to another host's TPU


def tpu_strategy() -> tf.distribute.Strategy:
    """Over the TPU that TPU_NAME names, else this host's own. Raises RuntimeError where there is none."""
    global _connected
    name = os.environ.get(NAME) or LOCAL
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
            _connected = True
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, ValueError, OSError) as error:
        cause = " ".join(str(error).split())[:300]
        raise RuntimeError(
            f"cannot train on TPU {name!r}: {cause}; set {NAME} in environment= to the TPU's name, and use a "
            f"TensorFlow that is built for it; or choose another strategy"
        ) from error


def host_io_options() -> tf.train.CheckpointOptions | None:
    """For TensorFlow's own reads and writes of checkpoints: where a TPU belongs to another host, the files are still
    this one's. None elsewhere: a cluster of workers knows no such device."""
    return tf.train.CheckpointOptions(experimental_io_device=HOST) if _connected else None


def host_memory_device() -> str:
    """The device whose memory is this process's, for copies of the state: `/cpu:0` alone could be the TPU's host."""
    return f"{HOST}/device:CPU:0" if _connected else "/cpu:0"
