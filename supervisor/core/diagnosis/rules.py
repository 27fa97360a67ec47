"""The table of rules: which line shows which kind of death. Read in order of trust; the first that fits counts.

Why the order is as it is
-------------------------
*The kernel's log comes first.* It is the only witness that neither the program nor its libraries can be wrong about:
a process that is killed for memory prints nothing at all, and one that reads from a dying disk prints what its library
makes of that. But a line counts only if it is about this death: it names one of the program's processes, or its control
group. What concerns the whole host (a GPU without a process, an I/O error, a remounted file system) counts only where
the program's own words fit it; another job's broken disk must not explain a misspelt key.

*Then the GPU driver*, since CUDA's errors are asynchronous and sticky: the line of the traceback may be innocent, and
`illegal memory access` is printed for a wrong index and for broken memory alike. An Xid tells them apart. Xid 45
(cleanup after another error, or after a kill) and 43 (the channel was reset after the program's fault) are
consequences, and explain nothing.

*Then the control group's counters.* They say that somebody in it was killed for memory, not who.

*Then what the program said.* Its last exception, and those that led to it; then, only if that is vague ("unhandled
system error", "a process in the pool was terminated") what stands above. A message in the middle of the log that was
survived for hours is no cause, so nothing else is looked at: after SIGKILL from outside, not even the last line. Among
the rules the more specific come first: the disk behind /dev/shm before disks, a full shared memory before NCCL's
error about it.

*Then the state of disks*, which only tells inodes from bytes, and shared memory from a mapped file that was cut.

*The exit status comes last.* A script may leave with any. A shell that ends with 128 and a number tells of a signal.
"""

from enum import StrEnum
from signal import Signals
from typing import NamedTuple

from supervisor.core.diagnosis.evidence import DeathKind


class About(StrEnum):
    """Whom a line of the kernel has to be about."""

    PROCESS = "one of its processes, or its control group"
    GPU = "one of its processes, or a GPU while the program's words are about GPUs"
    HOST = "the host, while the program's words fit"


class KernelRule(NamedTuple):
    """A line of the kernel with one of these pieces. `fits`: kinds of death, by its words, that it explains."""

    kind: DeathKind
    about: About
    pieces: tuple[str, ...]
    fits: frozenset[DeathKind] = frozenset()


class TextRule(NamedTuple):
    """A line that the program printed with one of these pieces; `…` stands for anything between two of them.

    `is_vague`: what stands above may say more. `is_anywhere`: may be found above, where the last exception is vague.
    """

    kind: DeathKind
    pieces: tuple[str, ...]
    is_vague: bool = False
    is_anywhere: bool = False


DISK_KINDS = frozenset({DeathKind.IO_ERROR, DeathKind.READ_ONLY, DeathKind.BUS_ERROR, DeathKind.HUNG_TASK})

KERNEL_RULES = (
    KernelRule(DeathKind.CGROUP_MEMORY, About.PROCESS, ("Memory cgroup out of memory: ", "CONSTRAINT_MEMCG")),
    KernelRule(DeathKind.HOST_MEMORY, About.PROCESS, ("Out of memory: ", "oom-kill:constraint=", "Killed process ")),
    KernelRule(DeathKind.STACK_OVERFLOW, About.PROCESS, ("segfault at ",)),  # if the address is of the stack
    KernelRule(DeathKind.SEGFAULT, About.PROCESS, ("segfault at ", " general protection ")),
    KernelRule(DeathKind.ILLEGAL_INSTRUCTION, About.PROCESS, (" trap invalid opcode ",)),
    KernelRule(DeathKind.ARITHMETIC, About.PROCESS, (" trap divide error ",)),
    KernelRule(DeathKind.HUNG_TASK, About.PROCESS, (" blocked for more than ",)),
    KernelRule(DeathKind.GPU_LOST, About.GPU, ("fallen off the bus",)),
    KernelRule(DeathKind.READ_ONLY, About.HOST, ("emounting filesystem read-only",), DISK_KINDS),
    KernelRule(
        DeathKind.IO_ERROR,
        About.HOST,
        ("I/O error", "EXT4-fs error", "XFS (…Shutting down", "BTRFS error", "nfs: server…not responding"),
        DISK_KINDS,
    ),
)

XIDS: dict[DeathKind, frozenset[int]] = {
    DeathKind.GPU_LOST: frozenset({79}),
    DeathKind.GPU_FAULT: frozenset({48, 62, 64, 74, 94, 95, 110, 119, 120, 136, 140, 143, 158, 171, 172}),
    DeathKind.GPU_PROGRAM: frozenset({13, 31, 32, 39, 40, 41, 68, 69}),
    DeathKind.GPU_LAUNCH: frozenset({38, 44, 46, 66, 67, 109, 121, 137, 141}),
}
"""The numbers of Xids, worst first; the others explain nothing by themselves."""

GPU_KINDS = frozenset(kind for kind in DeathKind if kind.startswith("gpu-")) | {
    DeathKind.COLLECTIVE,
    DeathKind.COLLECTIVE_TIMEOUT,
}

# fmt: off
TEXT_RULES = (
    # --- shared memory, before disks and NCCL ---
    TextRule(DeathKind.SHARED_MEMORY, (
        "DataLoader worker…Bus error", "insufficient shared memory (shm)", "/dev/shm…No space left on device",  # noqa: S108
        "No space left on device…/dev/shm", "shm…posix_fallocate failed : No space left",
        "Error while creating shared memory segment…(28)", "unable to write to file </torch_",
        "unable to allocate shared memory(shm)", "unable to mmap…Cannot allocate memory"), is_anywhere=True),
    # --- GPUs ---
    TextRule(DeathKind.GPU_LOST, (
        "CUDA_ERROR_DEVICE_UNAVAILABLE", "fallen off the bus", "GPU is lost"), is_anywhere=True),
    TextRule(DeathKind.GPU_FAULT, (
        "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error", "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable NVLink error", "CUDA_ERROR_CONTAINED", "hardware stack error"), is_anywhere=True),
    TextRule(DeathKind.GPU_FABRIC, (
        "system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady"), is_anywhere=True),
    TextRule(DeathKind.GPU_DRIVER, (
        "does not match DSO version", "Driver/library version mismatch", "NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorInsufficientDriver",
        "system has unsupported display driver / cuda driver combination", "forward compatibility was attempted"),
        is_anywhere=True),
    TextRule(DeathKind.GPU_NONE, (
        "Found no NVIDIA driver", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected",
        "No CUDA GPUs are available",
        "No visible GPU devices", "Torch not compiled with CUDA enabled", "invalid device ordinal",
        "CUDA_ERROR_INVALID_DEVICE", "no supported devices found for platform CUDA", "Unknown backend: 'gpu'",
        "Unknown backend cuda", "Couldn't communicate with the NVIDIA driver",
        "couldn't communicate with the NVIDIA driver",
        "Unable to initialize backend 'tpu'", "TPU initialization failed"), is_vague=True),
    TextRule(DeathKind.GPU_BUSY, (
        "busy or unavailable", "CUDA_ERROR_DEVICES_UNAVAILABLE", "cudaErrorDevicesUnavailable",
        "is already in use by process", "libtpu multi-process lockfile"), is_anywhere=True),
    TextRule(DeathKind.GPU_ARCHITECTURE, (
        "no kernel image is available", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the provided PTX was compiled with an unsupported toolchain"), is_anywhere=True),
    TextRule(DeathKind.GPU_PROGRAM, (
        "device-side assert", "illegal memory access", "CUDA_ERROR_ILLEGAL_ADDRESS", "misaligned address",
        "CUDA_ERROR_MISALIGNED_ADDRESS", "illegal instruction was encountered", "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION", "block: […thread: […Assertion `"), is_anywhere=True),
    TextRule(DeathKind.GPU_MEMORY, (
        "CUDA out of memory", "CUDA error: out of memory", "OOM when allocating tensor…GPU",
        "RESOURCE_EXHAUSTED: Out of memory", "Resource exhausted: Out of memory", "CUDA_ERROR_OUT_OF_MEMORY",
        "Failed to allocate…GPU", "torch.OutOfMemoryError", "HIP out of memory", "cuda runtime error (2)",
        "NCCL…Cuda failure…out of memory", "RESOURCE_EXHAUSTED: Attempting to allocate",
        "RESOURCE_EXHAUSTED: Attempting to reserve", "HBM…exceeded", "OOM when allocating tensor…gpu"),
        is_anywhere=True),
    TextRule(DeathKind.GPU_LIBRARY, (
        "Could not create cudnn handle", "Loaded runtime CuDNN library", "failed to create cublas handle",
        "CUDNN_STATUS_", "CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED",
        "DNN library is not found", "DNN library initialization failed", "cuDNN failed to initialize",
        "Failed to get convolution algorithm", "no BLAS support for stream", "Fail to find the dnn implementation",
        "Failed to create cuSolverDN", "No algorithm worked!"), is_anywhere=True),
    TextRule(DeathKind.GPU_LAUNCH, (
        "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUBLAS_STATUS_",
        "CUDA_ERROR_UNKNOWN", "Unexpected Event status", "CUDA error: unknown error", "CUDA error: an internal",
        "CUDA_ERROR_", "CUDA error:", "CUDA Error:", "cuda runtime error"), is_vague=True, is_anywhere=True),
    # --- several processes ---
    TextRule(DeathKind.COLLECTIVE_TIMEOUT, (
        "Watchdog caught collective operation timeout", "collective operation timeout",
        "Timed out waiting…for recv", "Timed out waiting…for send", "DEADLINE_EXCEEDED…Barrier",
        "Collective ops…timed out"), is_anywhere=True),
    TextRule(DeathKind.PEER, (
        "Horovod has been shut down", "ncclRemoteError", "remote process exited",
        "Connection closed by remote peer", "Connection closed by peer",
        "socketPollConnect", "Gloo connectFullMesh failed", "gloo…Connection reset by peer",
        "NCCL…Connection reset by peer", "NCCL…Broken pipe", "heartbeat timeout",
        "has failed, got preempted, or crashed",
        "Collective ops is aborted", "UNAVAILABLE…Socket closed", "another task died", "peer is down",
        "Barrier failed because", "shutdown barrier has failed"), is_anywhere=True),
    # --- libraries, before exceptions ---
    TextRule(DeathKind.MISSING_LIBRARY, (
        "cannot open shared object file", "error while loading shared libraries", "symbol lookup error",
        "undefined symbol", "version `GLIBC", "version `CXXABI", "version `", "invalid ELF header", "file too short",
        "cannot allocate memory in static TLS block", "wrong ELF class"), is_anywhere=True),
    TextRule(DeathKind.ILLEGAL_INSTRUCTION, (
        "instructions, but these aren't available on your machine", "Illegal instruction")),
    # --- limits and disks ---
    TextRule(DeathKind.OPEN_FILES, ("Too many open files", "[Errno 24]", "[Errno 23]"), is_anywhere=True),
    TextRule(DeathKind.QUOTA, ("Disk quota exceeded", "[Errno 122]"), is_anywhere=True),
    TextRule(DeathKind.DISK_FULL, (
        "No space left on device", "[Errno 28]", "database or disk is full", "not enough space on disk",
        "PytorchStreamWriter failed writing file"), is_anywhere=True),
    TextRule(DeathKind.READ_ONLY, ("Read-only file system", "[Errno 30]")),
    TextRule(DeathKind.IO_ERROR, (
        "Input/output error", "[Errno 5]", "Stale file handle", "[Errno 116]", "Remote I/O error", "[Errno 121]",
        "Transport endpoint is not connected", "[Errno 107]", "Structure needs cleaning", "[Errno 117]"),
        is_anywhere=True),
    TextRule(DeathKind.FILE_SIZE, ("[Errno 27]", "File too large")),
    TextRule(DeathKind.PROCESSES, (
        "can't start new thread", "Resource temporarily unavailable", "pthread_create failed",
        "failed to create thread", "std::system_error…Resource temporarily", "cannot fork"), is_anywhere=True),
    TextRule(DeathKind.ADDRESS_IN_USE, ("ddress already in use", "EADDRINUSE", "[Errno 98]"), is_anywhere=True),
    TextRule(DeathKind.PERMISSION, ("NCCL…Permission denied",), is_anywhere=True),
    # --- helpers ---
    TextRule(DeathKind.DATA_WORKER, (
        "DataLoader worker (pid", "DataLoader worker exited"), is_vague=True, is_anywhere=True),
    TextRule(DeathKind.CHILD, (
        "ChildFailedError", "BrokenProcessPool", "terminated abruptly", "ProcessExitedException",
        "processes exited with non-zero status", "exits with return code = ", "noticed that process rank",
        "CalledProcessError", "worker …was terminated by SIG", "TerminatedWorkerError",
        "A worker process managed by the executor was unexpectedly terminated"), is_vague=True),
    TextRule(DeathKind.COLLECTIVE, ("NCCL error", "ncclInternalError", "ncclSystemError", "ncclUnhandledCudaError",
        "NCCL WARN", "unhandled system error", "unhandled cuda error"), is_vague=True),
    # --- memory of the host, after that of GPUs ---
    TextRule(DeathKind.MEMORY_ERROR, (
        "std::bad_alloc", "Cannot allocate memory", "[Errno 12]", "OOM when allocating tensor",
        "DefaultCPUAllocator: can't allocate memory", "Unable to allocate", "ResourceExhaustedError…OOM")),
    # --- the script ---
    TextRule(DeathKind.DATA, (
        "DataLossError", "corrupted record at", "truncated record at", "Data loss:", "invalid checksum",
        "truncated file: eof", "PytorchStreamReader failed", "failed finding central directory", "BadZipFile",
        "Compressed file ended before", "image file is truncated", "cannot identify image file",
        "Error while deserializing header", "pickle data was truncated")),
    TextRule(DeathKind.PERMISSION, (
        "Unable to locate credentials", "CredentialsError", "InvalidAccessKeyId", "ExpiredToken", "AccessDenied",
        "GatedRepoError", "401 Client Error", "403 Client Error", "401 Unauthorized", "403 Forbidden",
        "Forbidden: 403", "Unauthorized: 401")),
    TextRule(DeathKind.NETWORK, (
        "Connection refused", "Connection reset", "Connection timed out", "Name or service not known",
        "Temporary failure in name resolution", "No route to host", "Network is unreachable", "DistStoreError",
        "DistNetworkError", "Max retries exceeded", "URLError", "ConnectionError", "ReadTimeout", "ConnectTimeout",
        "SSLError", "RemoteDisconnected", "IncompleteRead",
        "Server Error: ", "Read timed out", "Too Many Requests", "(SlowDown)", "ServiceUnavailable",
        "Service Unavailable", "Run initialization has timed out")),
)
"""What programs print. The order matters: the first rule with a line of the last exception counts."""

EXCEPTIONS: dict[str, DeathKind] = {
    "ModuleNotFoundError": DeathKind.MISSING_MODULE,
    "ImportError": DeathKind.MISSING_MODULE,
    "FileNotFoundError": DeathKind.MISSING_FILE,
    "NotADirectoryError": DeathKind.MISSING_FILE,
    "NotFoundError": DeathKind.MISSING_FILE,
    "PermissionError": DeathKind.PERMISSION,
    "PermissionDeniedError": DeathKind.PERMISSION,
    "RecursionError": DeathKind.RECURSION,
    "MemoryError": DeathKind.MEMORY_ERROR,
    "KeyboardInterrupt": DeathKind.INTERRUPTED,
    "BrokenPipeError": DeathKind.BROKEN_PIPE,
    "gaierror": DeathKind.NETWORK,
    "OutOfMemoryError": DeathKind.GPU_MEMORY,
}
"""Kinds by the class of the last exception, where no rule knows its text."""

ABORTS = (
    TextRule(DeathKind.MEMORY_ERROR, ("std::bad_alloc",)),
    TextRule(DeathKind.ASSERTION, ("Assertion `…failed", "Check failed:", "assertion failed")),
    TextRule(DeathKind.STACK_OVERFLOW, ("Cannot recover from stack overflow", "stack overflow")),
    TextRule(DeathKind.ABORT, (
        "  what(): ", "terminate called", "double free or corruption", "free(): ", "malloc(): ", "munmap_chunk()",
        "corrupted size", "stack smashing detected", "malloc_consolidate", "realloc(): ", "buffer overflow detected",
        "Fatal Python error: ", ": F ", "F0000 ", "F tensorflow/", "panicked at ")),
)
"""What is printed before SIGABRT; the first rule with a line counts."""

SIGNALS: dict[int, DeathKind] = {
    Signals.SIGSEGV: DeathKind.SEGFAULT,
    Signals.SIGILL: DeathKind.ILLEGAL_INSTRUCTION,
    Signals.SIGBUS: DeathKind.BUS_ERROR,
    Signals.SIGFPE: DeathKind.ARITHMETIC,
    Signals.SIGABRT: DeathKind.ABORT,
    Signals.SIGKILL: DeathKind.KILLED,
    Signals.SIGTERM: DeathKind.TERMINATED,
    Signals.SIGHUP: DeathKind.HANGUP,
    Signals.SIGINT: DeathKind.INTERRUPTED,
    Signals.SIGPIPE: DeathKind.BROKEN_PIPE,
    Signals.SIGXCPU: DeathKind.CPU_TIME,
    Signals.SIGXFSZ: DeathKind.FILE_SIZE,
}
"""Kinds by the signal alone."""

FROM_OUTSIDE = frozenset(
    {DeathKind.KILLED, DeathKind.TERMINATED, DeathKind.HANGUP, DeathKind.INTERRUPTED, DeathKind.OTHER_SIGNAL}
)
"""What somebody else sent: the last line has nothing to do with it."""

USAGE = ("usage: ", ": error: ")
NOT_FOUND = (": command not found", ": No such file or directory", ": not found")
"""Of a shell that ends with 127."""
