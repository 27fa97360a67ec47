"""Which lines of the kernel's log say something of a death, and of whose."""

import re
from collections.abc import Iterable

WORDS = (
    *("illed process", "Kill process", "oom-kill:", "segfault at", "traps: ", "NVRM: ", "blocked for more than"),
    *("I/O error", "emounting filesystem read-only", "EXT4-fs error", "XFS (", "BTRFS error", "nfs: server"),
    *("Hardware Error", "hung_task", "soft lockup"),
)
"""One of these is in each line that a rule may know."""

_XID = re.compile(r"NVRM: Xid \([^)]{1,64}\): (\d{1,4})\b")
_SEGFAULT = re.compile(r"segfault at ([0-9a-f]{1,16}) ip [0-9a-f]{1,16} sp ([0-9a-f]{1,16}) ")
_KILLED = re.compile(r"[Kk]ill(?:ed)? process (\d{1,10})\b")
_STACK_BYTES = 65_536  # so near the stack pointer, an access is one of the stack


def may_matter(text: str) -> bool:
    """Whether a rule may know this line."""
    return any(word in text for word in WORDS)


def names_one_of(text: str, pids: Iterable[int]) -> bool:
    """Whether the line is about one of these processes."""
    return any(
        f"process {pid} " in text or f"pid={pid}," in text or f"[{pid}]" in text or f":{pid} blocked" in text
        for pid in pids
    )


def is_of_cgroup(text: str, cgroup: str | None) -> bool:
    """Whether the line says that a process of this control group was killed."""
    return (
        cgroup is not None and len(cgroup) > 1 and (f"task_memcg={cgroup}," in text or f"task_memcg={cgroup}/" in text)
    )


def killed_pid(text: str) -> int | None:
    """The process that was killed for memory."""
    match = _KILLED.search(text)
    return None if match is None else int(match[1])


def xid(text: str) -> int | None:
    """The number of an Xid."""
    match = _XID.search(text)
    return None if match is None else int(match[1])


def is_stack_overflow(text: str) -> bool:
    """Whether a segmentation fault was one of the stack, as its address is next to the stack pointer."""
    match = _SEGFAULT.search(text)
    return match is not None and abs(int(match[1], 16) - int(match[2], 16)) < _STACK_BYTES
