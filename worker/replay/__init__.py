"""Which steps are trained a second time, to find corrupted arithmetic, and how does the loop go back to them?

Knows no library: `run/replayed_state.py` (TensorFlow) and `torch/replayed_state.py` copy the state and compare it.
Imports only worker.process.
"""
