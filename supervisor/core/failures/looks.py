"""What several looks at the processes of a silent job show together: which threads ran, and what moved meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from supervisor.core.failures.gpu_activity import GpuActivity, GpuLoad, judge_activity


class Call(StrEnum):
    """What kind of system call a thread waits in, as far as that decides anything."""

    WRITE_BACK = "write-back"  # a disk makes durable what it was given (fsync, close, rename): no counter moves
    LOCK = "lock"  # a lock on a file, which any process of the host may hold
    REMOTE = "remote"  # a file system of a server, or in user space, is asked for something
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """A thread at one moment.

    `state`: the kernel's letter (proc_pid_stat(5)). `waits_in`: the kernel's function or the system call that it waits
    in, "" if it runs or that can't be read. `ran_s`, `ready_s`: for how long it has run, and waited for a CPU, so far.
    `switches`: how often it was put on or off a CPU. `wakes_in_s`: after which time its wait ends by itself at the
    latest, None if never. `is_timed`: it waits with a limit, whether or not that can be read.
    """

    pid: int
    tid: int
    name: str
    state: str
    waits_in: str
    call: Call
    ran_s: float
    ready_s: float
    switches: int
    is_timed: bool = False
    wakes_in_s: float | None = None

    @property
    def is_main(self) -> bool:
        """Whether it is the first thread of its process."""
        return self.pid == self.tid


@dataclass(frozen=True, slots=True)
class TreeLook:
    """A worker and all that it started, at one moment (`at`: monotonic seconds). Counters count from their start.

    `pid`: of the worker. `cpu_s`: with children that ended. `io_bytes`: that were read and written, files and sockets
    alike, None if that can't be read. `faults`: page faults. `traced_by`: pid of a debugger. `is_frozen`: by its
    control group. `has_accelerator`: a process has the device of one open. `network_bytes`, `disk_bytes`: what the
    host's network and disks have moved, whoever for. `gpus`: the load of its GPUs, None if nobody can tell. `stack`:
    the Python frames of the worker's main thread, innermost first; empty if it was not asked.
    """

    at: float
    pid: int
    threads: tuple[ThreadLook, ...]
    cpu_s: float
    io_bytes: int | None
    faults: int
    traced_by: int | None = None
    is_frozen: bool = False
    has_accelerator: bool = False
    network_bytes: int = 0
    disk_bytes: int = 0
    gpus: tuple[GpuLoad, ...] | None = None
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadEvidence:
    """A thread over all looks. `states`: its letter at each. `slept`: the kernel never ran it between the first and the
    last look, and it waits where it waited. The other fields are those of ThreadLook, as of the last look, or their
    growth.
    """

    pid: int
    is_main: bool
    name: str
    states: str
    waits_in: str
    call: Call
    slept: bool
    ran_s: float
    ready_s: float
    is_timed: bool = False
    wakes_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class SilenceEvidence:
    """What looks from `began_at` to `ended_at` (monotonic seconds) showed. Counters are their growth in that time.

    `threads`: those that were there at all looks; empty if nothing could be read. `processes_changed`: processes
    began or ended. `gpu`: what its GPUs did, None if nobody can tell. `stacks`: the main thread's, of the looks that
    asked for it. `network_bytes_s`, `disk_bytes_s`: bytes a second that the host moved at least between any two looks,
    so what went on all the time. Other fields as in TreeLook.
    """

    began_at: float
    ended_at: float
    pid: int = 0
    threads: tuple[ThreadEvidence, ...] = ()
    processes: int = 0
    processes_changed: bool = False
    cpu_s: float = 0.0
    io_bytes: int | None = None
    faults: int = 0
    traced_by: int | None = None
    is_frozen: bool = False
    has_accelerator: bool = False
    network_bytes_s: float = 0.0
    disk_bytes_s: float = 0.0
    gpu: GpuActivity | None = None
    stacks: tuple[tuple[str, ...], ...] = ()

    @property
    def over_s(self) -> float:
        """How long was looked."""
        return max(0.0, self.ended_at - self.began_at)


def compare_looks(looks: Sequence[TreeLook], began_at: float, ended_at: float) -> SilenceEvidence:
    """What the looks show together; evidence of nothing if there are fewer than two."""
    if len(looks) < 2:
        return SilenceEvidence(began_at, ended_at)
    first, last = looks[0], looks[-1]
    of_threads = [{(thread.pid, thread.tid): thread for thread in look.threads} for look in looks]
    lasting = [key for key in of_threads[-1] if all(key in threads for threads in of_threads)]
    sets = [frozenset(pid for pid, _ in threads) for threads in of_threads]
    return SilenceEvidence(
        began_at=first.at,
        ended_at=last.at,
        pid=last.pid,
        threads=tuple(_over_all([threads[key] for threads in of_threads]) for key in lasting),
        processes=len(sets[-1]),
        processes_changed=any(pids != sets[0] for pids in sets),
        cpu_s=last.cpu_s - first.cpu_s,
        io_bytes=None if first.io_bytes is None or last.io_bytes is None else last.io_bytes - first.io_bytes,
        faults=last.faults - first.faults,
        traced_by=next((look.traced_by for look in looks if look.traced_by is not None), None),
        is_frozen=any(look.is_frozen for look in looks),
        has_accelerator=any(look.has_accelerator for look in looks),
        network_bytes_s=_least_rate(looks, lambda look: look.network_bytes),
        disk_bytes_s=_least_rate(looks, lambda look: look.disk_bytes),
        gpu=judge_activity([look.gpus for look in looks]),
        stacks=tuple(look.stack for look in looks if look.stack),
    )


def _least_rate(looks: Sequence[TreeLook], counter: Callable[[TreeLook], int]) -> float:
    rates = (
        (counter(later) - counter(earlier)) / (later.at - earlier.at)
        for earlier, later in pairwise(looks)
        if later.at > earlier.at
    )
    return min(rates, default=0.0)


def _over_all(thread: Sequence[ThreadLook]) -> ThreadEvidence:
    first, last = thread[0], thread[-1]
    same_place = all(look.waits_in == first.waits_in for look in thread)
    did_not_run = last.switches == first.switches and last.ran_s == first.ran_s
    return ThreadEvidence(
        pid=last.pid,
        is_main=last.is_main,
        name=last.name,
        states="".join(look.state for look in thread),
        waits_in=last.waits_in,
        call=last.call,
        slept=same_place and did_not_run and not any(look.state == "R" for look in thread),
        ran_s=last.ran_s - first.ran_s,
        ready_s=last.ready_s - first.ready_s,
        is_timed=last.is_timed,
        wakes_in_s=last.wakes_in_s,
    )
