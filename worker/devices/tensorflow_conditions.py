"""What TensorFlow computes with, and so what the bits of a run depend on: its versions, devices, threads, switches."""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from worker.devices import conditions
from worker.internals.tensorflow_internals import (
    is_default_strategy,
    is_onednn_enabled,
    is_op_determinism_enabled,
    session_config,
)


def versions() -> dict[str, str]:
    """Of all that computes."""
    built = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "numpy": np.__version__,
        **{name: str(built[f"{name}_version"]) for name in ("cuda", "cudnn") if built.get(f"{name}_version")},
        **conditions.base_versions(),
    }


def topology(used: tf.distribute.Strategy | None, session: Any = None) -> dict[str, str | int | bool]:
    """The hardware as TensorFlow uses it, and the switches that choose other kernels.

    `session`: a TF1 session, which may have numbers of threads of its own.
    """
    threading = tf.config.threading
    own = session_config(session)
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "strategy": "none" if used is None or is_default_strategy(used) else type(used).__name__,
        "replicas": replica_count(used),
        "device": str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "CPU",
        "processor": conditions.processor(),
        conditions.THREADS: getattr(own, "intra_op_parallelism_threads", 0)
        or threading.get_intra_op_parallelism_threads()
        or conditions.threads_of_environment()
        or conditions.cores(),
        "inter_op_threads": getattr(own, "inter_op_parallelism_threads", 0)
        or threading.get_inter_op_parallelism_threads()
        or conditions.threads_of_environment("TF_NUM_INTEROP_THREADS")
        or conditions.cores(),
        "cores": conditions.cores(),
        conditions.ONEDNN: is_onednn_enabled(),
        "tf32": bool(tf.config.experimental.tensor_float_32_execution_enabled())
        and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0",
        "xla": " ".join(filter(None, (os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")))),
        "deterministic": is_op_determinism_enabled(),
    }


def replica_count(used: tf.distribute.Strategy | None) -> int:
    """Replicas in sync; 1 without a strategy."""
    return int(used.num_replicas_in_sync) if used is not None else 1
