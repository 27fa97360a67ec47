"""The system calls that threads wait in: their names, and when such a wait ends by itself."""

import os
import struct
import time
from collections.abc import Callable, Sequence

ReadMemory = Callable[[int, int], bytes]
"""Bytes of the waiting process's memory, by address and size. Raises OSError."""

# By number, from asm/unistd_64.h and asm-generic/unistd.h; only what threads wait in for long.
_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
    17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 26: "msync", 34: "pause",
    35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
    47: "recvmsg", 58: "vfork", 61: "wait4", 69: "msgsnd", 70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync",
    75: "fdatasync", 76: "truncate", 77: "ftruncate", 82: "rename", 87: "unlink", 128: "rt_sigtimedwait",
    130: "rt_sigsuspend", 162: "sync", 202: "futex", 217: "getdents64", 219: "restart_syscall", 220: "semtimedop",
    230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 270: "pselect6", 271: "ppoll", 277: "sync_file_range", 281: "epoll_pwait", 285: "fallocate",
    288: "accept4", 306: "syncfs", 316: "renameat2", 326: "copy_file_range", 332: "statx", 441: "epoll_pwait2",
}  # fmt: skip
_GENERIC = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 35: "unlinkat", 38: "renameat", 45: "truncate",
    46: "ftruncate", 47: "fallocate", 56: "openat", 57: "close", 61: "getdents64", 63: "read", 64: "write", 65: "readv",
    66: "writev", 67: "pread64", 68: "pwrite64", 71: "sendfile", 72: "pselect6", 73: "ppoll", 79: "newfstatat",
    80: "fstat", 81: "sync", 82: "fsync", 83: "fdatasync", 84: "sync_file_range", 95: "waitid", 98: "futex",
    101: "nanosleep", 115: "clock_nanosleep", 128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait",
    188: "msgrcv", 189: "msgsnd", 192: "semtimedop", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
    211: "sendmsg", 212: "recvmsg", 227: "msync", 242: "accept4", 260: "wait4", 267: "syncfs", 276: "renameat2",
    285: "copy_file_range", 291: "statx", 441: "epoll_pwait2",
}  # fmt: skip
_NAMES = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}.get(os.uname().machine, {})

WRITE_BACK = frozenset(
    {"fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync", "close", "fallocate", "truncate", "ftruncate",
     "rename", "renameat", "renameat2", "unlink", "unlinkat", "copy_file_range", "sendfile"}
)  # fmt: skip
"""Calls in which the kernel may work for minutes on a slow disk while no counter of the process moves."""

UNREADABLE = -1.0
_NEVER_MS = 0xFFFFFFFF  # -1 as a 32-bit int

TIMER_ABSTIME, CLOCK_REALTIME = 1, 0  # <time.h>
FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_CLOCK_REALTIME, _FUTEX_OPERATION = 0, 9, 256, 0x7F  # <linux/futex.h>
_MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}  # which argument
_RELATIVE = {"nanosleep": 0, "ppoll": 2, "pselect6": 4, "rt_sigtimedwait": 2, "semtimedop": 3, "epoll_pwait2": 3}


def call_name(number: int) -> str:
    """The name of a system call; empty if it is none that threads wait in."""
    return _NAMES.get(number, "")


def wait_limit_s(name: str, arguments: Sequence[int], read: ReadMemory) -> float | None:
    """After how long a wait in this call ends by itself, at the latest; None: never, UNREADABLE: nobody can tell.

    A relative limit may have begun long ago, so what it says is the most that can be left.
    """
    if not name or name == "restart_syscall" or len(arguments) < 6:  # the latter: a signal interrupted it, it goes on
        return UNREADABLE
    if name in _MILLISECONDS:
        limit_ms = arguments[_MILLISECONDS[name]] & _NEVER_MS
        return None if limit_ms > _NEVER_MS // 2 else limit_ms / 1000
    try:
        if name == "clock_nanosleep":
            limit_s = _seconds(read, arguments[2])
            return max(0.0, limit_s - _now(arguments[0])) if arguments[1] & TIMER_ABSTIME else limit_s
        if name == "futex":
            return _futex_limit_s(arguments, read)
        if name == "select":
            return None if arguments[4] == 0 else _seconds(read, arguments[4], parts=1e6)
        if name in _RELATIVE:
            address = arguments[_RELATIVE[name]]
            return None if address == 0 else _seconds(read, address)
    except (OSError, struct.error):
        return UNREADABLE
    return None


def _futex_limit_s(arguments: Sequence[int], read: ReadMemory) -> float | None:
    operation, address = arguments[1], arguments[3]
    if address == 0:
        return None
    if operation & _FUTEX_OPERATION == FUTEX_WAIT:
        return _seconds(read, address)
    if operation & _FUTEX_OPERATION == FUTEX_WAIT_BITSET:
        clock = CLOCK_REALTIME if operation & FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
        return max(0.0, _seconds(read, address) - _now(clock))
    return UNREADABLE


def _now(clock: int) -> float:
    return float(time.clock_gettime(clock))


def _seconds(read: ReadMemory, address: int, parts: float = 1e9) -> float:
    """Seconds of a timespec, or a timeval with `parts` = 1e6, of a 64-bit process."""
    seconds, rest = struct.unpack("=qq", read(address, 16))
    return float(seconds + rest / parts)
