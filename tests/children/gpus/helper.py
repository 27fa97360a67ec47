"""The helper for GPUs on a host without any: NVIDIA's library is built from nvml.c, and a test writes the kernel's log.

Arguments: the folder of a `tests.gpu_host.GpuHost`, the folder of nvidia-ml-py, and the settings. The library is loaded
before nvidia-ml-py asks for it by its name, as the loader would find one in LD_LIBRARY_PATH, which the helper of a
daemon never has.
"""

import ctypes
import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from supervisor.host.gpu_guard.child import main
from supervisor.host.resources.kernel_log import KernelLog

FOLDER, PACKAGES = Path(sys.argv.pop(1)), sys.argv.pop(1)


class FedLog(KernelLog):
    """One record a read, as /dev/kmsg gives it: from the socket to which the test writes."""

    def __init__(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as log:
            log.connect(str(FOLDER / "kmsg"))
            log.setblocking(False)
            self._file = log.detach()


if PACKAGES:
    sys.path.insert(0, PACKAGES)
    os.environ["GPU_STATE"] = str(FOLDER / "state")
    ctypes.CDLL(str(FOLDER / "libnvidia-ml.so.1"), ctypes.RTLD_GLOBAL)
else:
    sys.modules["pynvml"] = None  # type: ignore[assignment]  # as if it were not installed
main(FedLog if (FOLDER / "kmsg").exists() else KernelLog)
