"""TensorFlow's checkpoint format, read and checked without TensorFlow."""
