"""Why did it die? One function from all that is known of a death to one diagnosis; the table is in `rules.py`."""

import re
from collections.abc import Iterable, Sequence

from supervisor.core.diagnosis import kernel_lines
from supervisor.core.diagnosis.evidence import DeathKind, Diagnosis, Evidence, KernelLine, Source
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.diagnosis.output import Output, RaisedException, read_output, shown
from supervisor.core.diagnosis.rules import (
    ABORTS,
    EXCEPTIONS,
    FROM_OUTSIDE,
    GPU_KINDS,
    KERNEL_RULES,
    NOT_FOUND,
    SIGNALS,
    TEXT_RULES,
    USAGE,
    XIDS,
    About,
    TextRule,
)
from supervisor.core.failures.restart import describe_exit

NEAR_S = 60.0  # a line of the kernel that names no process counts for so long
CHILD_S = 30.0  # so long after a child was killed for memory, the end of its parent may follow from it
LAST_LINES = 60  # of what was printed before a fatal signal
SHARED_MEMORY = "shared memory"
"""The use of the disk that is none (`Disk.use`)."""
NO_BYTES = 1 << 20  # a disk with less than that is full
SHELL_SIGNAL = 128  # a shell's status for a command that a signal ended is this and the signal's number
WHY_IT_HUNG = frozenset({DeathKind.HUNG_TASK, DeathKind.GPU_LOST})
"""What of the kernel's log explains why this daemon had to end a process."""
_NAMED_PID = re.compile(r"\bpid[^\w]{0,4}(\d{1,10})\b")
_SHELL_PID = re.compile(
    r"line \d{1,6}: +(\d{1,10}) (?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction)"
)
_CHILD_KINDS = frozenset(
    {
        DeathKind.CHILD,
        DeathKind.DATA_WORKER,
        DeathKind.PEER,
        DeathKind.COLLECTIVE,
        DeathKind.COLLECTIVE_TIMEOUT,
        DeathKind.STATUS,
        DeathKind.UNKNOWN,
    }
)
_GPU_WORDS = ("GPU", "gpu", "CUDA", "cuda", "NCCL", "nccl")


def diagnose(evidence: Evidence) -> Diagnosis:
    """Why a process died. The kernel's log is trusted most, the exit status least."""
    output = read_output(evidence.stderr)
    said = _by_its_words(evidence, output)
    return _by_kernel(evidence, output, said) or _by_gpus(evidence, said) or _by_cgroup(evidence, said) or said


def diagnosis_of(kind: DeathKind, line: str, source: Source) -> Diagnosis:
    """A diagnosis with the texts of its kind."""
    meaning = MEANINGS[kind]
    return Diagnosis(kind, meaning.what, shown(line), source, meaning.who, meaning.advice)


# --- the kernel's log ---


def _by_kernel(evidence: Evidence, output: Output, said: Diagnosis) -> Diagnosis | None:
    lines = tuple(line for line in evidence.kernel or () if kernel_lines.may_matter(line.text))
    if not lines:
        return None
    own = [line for line in lines if kernel_lines.names_one_of(line.text, evidence.pids)]
    of_children = _of_children(evidence, output, lines) if _may_follow_from_child(said) else []
    for rule in KERNEL_RULES:
        if evidence.decided is not None and rule.kind not in WHY_IT_HUNG:
            continue
        match rule.about:
            case About.PROCESS:
                candidates = [*own, *of_children]
            case About.GPU:
                candidates = [*own, *(_near(lines) if _is_about_gpus(evidence, said) else [])]
            case About.HOST:
                candidates = _near(lines) if said.kind in rule.fits else []
        for line in candidates:
            if not any(_has(line.text, piece) for piece in rule.pieces):
                continue
            if rule.kind is DeathKind.STACK_OVERFLOW and not kernel_lines.is_stack_overflow(line.text):
                continue
            if rule.kind is DeathKind.SEGFAULT and said.kind is DeathKind.STACK_OVERFLOW:
                return said
            return diagnosis_of(rule.kind, _telling_line(line, candidates).text, Source.KERNEL)
    return _by_xid(evidence, said, own, lines)


def _by_xid(
    evidence: Evidence, said: Diagnosis, own: Sequence[KernelLine], lines: Sequence[KernelLine]
) -> Diagnosis | None:
    if said.kind in FROM_OUTSIDE or (said.kind not in GPU_KINDS and not _is_about_gpus(evidence, said)):
        return None
    near = [line for line in _near(lines) if "pid=" not in line.text] if _is_about_gpus(evidence, said) else []
    for kind, numbers in XIDS.items():
        for line in [*own, *near]:
            if kernel_lines.xid(line.text) in numbers:
                return diagnosis_of(kind, line.text, Source.KERNEL)
    return None


def _near(lines: Iterable[KernelLine]) -> list[KernelLine]:
    """Those that say something of the host just now."""
    return [line for line in lines if line.age_s <= NEAR_S and not kernel_lines.is_of_one_process(line.text)]


def _may_follow_from_child(said: Diagnosis) -> bool:
    return said.kind in _CHILD_KINDS or said.kind is DeathKind.KILLED or "SIGKILL" in said.line or "Killed" in said.line


def _of_children(evidence: Evidence, output: Output, lines: Sequence[KernelLine]) -> list[KernelLine]:
    """Lines about processes that it had started: in its control group, or named by what it printed."""
    text = "\n".join(output.lines[-LAST_LINES:])
    named = {int(pid) for pid in (*_NAMED_PID.findall(text), *_SHELL_PID.findall(text))}
    for line in lines:
        if (killed := kernel_lines.killed_of_cgroup(line.text, evidence.cgroup)) is not None:
            named.add(killed)
    return [line for line in lines if line.age_s <= CHILD_S and kernel_lines.names_one_of(line.text, named)]


def _telling_line(line: KernelLine, candidates: Sequence[KernelLine]) -> KernelLine:
    """Of the lines of one out-of-memory kill, the one that says how large the process was."""
    if "oom-kill:" not in line.text:
        return line
    return next((other for other in candidates if kernel_lines.killed_pid(other.text) is not None), line)


def _is_about_gpus(evidence: Evidence, said: Diagnosis) -> bool:
    return said.kind in GPU_KINDS or any(word in evidence.stderr[-4000:] for word in ("CUDA", "cuda", "NCCL", "GPU"))


# --- GPUs and the control group ---


def _by_gpus(evidence: Evidence, said: Diagnosis) -> Diagnosis | None:
    """What the GPU guard found, if the program's words are about GPUs, or a signal ended it that nobody sent."""
    if not evidence.gpu or said.kind in FROM_OUTSIDE or said.kind is DeathKind.GPU_MEMORY:
        return None
    if said.kind not in GPU_KINDS and evidence.signal is None:
        return None
    kind = DeathKind.GPU_LOST if "fallen off" in evidence.gpu[0] or "lost" in evidence.gpu[0] else DeathKind.GPU_FAULT
    return diagnosis_of(kind, evidence.gpu[0], Source.GPU)


def _by_cgroup(evidence: Evidence, said: Diagnosis) -> Diagnosis | None:
    if evidence.oom is None or not _may_follow_from_child(said):
        return None
    kind = DeathKind.CGROUP_MEMORY if "cgroup" in evidence.oom else DeathKind.HOST_MEMORY
    return diagnosis_of(kind, evidence.oom, Source.CGROUP)


# --- what it said ---


def _by_its_words(evidence: Evidence, output: Output) -> Diagnosis:
    how = describe_exit(evidence.code, evidence.signal)
    if evidence.error is not None:
        return _by_error(evidence.error)
    if evidence.decided is not None:
        return diagnosis_of(DeathKind.BY_DAEMON, evidence.decided, Source.DAEMON)
    signal = evidence.signal or (None if evidence.reported is not None else _signal_of_shell(evidence))
    if signal is not None:
        return _by_signal(evidence, output, signal, how)
    if evidence.reported is not None:
        reported = RaisedException(tuple(evidence.reported.split("\n")))
        return _by_exception(evidence, output, reported, Source.REPORT)
    if evidence.code in (0, None):
        return diagnosis_of(DeathKind.UNKNOWN if evidence.code is None else DeathKind.STATUS, how, Source.STATUS)
    if output.exception is not None:
        return _by_exception(evidence, output, output.exception, Source.STDERR)
    return _by_last_lines(evidence, output, how)


def _by_error(error: str) -> Diagnosis:
    """There is no process: it could not be started."""
    rule, line = _first_match(TEXT_RULES, [error])
    return diagnosis_of(rule.kind if rule else DeathKind.COMMAND, line or error, Source.DAEMON)


def _signal_of_shell(evidence: Evidence) -> int | None:
    if evidence.code is None or evidence.code <= SHELL_SIGNAL:
        return None
    number = evidence.code - SHELL_SIGNAL
    return number if number in SIGNALS else None


def _by_signal(evidence: Evidence, output: Output, signal: int, how: str) -> Diagnosis:
    kind = SIGNALS.get(signal, DeathKind.OTHER_SIGNAL)
    if kind in FROM_OUTSIDE:
        return diagnosis_of(kind, how, Source.STATUS)
    last = output.lines[-LAST_LINES:]
    rule, line = _first_match(TEXT_RULES, last)
    if rule is not None and not rule.is_vague and line is not None:
        return _of_line(evidence, output, rule.kind, line, Source.STDERR)
    if kind is DeathKind.ABORT:
        abort, its_line = _first_match(ABORTS, last)
        if abort is not None and its_line is not None:
            kind, line = (abort.kind, its_line) if rule is None else (rule.kind, line or its_line)
            if output.fatal is not None and line.startswith("Fatal Python error"):
                line = output.fatal
            return diagnosis_of(kind, line, Source.STDERR)
    if rule is not None and line is not None:
        return diagnosis_of(rule.kind, line, Source.STDERR)
    if kind is DeathKind.BUS_ERROR and any(
        disk.use == SHARED_MEMORY and disk.free_bytes < NO_BYTES for disk in evidence.disks
    ):
        disk = next(disk for disk in evidence.disks if disk.use == SHARED_MEMORY)
        return diagnosis_of(DeathKind.SHARED_MEMORY, f"{disk.path} has {disk.free_bytes} bytes left", Source.DISK)
    if output.fatal is not None:
        overflow = "stack overflow" in output.fatal
        return diagnosis_of(DeathKind.STACK_OVERFLOW if overflow else kind, output.fatal, Source.STDERR)
    return diagnosis_of(kind, how, Source.STATUS)


def _by_exception(evidence: Evidence, output: Output, exception: RaisedException, source: Source) -> Diagnosis:
    rule, line = _first_match(TEXT_RULES, exception.lines)
    is_plain = rule is None and exception.name in EXCEPTIONS
    for cause in output.causes if rule is None and not is_plain else ():
        rule, line = _first_match(TEXT_RULES, cause.lines)
        if rule is not None:
            break
    if (rule is not None and rule.is_vague) or (rule is None and _names_gpu(exception)):
        above, its_line = _first_match([candidate for candidate in TEXT_RULES if candidate.is_anywhere], output.lines)
        if above is not None and not above.is_vague:
            rule, line, source = above, its_line, Source.STDERR
    if rule is not None and line is not None:
        quoted = exception.headline if line in exception.lines[:1] else line
        return _of_line(evidence, output, rule.kind, quoted, source)
    kind = EXCEPTIONS.get(exception.name, DeathKind.EXCEPTION)
    return diagnosis_of(kind, exception.headline, source)


def _names_gpu(exception: RaisedException) -> bool:
    return any(word in line for word in _GPU_WORDS for line in exception.lines[:3])


def _by_last_lines(evidence: Evidence, output: Output, how: str) -> Diagnosis:
    """No signal and no traceback: the last lines, or nothing."""
    if output.last is None:
        return diagnosis_of(DeathKind.STATUS, how, Source.STATUS)
    last = output.lines[-LAST_LINES:]
    rule, line = _first_match(TEXT_RULES, [text for text in last[-8:] if text.strip()])
    if (
        rule is not None
        and line is not None
        and not (evidence.code in (126, 127) and rule.kind is DeathKind.PERMISSION)
    ):
        return _of_line(evidence, output, rule.kind, line, Source.STDERR)
    if evidence.code == 2 and all(any(word in text for text in last) for word in USAGE):
        return diagnosis_of(DeathKind.USAGE, output.last, Source.STDERR)
    if evidence.code == 126 or (evidence.code == 127 and any(word in output.last for word in NOT_FOUND)):
        return diagnosis_of(DeathKind.COMMAND, output.last, Source.STDERR)
    if ": can't open file " in output.last:
        return diagnosis_of(DeathKind.COMMAND, output.last, Source.STDERR)
    return diagnosis_of(DeathKind.EXIT_TEXT, output.last, Source.STDERR)


def _of_line(evidence: Evidence, output: Output, kind: DeathKind, line: str, source: Source) -> Diagnosis:
    """What a line shows; of a full disk, its state tells whether it lacks bytes or inodes, or is in memory."""
    if kind is not DeathKind.DISK_FULL:
        return diagnosis_of(kind, line, source)
    for disk in evidence.disks:
        if disk.free_inodes == 0 and disk.free_bytes >= NO_BYTES // 4:
            return diagnosis_of(DeathKind.INODES, f"{line} ({disk.path} has no inodes left)", source)
    full = [disk for disk in evidence.disks if disk.free_bytes < NO_BYTES]
    is_memory = bool(full) and all(disk.use == SHARED_MEMORY for disk in full)
    if is_memory or any("/dev/shm" in text for text in output.lines[-12:]):  # noqa: S108 - a name in its source
        return diagnosis_of(DeathKind.SHARED_MEMORY, line, source)
    return diagnosis_of(kind, f"{line} ({full[0].path}, {full[0].use})" if full else line, source)


def _first_match(rules: Iterable[TextRule], lines: Sequence[str]) -> tuple[TextRule | None, str | None]:
    """The first rule with a line that has one of its pieces, and that line."""
    text = "\n".join(lines)
    for rule in rules:
        for piece in rule.pieces:
            if piece.partition("…")[0] not in text:
                continue
            line = next((line for line in lines if _has(line, piece)), None)
            if line is not None:
                return rule, line
    return None, None


def _has(line: str, piece: str) -> bool:
    """Whether the line has the parts of a piece, one after the other."""
    at = 0
    for part in piece.split("…"):
        at = line.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
