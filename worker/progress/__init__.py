"""How does a run count its steps, and who sees its metrics: the daemon, TensorBoard, the check for divergence?

Imports only worker.process.
"""
