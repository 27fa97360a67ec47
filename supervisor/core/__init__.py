"""Decides. Pure functions and one state machine: no clock, no process, no file."""
