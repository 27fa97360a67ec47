"""The distribution strategy, and the settings that must come before TensorFlow starts its devices."""

import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import checkpoints, manifest
from supervisor.protocol.manifest import ManifestError
from worker import attempt

SEED = 1  # of all generators under `deterministic`; a script may set another after worker.strategy()


def strategy(name: str | None = None, replicas: int | None = None) -> tf.distribute.Strategy:
    """Where training runs: `mirrored` (the default) or `one-device`. The job's configuration overrides the script.

    mirrored: over the GPUs of this host (at most `replicas` of them); where there is none, over `replicas` logical
    CPU devices (1 if not said). one-device: the first GPU, or the CPU. Call it before anything else makes TensorFlow
    start its devices, and before the model is built. With `deterministic = true` in the job's configuration it also
    seeds all generators, makes TensorFlow's operations deterministic and fixes the number of intra-op threads: to what
    the newest checkpoint was trained with, or at the first start to the cores this process may use.
    Raises ValueError for another name, RuntimeError if TensorFlow's devices are already started.
    """
    told = attempt.this().launch
    name, replicas = told.strategy or name or "mirrored", told.replicas or replicas
    if told.deterministic:
        _make_deterministic(told.checkpoint_dir)
    gpus = tf.config.list_physical_devices("GPU")
    if name == "one-device":
        return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")
    if name != "mirrored":
        raise ValueError(f"cannot use strategy {name!r}; it can be mirrored or one-device")
    return tf.distribute.MirroredStrategy(_gpu_names(len(gpus), replicas) if gpus else _cpu_names(replicas or 1))


def _gpu_names(there: int, wanted: int | None) -> list[str]:
    if wanted is not None and wanted > there:
        sys.stderr.write(f"stepkeeper: mirrors over {there} GPUs, not {wanted}: there are no more on this host\n")
    return [f"/gpu:{number}" for number in range(min(there, wanted or there))]


def _cpu_names(count: int) -> list[str]:
    if count > 1:
        device = tf.config.list_physical_devices("CPU")[0]
        wanted = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        try:
            tf.config.set_logical_device_configuration(device, wanted)
        except RuntimeError as error:
            if len(tf.config.list_logical_devices("CPU")) < count:
                raise RuntimeError(
                    f"cannot make {count} logical CPU devices: TensorFlow's devices are already started; call "
                    f"worker.strategy() before anything else that uses TensorFlow"
                ) from error
    return [f"/cpu:{number}" for number in range(count)]


def _make_deterministic(directory: Path | None) -> None:
    tf.keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    threads = (
        tf.config.threading.get_intra_op_parallelism_threads()
        or (_threads_of_newest(directory) if directory is not None else None)
        or len(os.sched_getaffinity(0))
    )
    tf.config.threading.set_intra_op_parallelism_threads(threads)


def _threads_of_newest(directory: Path) -> int | None:
    """The thread count that the newest checkpoint was trained with: sums, and so the bits, depend on it."""
    for name in checkpoints.committed(directory):
        try:
            threads = manifest.read(directory / str(name)).topology.get("intra_op_threads")
        except ManifestError:
            continue
        return threads if isinstance(threads, int) and threads > 0 else None
    return None


def topology(used: tf.distribute.Strategy | None) -> dict[str, str | int | bool]:
    """What the bits of a run depend on besides the program, for the manifest."""
    gpus = tf.config.list_physical_devices("GPU")
    facts: dict[str, str | int | bool] = {
        "strategy": type(used).__name__ if used is not None else "none",
        "replicas": replica_count(used),
        "device": _device_name(gpus[0]) if gpus else "CPU",
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),  # 0: as many as cores
        "cores": len(os.sched_getaffinity(0)),
        "deterministic": attempt.this().launch.deterministic,
    }
    return facts


def replica_count(used: tf.distribute.Strategy | None) -> int:
    """Replicas in sync; 1 without a strategy."""
    return int(used.num_replicas_in_sync) if used is not None else 1


def _device_name(gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
