"""One program's facts, its events and effects, and the machines beside the main table."""
