"""When a checkpoint is saved, how it becomes durable, and which old ones are deleted.

Knows no library: the writers are in checkpoint (TensorFlow) and files (anything else). May import process.
"""
