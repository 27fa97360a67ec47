"""What the bits of a run depend on besides its program, its data and its state: recorded, pinned, compared.

Recorded twice: in every manifest, and, before the very first step, in a file of the checkpoint directory, so that a job
killed before its first checkpoint begins again under the same conditions.
"""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # there is no public way to ask

from supervisor import __version__
from supervisor.protocol import checkpoints, durable, layout, manifest
from supervisor.protocol.manifest import Manifest, ManifestError

Conditions = Mapping[str, str | int | bool]

THREADS = "intra_op_threads"
MAX_BYTES = 1 << 16  # of the file; it is some hundred bytes
_NO_MATTER = frozenset({"cores", "stepkeeper"})  # recorded for people; the bits don't depend on them


def versions() -> dict[str, str]:
    """Of all that computes."""
    return {
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "stepkeeper": __version__,
    }


def topology(used: tf.distribute.Strategy | None) -> dict[str, str | int | bool]:
    """The hardware as TensorFlow uses it, and the switches that choose other kernels."""
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "strategy": type(used).__name__ if used is not None else "none",
        "replicas": replica_count(used),
        "device": _device_name(gpus[0]) if gpus else "CPU",
        "processor": _processor(),
        THREADS: tf.config.threading.get_intra_op_parallelism_threads() or threads_of_environment() or cores(),
        "cores": cores(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").strip().lower() not in ("0", "false"),
        "xla": " ".join(filter(None, (os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")))),
        "deterministic": bool(is_op_determinism_enabled()),
    }


def cores() -> int:
    """Those that this process may use: as many intra-op threads TensorFlow starts if nobody says otherwise."""
    return len(os.sched_getaffinity(0))


def threads_of_environment() -> int | None:
    """What TF_NUM_INTRAOP_THREADS says; TensorFlow takes it where the program sets nothing, and ignores what is no
    number above 0."""
    text = os.environ.get("TF_NUM_INTRAOP_THREADS", "").strip()
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def replica_count(used: tf.distribute.Strategy | None) -> int:
    """Replicas in sync; 1 without a strategy."""
    return int(used.num_replicas_in_sync) if used is not None else 1


def of_manifest(found: Manifest) -> Conditions:
    """Those a checkpoint was made under."""
    return {**found.versions, **found.topology}


def recorded(directory: Path) -> Conditions | None:
    """Those the job trained under last: of its newest checkpoint, else of its first start; None if it has neither.

    Raises OSError if the directory can't be read.
    """
    for name in checkpoints.committed(directory):
        try:
            return of_manifest(manifest.read(directory / str(name)))
        except ManifestError:
            continue
    try:
        body: Any = json.loads(durable.read_file(directory / layout.CONDITIONS, MAX_BYTES))
    except (FileNotFoundError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def record(directory: Path, present: Conditions) -> None:
    """Remembers the conditions of a job that has no checkpoint yet. On the disk when it returns; raises OSError."""
    durable.write_file(directory / layout.CONDITIONS, (json.dumps(dict(present), indent=1) + "\n").encode())


def threads(of: Conditions | None) -> int | None:
    """The number of intra-op threads among recorded conditions."""
    number = (of or {}).get(THREADS)
    return number if type(number) is int and number > 0 else None


def differences(before: Conditions, present: Conditions) -> tuple[str, ...]:
    """What is another now, in words. What one of them did not record is no difference."""
    return tuple(
        f"{key} is {present[key]}, was {before[key]}"
        for key in present
        if key in before and key not in _NO_MATTER and before[key] != present[key]
    )


def _device_name(gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def _processor() -> str:
    """The processor's model: oneDNN and Eigen choose their kernels by what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
