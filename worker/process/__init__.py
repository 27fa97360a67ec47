"""This process as one attempt of a job: startup, the control pipes, signals, standby, and processes beside it.

Imports nothing else of the package.
"""
