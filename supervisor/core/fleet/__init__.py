"""Decisions that concern several programs: dependencies, GPUs, when the daemon has nothing left to do."""
