"""The distribution strategy, and the settings that must come before TensorFlow starts its devices."""

import contextlib
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.launch import STRATEGIES, Launch
from worker.devices import conditions, tpu
from worker.devices.gpu_check import missing_gpus
from worker.internals.tensorflow_internals import is_default_strategy, is_onednn_enabled
from worker.process import local_processes
from worker.process.reporting import print_message
from worker.process.startup import attempt_or_standby, current_attempt
from worker.state import dataset_parts as dataset_parts  # counts iterators from now on, also before there is a run
from worker.state import random_operations

SEED = 1  # of all generators under `deterministic`; a script may set another after worker.strategy()


def strategy(
    name: str | None = None,
    replicas: int | None = None,
    *,
    workers: int | None = None,
    deterministic: bool = False,
    directory: str | Path | None = None,
) -> tf.distribute.Strategy:
    """Where training runs: `auto` (the default), `mirrored`, `one-device`, `multiworker` or `tpu`. The job's
    configuration overrides the script.

    auto: `mirrored` where there are several devices to train on; with one, TensorFlow's default strategy (a job that
    began under another strategy of one device continues under that, because its bits depend on it). mirrored: over the
    GPUs of this host (at most `replicas` of them); where there is none, over `replicas` logical CPU devices (1 if not
    said). one-device: the first GPU, or the CPU. multiworker: over `workers` processes of this host, each with its
    share of the GPUs, of which this call starts all but the first; or over the hosts that TF_CONFIG names. tpu: the one
    that TPU_NAME names, else this host's. Call it before anything else makes TensorFlow start its devices, and before
    the model is built.
    deterministic: it also seeds all generators, makes TensorFlow's operations deterministic and fixes the number of
    intra-op threads, on which sums depend: to what the script or TF_NUM_INTRAOP_THREADS says, else to what the job
    trained with before, else to the cores this process may use. `directory`: where the job's checkpoints are, as for
    `worker.Run`, to know what it trained with.
    Raises ValueError for another name or a number that doesn't go with it, RuntimeError if TensorFlow's devices are
    already started or there is no TPU.
    """
    launch = current_attempt().launch
    return build_strategy(launch, name, replicas, workers=workers, deterministic=deterministic, directory=directory)


def build_strategy(
    launch: Launch,
    name: str | None = None,
    replicas: int | None = None,
    *,
    workers: int | None = None,
    deterministic: bool = False,
    directory: str | Path | None = None,
) -> tf.distribute.Strategy:
    """`strategy` for a process that was launched so."""
    checkpoint_dir = launch.checkpoint_dir or (Path(directory) if directory is not None else None)
    if not (launch.deterministic or deterministic):
        return _build_strategy(launch, name, replicas, workers, checkpoint_dir)
    make_deterministic(checkpoint_dir)
    built = _build_strategy(launch, name, replicas, workers, checkpoint_dir)
    random_operations.make_exact(None if is_default_strategy(built) else built)
    return built


def _build_strategy(
    launch: Launch, name: str | None, replicas: int | None, workers: int | None, checkpoint_dir: Path | None
) -> tf.distribute.Strategy:
    name, replicas, workers = launch.strategy or name or "auto", launch.replicas or replicas, launch.workers or workers
    if workers is not None and name != "multiworker":
        raise ValueError(f"cannot use {counted(workers, 'worker')} with strategy {name!r}; they go with multiworker")
    if name == "multiworker":
        return _multiworker(workers)
    if name == "tpu":
        return tpu.tpu_strategy()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus and launch.replicas_min is not None and (missing := missing_gpus()) is not None:
        raise RuntimeError(f"cannot train: {missing}; replicas_min is {launch.replicas_min}: mend that, or remove it")
    if name == "one-device":
        return _one_device(gpus)
    if name not in ("auto", "mirrored"):
        raise ValueError(f"cannot use strategy {name!r}; it can be {', '.join(STRATEGIES)}")
    devices = _gpu_names(len(gpus), replicas, launch.replicas_min or 1) if gpus else _cpu_names(replicas or 1)
    if name == "auto" and len(devices) == 1:
        before = _strategy_before(checkpoint_dir)
        if before == "OneDeviceStrategy":
            return _one_device(gpus)
        if before != "MirroredStrategy":
            return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(devices)


def _one_device(gpus: list[Any]) -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


def _strategy_before(checkpoint_dir: Path | None) -> str | None:
    """The class of the strategy that the job trained under last, with one replica; None for all others."""
    with contextlib.suppress(OSError):  # the error is reported when the directory is opened
        before = conditions.recorded_conditions(checkpoint_dir) if checkpoint_dir is not None else None
        if before is not None and before.get("replicas") == 1:
            return str(before.get("strategy"))
    return None


def _multiworker(workers: int | None) -> tf.distribute.Strategy:
    """The strategy in this process. The first process of a host starts the others."""
    member = current_attempt().launch.member
    rank = 0 if member is None else member.rank
    if workers is not None and workers > 1:
        if member is None and local_processes.find_local_processes() is None and local_processes.CLUSTER in os.environ:
            raise ValueError(
                f"cannot start {workers} workers: {local_processes.CLUSTER} is set too; remove either of them"
            )
        gpus = tf.config.list_physical_devices("GPU")
        if gpus and len(gpus) < workers:
            raise ValueError(
                f"cannot train with {workers} workers on {counted(len(gpus), 'GPU')}; set workers= to that at most"
            )
        tf.config.set_visible_devices(gpus[rank::workers], "GPU")
        if member is None:
            local_processes.start_local_processes(current_attempt(), workers)
    elif local_processes.CLUSTER not in os.environ:
        raise ValueError(
            "cannot train with strategy multiworker: nothing says who trains together; set workers=2 or more for "
            "processes of this host, or TF_CONFIG for several hosts"
        )
    return tf.distribute.MultiWorkerMirroredStrategy()


def _gpu_names(there: int, wanted: int | None, least: int) -> list[str]:
    if there < least:
        raise RuntimeError(
            f"cannot train on {counted(there, 'GPU')}: replicas_min is {least}; bring the missing ones back, or lower "
            f"it"
        )
    if wanted is not None and wanted > there:
        print_message(f"uses {counted(there, 'GPU')} instead of {wanted}: this host has no more")
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


def make_deterministic(directory: Path | None, seed: int = SEED) -> None:
    """Seeds all generators, makes operations deterministic, and fixes what they were computed with before, of which
    `directory` has the record."""
    tf.keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()
    # otherwise it adds up three and more terms in another order in each process
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    before = conditions.recorded_conditions(directory) if directory is not None else None
    threads = (
        tf.config.threading.get_intra_op_parallelism_threads()
        or conditions.threads_of_environment()
        or conditions.recorded_threads(before)
        or conditions.cores()
    )
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise RuntimeError(
            f"cannot fix the number of threads at {threads}: TensorFlow's devices are already started; call "
            f"worker.strategy() or prepare() before anything else that uses TensorFlow"
        ) from error
    onednn = (before or {}).get(conditions.ONEDNN)
    if isinstance(onednn, bool) and onednn != is_onednn_enabled() and not conditions.is_onednn_set():
        attempt_or_standby().reporter.show_message(
            f"cannot {'use' if onednn else 'leave out'} oneDNN as before: TensorFlow was imported first; import worker "
            f"before it, or set {conditions.ONEDNN_VARIABLE}={int(onednn)}"
        )
