"""Steps and figures of a run, and where people see them: the daemon, TensorBoard, the divergence check."""
