"""What two runs differ by: steps, tensors, values, files. Pure but for reading files; imports no NumPy."""
