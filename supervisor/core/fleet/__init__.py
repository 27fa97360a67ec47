"""What concerns several programs? Dependencies, GPUs, when the daemon has nothing left to do. Imports `program`."""
