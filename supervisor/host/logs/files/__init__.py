"""The log files: written, rotated, compressed, and read back by attempt."""
