"""How does Keras' `model.fit` run as a job? Provides `worker.keras.fit`, on top of `worker.run` and `worker.data`."""

import os
import sys

from worker.process.keras_version import require_keras_3


def _require_tensorflow() -> None:
    """Raises ImportError if Keras computes with something else than TensorFlow, before Keras looks for it."""
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend == "tensorflow" or "keras" in sys.modules:
        import keras

        backend = keras.config.backend()
    if backend != "tensorflow":
        instead = "; for a loop of your own in PyTorch there is worker.torch.Run" if backend == "torch" else ""
        raise ImportError(
            f"cannot use worker.keras with Keras on {backend}: it saves and restores TensorFlow's state; set "
            f"KERAS_BACKEND=tensorflow before Keras is imported{instead}"
        )


require_keras_3("keras")
_require_tensorflow()

from worker.keras.model_fit import fit  # noqa: E402 - Keras fails in other words if its backend is not installed

__all__ = ["fit"]
