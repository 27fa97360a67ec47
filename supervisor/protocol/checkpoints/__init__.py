"""Checkpoints on disk: written, proven, selected, retained, rolled back."""
