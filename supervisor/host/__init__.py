"""Touches the machine: one adapter a file."""
