"""What a death leaves behind: the exit, what it printed, the kernel's log, its control group, disks and GPUs."""

from dataclasses import dataclass, field
from enum import StrEnum


class Source(StrEnum):
    """Which log the line is from that shows the cause."""

    KERNEL = "the kernel's log"
    GPU = "the GPU guard"
    CGROUP = "its control group"
    REPORT = "what it reported"
    STDERR = "its standard error"
    DISK = "the state of the disk"
    DAEMON = "this daemon"
    STATUS = "how it ended"


class Who(StrEnum):
    """Who has to act so that it does not happen again."""

    AUTHOR = "the script's author"
    OPERATOR = "the host's operator"
    NOBODY = "nobody"


class DeathKind(StrEnum):
    """What a death was, in a word; the key of docs/why-it-died.md."""

    # memory
    HOST_MEMORY = "host-out-of-memory"
    CGROUP_MEMORY = "cgroup-out-of-memory"
    GPU_MEMORY = "gpu-out-of-memory"
    MEMORY_ERROR = "memory-error"
    SHARED_MEMORY = "shared-memory-full"
    # disks and limits
    DISK_FULL = "disk-full"
    INODES = "no-inodes"
    QUOTA = "quota"
    READ_ONLY = "read-only"
    IO_ERROR = "io-error"
    OPEN_FILES = "open-files"
    PROCESSES = "processes"
    CPU_TIME = "cpu-time"
    FILE_SIZE = "file-size"
    HUNG_TASK = "hung-task"
    # signals
    SEGFAULT = "segfault"
    ILLEGAL_INSTRUCTION = "illegal-instruction"
    BUS_ERROR = "bus-error"
    ARITHMETIC = "arithmetic"
    STACK_OVERFLOW = "stack-overflow"
    ABORT = "abort"
    ASSERTION = "assertion"
    KILLED = "killed"
    TERMINATED = "terminated"
    HANGUP = "hangup"
    INTERRUPTED = "interrupted"
    BROKEN_PIPE = "broken-pipe"
    OTHER_SIGNAL = "signal"
    # the script
    EXCEPTION = "exception"
    RECURSION = "recursion"
    MISSING_MODULE = "missing-module"
    MISSING_FILE = "missing-file"
    PERMISSION = "permission"
    DATA = "data"
    USAGE = "usage"
    EXIT_TEXT = "exit-text"
    COMMAND = "command"
    # its helpers
    DATA_WORKER = "data-worker"
    CHILD = "child"
    # GPUs, their driver and libraries
    GPU_LOST = "gpu-lost"
    GPU_FAULT = "gpu-fault"
    GPU_PROGRAM = "gpu-program"
    GPU_LAUNCH = "gpu-launch"
    GPU_BUSY = "gpu-busy"
    GPU_FABRIC = "gpu-fabric"
    GPU_DRIVER = "gpu-driver"
    GPU_NONE = "gpu-none"
    GPU_LIBRARY = "gpu-library"
    GPU_ARCHITECTURE = "gpu-architecture"
    MISSING_LIBRARY = "missing-library"
    # other processes and the network
    PEER = "peer"
    COLLECTIVE_TIMEOUT = "collective-timeout"
    COLLECTIVE = "collective"
    ADDRESS_IN_USE = "address-in-use"
    NETWORK = "network"
    # nothing more is known, or nothing more is to be known
    BY_DAEMON = "by-this-daemon"
    REPORTED = "reported"
    STATUS = "exit-status"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of the kernel's log, `age_s` before the death."""

    age_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Disk:
    """How full a file system is. `use`: what it is for, in words. `free_inodes`: None if it does not count them."""

    use: str
    path: str
    free_bytes: int
    free_inodes: int | None = None
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a death; each part may be missing.

    `stderr`: the end of what it printed, as it is. `reported`: the error that it sent itself. `pids`: its process and
    what it started. `cgroup`: its control group, as the kernel names it. `oom`: that a counter of out-of-memory kills
    rose, in words. `gpu`: what the GPU guard found, worst first. `error`: why there is no process at all.
    `decided`: why this daemon ended it, in words. `kernel`: None if its log can't be read.
    """

    code: int | None = None
    signal: int | None = None
    decided: str | None = None
    stderr: str = field(default="", repr=False)
    reported: str | None = None
    error: str | None = None
    kernel: tuple[KernelLine, ...] | None = ()
    pids: tuple[int, ...] = ()
    cgroup: str | None = None
    oom: str | None = None
    disks: tuple[Disk, ...] = ()
    gpu: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why it died. `what`: in words, empty if the line says it all; `line`: the very line that shows it, from `source`;
    `advice`: what whoever has to act (`who`) should do, or if it goes on; `follows`: what this daemon does now.
    """

    kind: DeathKind
    what: str
    line: str
    source: Source
    who: Who
    advice: str
    follows: str | None = None


def describe_remedy(diagnosis: Diagnosis) -> str:
    """Who has to act, and how, in words."""
    if diagnosis.who is Who.NOBODY:
        return "; ".join(filter(None, ["nobody has to act", diagnosis.advice]))
    return f"to be done by {diagnosis.who}: {diagnosis.advice}"


def flat(diagnosis: Diagnosis) -> dict[str, str | int | float | bool | None]:
    """A diagnosis as single facts, for hooks and events."""
    return {
        "diagnosis": str(diagnosis.kind),
        "what": diagnosis.what,
        "line": diagnosis.line,
        "line_from": str(diagnosis.source),
        "who": str(diagnosis.who),
        "advice": diagnosis.advice,
        "follows": diagnosis.follows,
    }
