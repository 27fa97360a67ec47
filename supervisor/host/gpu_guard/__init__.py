"""What do NVIDIA's driver and the kernel's log say about GPUs? Asked in a process of its own, which may hang.

NVML (nvidia-ml-py, the extra `nvml`) calls into the driver, and a driver in trouble does not come back: not even
SIGKILL ends a process that is in it, and a thread in it keeps its process from exiting. So all of that happens in one
helper (`child.py`), which is left behind if it has to be, and never replaced while it lives. The daemon's side is
`client.py`; `messages.py` is all that either believes of the other. The folder decides nothing: `core/gpus` does.
"""
