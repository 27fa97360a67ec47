"""Does TensorFlow see the GPUs that training was meant to use? If not, why: from TensorFlow's own log."""

import os
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from supervisor.protocol.plurals import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_LIMIT_S = 60.0  # importing TensorFlow takes ten seconds on a busy host; a sick driver may hang
MAX_REASON = 300  # characters
_LOOK = "import tensorflow as tf; tf.config.list_physical_devices('GPU')"
_REASONS = (
    "does not match DSO version",
    "failed call to cuInit",
    "Could not load dynamic library",
    "Cannot dlopen some GPU libraries",
    "Could not find cuda drivers",
)
"""What TensorFlow logs when it finds no GPU, the most telling first."""


def missing_gpus() -> str | None:
    """That TensorFlow sees none of the GPUs that the host has or CUDA_VISIBLE_DEVICES names, and why; None if it does,
    or there are none. Takes seconds if it sees none, as another process has to look again.
    """
    asked = asked_gpus(os.environ.get(VISIBLE), len(list(Path("/dev").glob("nvidia[0-9]*"))))
    if asked == 0 or tf.config.list_physical_devices("GPU"):
        return None
    return f"asked for {counted(asked, 'GPU')}, TensorFlow sees none: {_why()}"


def asked_gpus(visible: str | None, there: int) -> int:
    """How many GPUs are meant to be used. `visible`: CUDA_VISIBLE_DEVICES, where the first that is none ends the list;
    `there`: how many the host has."""
    if visible is None:
        return there
    count = 0
    for name in visible.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        count += 1
    return count


def reason_in(log: str) -> str | None:
    """The line of TensorFlow's log that says why it finds no GPU, without time and place; None if none does."""
    lines = log.splitlines()
    for reason in _REASONS:
        line = next((line for line in lines if reason in line), None)
        if line is not None:
            text = line.partition("] ")[2] or line
            return "".join(character if character.isprintable() else " " for character in text)[:MAX_REASON]
    return None


def _why() -> str:
    """Has another process look, since TensorFlow logs it once in each, and here it is in the log already."""
    if not tf.test.is_built_with_cuda():
        return "it is built without CUDA; install tensorflow[and-cuda]"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    try:
        look = subprocess.run(
            [sys.executable, "-c", _LOOK], env=environment, capture_output=True, timeout=LOOK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it does not answer within {LOOK_LIMIT_S:g} s; the driver may hang (nvidia-smi)"
    except OSError as error:
        return f"see what it logged above ({error})"
    return reason_in(look.stderr.decode(errors="replace")) or "see what it logged above"
