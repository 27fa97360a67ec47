"""Starts, recognises, watches and ends processes."""
