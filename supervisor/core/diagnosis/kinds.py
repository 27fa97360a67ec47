"""What each kind of death is, who has to act, and what to do: the texts that people read."""

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.core.diagnosis.evidence import DeathKind, Who
from supervisor.core.failures.restart import Cause


class Meaning(NamedTuple):
    """`what` says what happened; empty if the evidence says it all. `is_transient`: it may well not happen again, so
    nothing is ever given up because of it alone. `cause`: what it certainly is, for the decision what follows."""

    what: str
    who: Who
    advice: str
    is_transient: bool = False
    cause: Cause | None = None


AUTHOR, OPERATOR, NOBODY = Who.AUTHOR, Who.OPERATOR, Who.NOBODY
TRANSIENT = True
MEMORY = Cause.OUT_OF_MEMORY

# fmt: off
MEANINGS: Mapping[DeathKind, Meaning] = {
    # --- memory ---
    DeathKind.HOST_MEMORY: Meaning(
        "the kernel killed it: the host ran out of memory", OPERATOR,
        "give the host more memory, run less on it, or set memory_limit for each program", TRANSIENT, MEMORY),
    DeathKind.CGROUP_MEMORY: Meaning(
        "the kernel killed it: its control group ran out of memory", AUTHOR,
        "use less memory (batch size, prefetching, DataLoader workers), or raise the group's limit", False, MEMORY),
    DeathKind.GPU_MEMORY: Meaning(
        "out of GPU memory", AUTHOR,
        "set on_oom = microbatch, use a smaller batch, or look who else uses the GPU", False, MEMORY),
    DeathKind.MEMORY_ERROR: Meaning(
        "an allocation was refused: out of memory or above a limit", AUTHOR,
        "ask for less memory, or raise the limit of its address space", False, MEMORY),
    DeathKind.SHARED_MEMORY: Meaning(
        "shared memory (/dev/shm) is full", OPERATOR,
        "make /dev/shm larger (docker run --shm-size, a memory volume of the pod), or use fewer DataLoader workers"),
    # --- disks and limits ---
    DeathKind.DISK_FULL: Meaning("a disk is full", OPERATOR, "free space on the disk that the line names"),
    DeathKind.INODES: Meaning("a file system has no inodes left", OPERATOR, "delete many small files there"),
    DeathKind.QUOTA: Meaning("the user's disk quota is used up", OPERATOR, "free space, or raise the quota"),
    DeathKind.READ_ONLY: Meaning(
        "a file system is read-only", OPERATOR,
        "see the kernel's log for errors of its disk, then mount it for writing again"),
    DeathKind.IO_ERROR: Meaning(
        "a disk or file server gave an input/output error", OPERATOR,
        "check the disk or the file server that the line names", TRANSIENT),
    DeathKind.OPEN_FILES: Meaning(
        "too many open files", OPERATOR, "raise LimitNOFILE of the daemon's unit, or close files in the script"),
    DeathKind.PROCESSES: Meaning(
        "no more processes or threads could be started", OPERATOR,
        "raise the limit of processes (TasksMax, ulimit -u), or start fewer", TRANSIENT),
    DeathKind.CPU_TIME: Meaning("its limit of CPU time was used up", OPERATOR, "raise the limit (ulimit -t, LimitCPU)"),
    DeathKind.FILE_SIZE: Meaning("a file grew beyond its limit", OPERATOR, "raise the limit (ulimit -f, LimitFSIZE)"),
    DeathKind.HUNG_TASK: Meaning(
        "it was stuck in the kernel, which waited for a disk or a driver", OPERATOR,
        "check the disk, file server or GPU that it waited for", TRANSIENT),
    # --- signals ---
    DeathKind.SEGFAULT: Meaning(
        "segmentation fault in native code", AUTHOR,
        "update or rebuild the library that the line names; run with python -X faulthandler", TRANSIENT),
    DeathKind.ILLEGAL_INSTRUCTION: Meaning(
        "the processor lacks an instruction that a library uses", OPERATOR,
        "install a build for this processor, or use another host"),
    DeathKind.BUS_ERROR: Meaning(
        "bus error: a mapped file was cut, or its disk or shared memory failed", AUTHOR,
        "look who truncates the file while it is read, and at the space in /dev/shm", TRANSIENT),
    DeathKind.ARITHMETIC: Meaning("division by zero or overflow in native code", AUTHOR, "find it with a debugger"),
    DeathKind.STACK_OVERFLOW: Meaning(
        "stack overflow", AUTHOR, "less recursion in native code, or a larger stack (ulimit -s)"),
    DeathKind.ABORT: Meaning("it aborted itself", AUTHOR, "the line says why, or a core dump does", TRANSIENT),
    DeathKind.ASSERTION: Meaning("an assertion failed in native code", AUTHOR, "see the condition in the line"),
    DeathKind.KILLED: Meaning(
        "killed by somebody: neither by this daemon nor, as far as is known, for lack of memory", NOBODY,
        "if it goes on, look for who sends SIGKILL (systemd-oomd, a batch system, a person)", TRANSIENT),
    DeathKind.TERMINATED: Meaning("somebody sent it SIGTERM", NOBODY, "", TRANSIENT),
    DeathKind.HANGUP: Meaning("somebody sent it SIGHUP, or its terminal closed", NOBODY, "", TRANSIENT),
    DeathKind.INTERRUPTED: Meaning("interrupted (SIGINT)", NOBODY, "", TRANSIENT),
    DeathKind.BROKEN_PIPE: Meaning(
        "what read its output or its connection is gone", NOBODY, "", TRANSIENT),
    DeathKind.OTHER_SIGNAL: Meaning("", NOBODY, "", TRANSIENT),
    # --- the script ---
    DeathKind.EXCEPTION: Meaning("", AUTHOR, "see the traceback in its standard error"),
    DeathKind.RECURSION: Meaning("", AUTHOR, "end the recursion that the traceback shows"),
    DeathKind.MISSING_MODULE: Meaning("", AUTHOR, "install it in the environment that the job runs in"),
    DeathKind.MISSING_FILE: Meaning("", AUTHOR, "check the path, and that its disk is mounted"),
    DeathKind.PERMISSION: Meaning("", OPERATOR, "give the job's user access to it"),
    DeathKind.DATA: Meaning("its data is damaged", AUTHOR, "make the file again that holds the record"),
    DeathKind.USAGE: Meaning("", OPERATOR, "correct the arguments of its command"),
    DeathKind.EXIT_TEXT: Meaning("", AUTHOR, "the line is what it said itself"),
    DeathKind.COMMAND: Meaning(
        "its command can't be run", OPERATOR, "correct its command or directory, or their rights"),
    # --- its helpers ---
    DeathKind.DATA_WORKER: Meaning(
        "a DataLoader worker died", AUTHOR, "look above for why; fewer workers need less memory", TRANSIENT),
    DeathKind.CHILD: Meaning(
        "a process that it had started died", AUTHOR, "see what that one printed above", TRANSIENT),
    # --- GPUs ---
    DeathKind.GPU_LOST: Meaning(
        "a GPU fell off the bus", OPERATOR, "restart the host; if it happens again, have the GPU replaced", TRANSIENT),
    DeathKind.GPU_FAULT: Meaning(
        "a GPU has a hardware fault", OPERATOR,
        "leave the GPU out, reset it when it is idle, and watch whether it happens again", TRANSIENT),
    DeathKind.GPU_PROGRAM: Meaning(
        "the program made an invalid access on the GPU", AUTHOR,
        "look for indices and labels out of range; CUDA_LAUNCH_BLOCKING=1 shows the true line", TRANSIENT),
    DeathKind.GPU_LAUNCH: Meaning(
        "a GPU computation failed", NOBODY, "if it goes on, look for an Xid in the kernel's log", TRANSIENT),
    DeathKind.GPU_BUSY: Meaning(
        "the GPU is busy or waits for a reset", OPERATOR,
        "end what uses it, or reset it (nvidia-smi -r)", TRANSIENT),
    DeathKind.GPU_FABRIC: Meaning(
        "the GPUs' fabric is not ready", OPERATOR,
        "start nvidia-fabricmanager, in the version of the driver", TRANSIENT),
    DeathKind.GPU_DRIVER: Meaning(
        "the GPU driver and its library do not match, or it is too old", OPERATOR,
        "restart the host after the driver's update, or install a driver that fits"),
    DeathKind.GPU_NONE: Meaning(
        "no GPU can be seen", OPERATOR, "check the driver (nvidia-smi), CUDA_VISIBLE_DEVICES and the container's GPUs"),
    DeathKind.GPU_LIBRARY: Meaning(
        "cuDNN or cuBLAS could not start: no GPU memory left, or versions that do not fit", AUTHOR,
        "look who uses the GPU's memory, then at the versions that the lines above name", TRANSIENT),
    DeathKind.GPU_ARCHITECTURE: Meaning(
        "the library was not built for this GPU", AUTHOR, "install a build that supports the GPU's compute capability"),
    DeathKind.MISSING_LIBRARY: Meaning(
        "a shared library is missing or does not fit", OPERATOR,
        "install it, or correct LD_LIBRARY_PATH of the job's environment"),
    # --- others ---
    DeathKind.PEER: Meaning(
        "another process of the training went away first", NOBODY, "the other one's end says why", TRANSIENT),
    DeathKind.COLLECTIVE_TIMEOUT: Meaning(
        "the other processes did not come to a collective operation in time", NOBODY,
        "if it goes on, look which rank is slow or stuck", TRANSIENT),
    DeathKind.COLLECTIVE: Meaning(
        "communication between GPUs failed", NOBODY, "NCCL_DEBUG=WARN prints the cause", TRANSIENT),
    DeathKind.ADDRESS_IN_USE: Meaning(
        "a port is in use", AUTHOR, "use another port, or end what listens there", TRANSIENT),
    DeathKind.NETWORK: Meaning(
        "a network connection failed", NOBODY, "if it goes on, check the address in the line", TRANSIENT),
    # --- nothing more is known ---
    DeathKind.REPORTED: Meaning("", AUTHOR, "the line says what to do"),
    DeathKind.BY_DAEMON: Meaning("", NOBODY, "the line says why this daemon ended it", TRANSIENT),
    DeathKind.STATUS: Meaning("", AUTHOR, "it printed nothing that says why"),
    DeathKind.UNKNOWN: Meaning("", NOBODY, "", TRANSIENT),
}
# fmt: on
