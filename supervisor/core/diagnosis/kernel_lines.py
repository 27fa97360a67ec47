"""Which lines of the kernel's log say something of a death, and of whose.

Such a line holds names that any user of the host chooses: of a process (at most 15 characters), of the file in which it
crashed, of a control group. So whom a line is about is read where the kernel writes it, and nowhere else.
"""

import re
from collections.abc import Container

WORDS = (
    *("illed process", "Kill process", "oom-kill:", "segfault at", "traps: ", "NVRM: ", "blocked for more than"),
    *("I/O error", "emounting filesystem read-only", "EXT4-fs error", "XFS (", "BTRFS error", "nfs: server"),
    *("Hardware Error", "hung_task", "soft lockup"),
)
"""One of these is in each line that a rule may know."""

CUT_AT = 900  # characters; the kernel cuts a longer line, and what is its end then may be a name
_PID = r"(\d{1,10})"
_KILL = re.compile(
    rf"(?:(?:Memory cgroup out of memory|Out of memory(?: \([^)]{{1,40}}\))?): )?Kill(?:ed)? process {_PID}\b"
)
_OOM = re.compile(rf"oom-kill:constraint=.*,task_memcg=(.*),task=.{{0,15}},pid={_PID},uid=\d{{1,10}}")
_CRASH = re.compile(
    rf".{{0,15}}\[{_PID}\]: segfault at ([0-9a-f]{{1,16}}) (?:ip [0-9a-f]{{1,16}} sp ([0-9a-f]{{1,16}}) )?"
)
_TRAP = re.compile(rf"traps: .{{0,15}}\[{_PID}\] ")
_BLOCKED = re.compile(rf"INFO: task .{{0,15}}:{_PID} (?:is )?blocked ")
_XID = re.compile(rf"NVRM: Xid \([^)]{{1,64}}\): (\d{{1,4}})\b(?:, pid={_PID}\b)?")
_STACK_BYTES = 65_536  # so near the stack pointer, an access is one of the stack


def may_matter(text: str) -> bool:
    """Whether a rule may know this line."""
    return any(word in text for word in WORDS)


def names_one_of(text: str, pids: Container[int]) -> bool:
    """Whether the line is about one of these processes."""
    return _pid_of(text) in pids


def killed_of_cgroup(text: str, cgroup: str | None) -> int | None:
    """The process of this control group, or of one in it, of which the line says that it was killed for memory."""
    killed = _OOM.fullmatch(text) if len(text) < CUT_AT else None
    if killed is None or cgroup is None or len(cgroup) < 2 or not f"{killed[1]}/".startswith(f"{cgroup}/"):
        return None
    return int(killed[2])


def killed_pid(text: str) -> int | None:
    """The process that was killed for memory."""
    match = _KILL.match(text)
    return None if match is None else int(match[1])


def xid(text: str) -> int | None:
    """The number of an Xid."""
    match = _XID.match(text)
    return None if match is None else int(match[1])


def is_stack_overflow(text: str) -> bool:
    """Whether a segmentation fault was one of the stack, as its address is next to the stack pointer."""
    match = _CRASH.match(text)
    return match is not None and match[3] is not None and abs(int(match[2], 16) - int(match[3], 16)) < _STACK_BYTES


def is_of_one_process(text: str) -> bool:
    """Whether it says something of a process, and nothing of the host, whatever name may stand in it."""
    return text.startswith("oom-kill:") or any(line.match(text) for line in (_KILL, _CRASH, _TRAP, _BLOCKED))


def _pid_of(text: str) -> int | None:
    if text.startswith("oom-kill:"):
        killed = _OOM.fullmatch(text) if len(text) < CUT_AT else None
        return None if killed is None else int(killed[2])
    for line, group in ((_KILL, 1), (_CRASH, 1), (_TRAP, 1), (_BLOCKED, 1), (_XID, 2)):
        if (match := line.match(text)) is not None and match[group] is not None:
            return int(match[group])
    return None
