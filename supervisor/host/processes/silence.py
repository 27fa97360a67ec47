"""Looks at a silent worker and all that it started: what its threads do, what its counters say, where it waits.

Reads /proc only, so no process notices. A file there may not answer (a process that is in a page fault on a dead disk):
call it from a thread that nobody waits for.
"""

import contextlib
import os
import time
from dataclasses import dataclass

from supervisor.core.failures.looks import Call, ThreadLook, TreeLook
from supervisor.host.processes.system_calls import UNREADABLE, WRITE_BACK, call_name, wait_limit_s
from supervisor.host.resources.usage import usage_of_trees

MAX_PROCESSES = 256
MAX_THREADS = 4096  # of all processes; TensorFlow has some hundred on a large host
ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/renderD", "/dev/accel", "/dev/vfio/")
_REMOTE = ("request_wait_answer", "fuse", "rpc_", "nfs", "cifs", "smb", "ceph", "p9_", "cl_", "ptlrpc")
"""In the names of kernel functions in which a thread waits for FUSE, NFS, SMB, Ceph, 9P or Lustre."""
_NEVER_TIMED = ("pipe_", "anon_pipe_", "unix_stream_", "do_wait", "__do_sys_pause")
"""How the names of kernel functions begin in which nothing but another process ends a wait."""
NANOSECONDS = 1e9


def look_at_tree(leader: int, worker: int) -> TreeLook | None:
    """The tree of process `leader` now; `worker`: the process in it that trains. None if that is not there."""
    usage = usage_of_trees({leader}).get(leader)
    if usage is None or worker not in usage.pids:
        return None
    at = time.monotonic()
    threads: list[ThreadLook] = []
    pids = sorted(usage.pids, key=lambda pid: (pid != worker, pid))[:MAX_PROCESSES]
    for pid in pids:
        threads += _threads(pid, MAX_THREADS - len(threads))
    io_bytes = [io_bytes_of(pid) for pid in pids]
    return TreeLook(
        at=at,
        pid=worker,
        threads=tuple(threads),
        cpu_s=usage.cpu_s,
        io_bytes=None if None in io_bytes else sum(filter(None, io_bytes)),
        faults=sum(map(_faults, pids)),
        traced_by=next(filter(None, map(_tracer, pids)), None),
        is_frozen=_is_frozen(worker),
        has_accelerator=any(map(_has_accelerator, pids)),
        network_bytes=_network_bytes(),
        disk_bytes=_disk_bytes(),
    )


def _threads(pid: int, at_most: int) -> list[ThreadLook]:
    with contextlib.suppress(OSError):
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[: max(0, at_most)]  # noqa: PTH208 - names, not paths
        return [thread for tid in tids if (thread := _thread(pid, tid)) is not None]
    return []


def _thread(pid: int, tid: int) -> ThreadLook | None:
    folder = f"/proc/{pid}/task/{tid}"
    stat = _read(f"{folder}/stat")
    if not stat:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    state = rest.split()[0]
    ran_s, ready_s = _run_times(f"{folder}/schedstat")
    status = _fields(f"{folder}/status")
    wait = read_wait(pid, folder, state) if state in "SD" else Wait("")  # what is stopped or gone does not wake up
    switches = sum(int(status.get(f"{kind}_ctxt_switches", "0")) for kind in ("voluntary", "nonvoluntary"))
    return ThreadLook(
        pid=pid,
        tid=tid,
        name=name,
        state=state,
        waits_in=wait.where,
        call=wait.call,
        ran_s=ran_s,
        ready_s=ready_s,
        switches=switches,
        is_timed=wait.is_timed,
        wakes_in_s=wait.wakes_in_s,
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """Where a thread waits; the other fields are those of ThreadLook."""

    where: str
    call: Call = Call.OTHER
    is_timed: bool = False
    wakes_in_s: float | None = None


def read_wait(pid: int, folder: str, state: str) -> Wait:
    """Where a thread (by its folder in /proc) waits, in what kind of call, and after how long that ends by itself.

    What is not shown counts as what excuses it: a wait with a limit, a disk that writes.
    """
    function = _read(f"{folder}/wchan").strip("0")
    is_remote = any(word in function for word in _REMOTE)
    words = _read(f"{folder}/syscall").split()
    if words and words[0] == "-1":  # in a page fault: it reads a file that is mapped into memory
        return Wait(f"a page fault ({function})", Call.REMOTE if is_remote else Call.OTHER)
    if not words or not words[0].isdecimal():  # not shown to this user
        unknown = Call.WRITE_BACK if state == "D" else Call.OTHER
        is_timed = not is_remote and not function.startswith(_NEVER_TIMED)
        return Wait(function, Call.REMOTE if is_remote else unknown, is_timed)
    name, arguments = call_name(int(words[0])), [int(word, 16) for word in words[1:7]]
    where = f"{name} ({function})" if name and function else name or function or f"system call {words[0]}"
    call = Call.OTHER
    if is_remote:
        call = Call.REMOTE
    elif name in ("flock", "fcntl"):
        call = Call.LOCK
    elif name in WRITE_BACK:
        call = Call.WRITE_BACK
    limit = wait_limit_s(name, arguments, lambda address, size: _memory(pid, address, size))
    return Wait(where, call, limit is not None, None if limit == UNREADABLE else limit)


def _memory(pid: int, address: int, size: int) -> bytes:
    """Bytes of a process's memory. Raises OSError."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, address)
    finally:
        os.close(descriptor)


def _run_times(path: str) -> tuple[float, float]:
    words = _read(path).split()
    return (int(words[0]) / NANOSECONDS, int(words[1]) / NANOSECONDS) if len(words) == 3 else (0.0, 0.0)


def _fields(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def io_bytes_of(pid: int) -> int | None:
    """Bytes that a process has read and written, with sockets and pipes; None if this user may not know."""
    fields = _fields(f"/proc/{pid}/io")
    values = [fields.get(name) for name in ("rchar", "wchar", "read_bytes", "write_bytes")]
    return None if None in values else sum(map(int, filter(None, values)))


def _faults(pid: int) -> int:
    rest = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (
        int(rest[7]) + int(rest[9]) if len(rest) > 9 else 0
    )  # minflt and majflt, fields 10 and 12 of proc_pid_stat(5)


def _tracer(pid: int) -> int | None:
    return int(_fields(f"/proc/{pid}/status").get("TracerPid", "0")) or None


def _is_frozen(pid: int) -> bool:
    """Whether its control group, or one above it, is frozen: cgroup v2, or the freezer of v1."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers and "frozen 1" in _read(f"/sys/fs/cgroup{group}/cgroup.events"):
            return True
        if "freezer" in controllers.split(",") and _read(f"/sys/fs/cgroup/freezer{group}/freezer.state") == "FROZEN":
            return True
    return False


def _has_accelerator(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(folder):  # noqa: PTH208 - names, not paths
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{descriptor}").startswith(ACCELERATORS):  # noqa: PTH115 - as above
                    return True
    return False


def _network_bytes() -> int:
    """Bytes that the host has received and sent so far."""
    total = 0
    for line in _read("/proc/net/dev").splitlines()[2:]:
        name, _, counts = line.partition(":")
        words = counts.split()
        if name.strip() != "lo" and len(words) > 8:
            total += int(words[0]) + int(words[8])
    return total


def _disk_bytes() -> int:
    """Bytes that the host's disks have read and written so far."""
    lines = (line.split() for line in _read("/proc/diskstats").splitlines())
    counted = (words for words in lines if len(words) > 9 and not words[2].startswith(("loop", "ram", "dm-")))
    return sum(512 * (int(words[5]) + int(words[9])) for words in counted)  # the disks below those count already


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - thousands of files a look
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
