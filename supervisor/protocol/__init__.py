"""What the daemon and a worker must agree on: messages, launch settings, and checkpoints on disk.

It imports the standard library and two checksum libraries only.
"""
