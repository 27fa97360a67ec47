"""Keras' `model.fit` as a job: `worker.keras.fit`."""

from worker.keras.model_fit import fit

__all__ = ["fit"]
