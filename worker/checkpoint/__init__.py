"""A TensorFlow checkpoint onto the disk and back, bit for bit."""
