"""How does Keras' `model.fit` run as a job? Provides `worker.keras.fit`, on top of `worker.run` and `worker.data`."""

from worker.keras.model_fit import fit

__all__ = ["fit"]
