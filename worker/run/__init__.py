"""`worker.Run`: one training run with TensorFlow, and its checkpoints, alone or with other processes.

May import checkpoint, saving, data, progress, state, devices and process.
"""
