"""What the host and its control groups have: memory, GPUs, limits, and the kernel's out-of-memory killer."""
