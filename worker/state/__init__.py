"""Which state influences training but is in no TensorFlow checkpoint, and how is it saved? Imports only protocol/."""
