"""What TensorFlow computes with, and so what the bits of a run depend on: its versions, devices, threads, switches."""

import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import _DefaultDistributionStrategy  # get_strategy() depends on scopes
from tensorflow.python.framework.config import is_op_determinism_enabled  # there is no public way to ask
from tensorflow.python.util import _pywrap_util_port  # nor for oneDNN

from worker.devices import conditions


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
    own = getattr(session, "_config", None)  # what it was given, as a ConfigProto
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "strategy": "none" if used is None or is_default_strategy(used) else type(used).__name__,
        "replicas": replica_count(used),
        "device": _device_name(gpus[0]) if gpus else "CPU",
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
        conditions.ONEDNN: onednn(),
        "tf32": bool(tf.config.experimental.tensor_float_32_execution_enabled())
        and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0",
        "xla": " ".join(filter(None, (os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")))),
        "deterministic": has_op_determinism(),
    }


def has_op_determinism() -> bool:
    """Whether TensorFlow's operations are deterministic."""
    return bool(is_op_determinism_enabled())


def onednn() -> bool:
    """Whether TensorFlow uses oneDNN, which was decided when it was imported."""
    return bool(_pywrap_util_port.IsMklEnabled())


def replica_count(used: tf.distribute.Strategy | None) -> int:
    """Replicas in sync; 1 without a strategy."""
    return int(used.num_replicas_in_sync) if used is not None else 1


def is_default_strategy(used: tf.distribute.Strategy) -> bool:
    """Whether it is the strategy that TensorFlow uses where a script names none: one device, nothing spread."""
    return isinstance(used, _DefaultDistributionStrategy)


def _device_name(gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
