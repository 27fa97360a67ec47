"""Refuses Keras 2 in the place of `tf.keras`, which TF_USE_LEGACY_KERAS puts there. Imports no TensorFlow."""

import os
import sys

_VARIABLE = "TF_USE_LEGACY_KERAS"
NEEDS_KERAS_3 = frozenset({"Run", "Training", "export", "keras", "replica_streams"})
"""What saves and restores Keras' own state."""


def require_keras_3(name: str) -> None:
    """Raises ImportError if `tf.keras` is or will be Keras 2. `name`: what of `worker` the script wants to use."""
    if os.environ.get(_VARIABLE) not in ("1", "true", "True"):  # as TensorFlow reads it, at the first use of tf.keras
        return
    loaded = sys.modules.get("tensorflow")
    try:
        if loaded is not None and loaded.keras.__version__.startswith("3"):
            return
    except (ImportError, AttributeError):
        pass
    raise ImportError(
        f"cannot use worker.{name} with {_VARIABLE}={os.environ[_VARIABLE]}: it saves the state of Keras 3; take the "
        f'variable away and write "import tf_keras" in place of tf.keras: worker.Run saves the models and optimizers '
        f"of tf_keras in a tf.train.Checkpoint; worker.tf1.Run and worker.files.FilesRun work with it"
    )
