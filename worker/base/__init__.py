"""What every run does, whatever its library: counts, reports and saves steps, replays some, and has its loop checked.

May import saving, replay, progress, devices, checks, state and process.
"""
