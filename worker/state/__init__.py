"""What no TensorFlow checkpoint holds: random generators, Python objects, per-replica values, the position."""
