"""Checkpoints on disk: how they are written, verified, selected, kept and set aside. Imports tensorbundle."""
