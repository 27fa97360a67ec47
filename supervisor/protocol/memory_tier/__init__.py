"""The newest state of a job in memory that outlives its worker: how it lies there. Imports checkpoints and the wire."""
