"""Checkpoint directories, and threads for calls that a slow disk may hold up."""
