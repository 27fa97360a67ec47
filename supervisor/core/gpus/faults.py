"""What a fault of a GPU means and what follows from it: one table, from which the lists of docs/gpus.md are made.

`python -m supervisor.core.gpus.faults` prints them. The numbers and what they mean are those of NVIDIA's catalogue of
Xid errors and of its guide to memory errors; what follows is ours. Numbers that are not in the table occur with each
new driver, and are not fatal by themselves: they are noted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.gpus.xid import RECOVERY_CHANGED, XidLine


class Follows(StrEnum):
    """What follows from a fault for the jobs that use the GPU."""

    NOTE = "note"  # it is counted and shown
    RETRY_IF_IT_DIES = "retry, if the job dies"  # the fault is the reason then, and the GPUs stay the same
    RETRY = "retry on the same GPUs"
    AT_NEXT_START = "leave the GPU out at the next start"  # running work is safe
    LEAVE_OUT = "retry without the GPU"


class Remedy(StrEnum):
    """What the operator's hook is asked to do with a GPU that is left out."""

    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `key` names it in files, events and hooks.

    `is_programs`: the program itself causes it as a rule, so it concerns the process that is named and nobody else.
    `answers`: the GPU still computes, so a job can save first. `retries`: how many of them in a day are followed by a
    retry on the same GPU; None: any number. `is_state`: the driver reports it as long as it lasts.
    """

    key: str
    meaning: str
    follows: Follows
    remedy: Remedy | None = None
    is_programs: bool = False
    answers: bool = True
    retries: int | None = None
    is_state: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether the next start is without the GPU."""
        return self.follows in (Follows.LEAVE_OUT, Follows.AT_NEXT_START)


def _programs(meaning: str) -> Fault:
    return Fault("", meaning, Follows.RETRY, is_programs=True)


def _broken(meaning: str, remedy: Remedy = Remedy.RESET, *, answers: bool = False) -> Fault:
    return Fault("", meaning, Follows.LEAVE_OUT, remedy, answers=answers)


def _note(meaning: str) -> Fault:
    return Fault("", meaning, Follows.NOTE)


def _maybe(meaning: str) -> Fault:
    return Fault("", meaning, Follows.RETRY_IF_IT_DIES)


_ROWS: tuple[tuple[tuple[int, ...], Fault], ...] = (
    ((13,), _programs("a kernel raised an exception")),
    ((31,), _programs("a kernel touched memory that is not mapped")),
    ((32, 39, 40, 41, 68, 69), _programs("a command buffer, copy engine or video engine failed")),
    ((38, 44, 66, 67), _maybe("the driver's firmware failed")),
    ((43, 45), _note("a consequence of another error, or of a process that was killed")),
    ((46, 62, 110, 158), _broken("the GPU stopped processing")),
    ((48, 171, 172), Fault("", "its memory has an error that can't be corrected", Follows.RETRY, retries=3)),
    ((54,), _note("its power cable is not connected")),
    ((56, 57, 58, 61, 122, 123, 124, 125, 138), _note("no longer used, or nothing that concerns training")),
    ((63,), _note("a bad row of memory will be replaced at the next reset")),
    ((64,), _broken("a bad row of memory could not be recorded for replacement", answers=True)),
    ((74,), _broken("an NVLink connection failed", answers=True)),
    ((79,), _broken("it fell off the bus", Remedy.REBOOT)),
    ((92,), _note("many corrected memory errors")),
    ((94,), Fault("", "a memory error that was contained; reset the GPU when it is idle", Follows.RETRY, retries=3)),
    ((95, 140), _broken("a memory error that was not contained")),
    ((109,), Fault("", "a context switch took too long", Follows.RETRY, retries=1)),
    ((119, 120), _broken("its system processor (GSP) does not answer")),
    ((121, 137, 141), _maybe("an error of a link, whose peer may be the cause")),
    ((136, 143), _broken("it or its links could not be initialised")),
    ((142, 151, 155, 156, 157, 160, 161), _note("a warning, or a change of power or configuration")),
)
_NVLINK = range(144, 151)

XIDS: Mapping[int, Fault] = {
    number: Fault(
        f"xid-{number}",
        fault.meaning,
        fault.follows,
        fault.remedy,
        fault.is_programs,
        fault.answers,
        fault.retries,
    )
    for numbers, fault in _ROWS
    for number in numbers
}
"""By the number of the Xid, without NVLink 5 (144 to 150), whose lines say themselves whether they are fatal."""


def _state(key: str, meaning: str, remedy: Remedy, follows: Follows = Follows.LEAVE_OUT, answers: bool = True) -> Fault:
    return Fault(key, meaning, follows, remedy, answers=answers, is_state=True)


RECOVERY: Mapping[int, Fault] = {
    1: _state("recovery-1", "the driver asks for a reset of the GPU", Remedy.RESET),
    2: _state("recovery-2", "the driver asks for a reboot of the host", Remedy.REBOOT),
    3: _state("recovery-3", "the driver asks to end traffic between GPUs", Remedy.INSPECT),
    4: _state("recovery-4", "it works at reduced capacity until its next reset", Remedy.RESET, Follows.AT_NEXT_START),
    5: _state("recovery-5", "the driver asks to recover its domain", Remedy.INSPECT, Follows.AT_NEXT_START),
    6: _state("recovery-6", "the driver asks for a reset of the bus", Remedy.RESET),
    7: _state("recovery-7", "the driver asks for a reboot of the system", Remedy.REBOOT),
}
"""By NVML's field 230, what the driver wants to have done (0: nothing); what newer drivers add is left out."""


def recovery_fault(action: int) -> Fault | None:
    """The fault behind a recovery action; None if nothing has to be done."""
    if action == 0:
        return None
    return RECOVERY.get(action) or _state(
        f"recovery-{min(action, 999)}", f"the driver asks for recovery action {action}", Remedy.INSPECT
    )


LOST = _state("lost", "GPU is lost", Remedy.REBOOT, answers=False)
GONE = _state("gone", "it was there before and is not listed any more", Remedy.REBOOT, answers=False)
RESET_REQUIRED = _state("reset-required", "GPU requires a reset", Remedy.RESET, answers=False)
REMAP_FAILED = _state(
    "remap-failed", "its memory has errors that could not be repaired (row remapping failed)", Remedy.REPLACE
)
VERSION_MISMATCH = _state(
    "version-mismatch",
    "NVIDIA's driver was upgraded while its module was loaded; jobs that run go on, new ones get no GPU",
    Remedy.REBOOT,
    Follows.AT_NEXT_START,
)
REMAP_PENDING = Fault(
    "remap-pending", "a bad row of memory is replaced at the next reset; work may start", Follows.NOTE
)
ECC_UNCORRECTED = Fault("ecc-uncorrected", "more memory errors that can't be corrected", Follows.NOTE)
ECC_CORRECTED = Fault("ecc-corrected", "over 100 corrected memory errors a minute", Follows.NOTE)
SLOWDOWN = Fault("slowdown", "its clocks are held down by heat or by its power supply", Follows.NOTE)
NVLINK_ERRORS = Fault("nvlink-errors", "more errors on its NVLink connections", Follows.NOTE)

NVML_FAULTS = (
    LOST,
    GONE,
    RESET_REQUIRED,
    *RECOVERY.values(),
    REMAP_FAILED,
    VERSION_MISMATCH,
    REMAP_PENDING,
    ECC_UNCORRECTED,
    ECC_CORRECTED,
    SLOWDOWN,
    NVLINK_ERRORS,
)


def xid_fault(line: XidLine) -> Fault | None:
    """What kind of fault a line of the kernel's log is; None if it says that a GPU needs nothing any more."""
    if line.number == RECOVERY_CHANGED:
        return recovery_fault(line.recovery) if line.recovery is not None else _unknown(line.number)
    if line.number in _NVLINK:
        return nvlink_fault(line.number, bool(line.is_fatal))
    return XIDS.get(line.number) or _unknown(line.number)


def nvlink_fault(number: int, is_fatal: bool) -> Fault:
    """An error of NVLink 5."""
    if is_fatal:
        return Fault(f"xid-{number}", "a fatal NVLink error", Follows.LEAVE_OUT, Remedy.RESET)
    return Fault(f"xid-{number}", "an NVLink error that is not fatal", Follows.NOTE)


def _unknown(number: int) -> Fault:
    return Fault(f"xid-{number}", "an error that is not in the table", Follows.NOTE)


def _lists() -> str:
    """One list of faults for each thing that follows."""
    faults = [(f"Xid {', '.join(map(str, numbers))}", fault) for numbers, fault in _ROWS]
    faults = [named for named in faults if named[1].follows is not Follows.NOTE]
    faults.append(("Xid 144 to 150, `Fatal`", nvlink_fault(144, True)))
    faults += [(f"`{fault.key}`", fault) for fault in NVML_FAULTS]
    lists: dict[str, list[str]] = {}
    for name, fault in faults:
        lists.setdefault(_what_follows(fault), []).append(f"- {name}: {fault.meaning}")
    lists[_what_follows(recovery_fault(999) or LOST)].append("- any other `recovery-N`")
    lists[str(Follows.NOTE)].append("- any other Xid: what follows from another error, or a warning")
    return "\n\n".join(f"{follows[0].upper()}{follows[1:]}:\n\n" + "\n".join(lines) for follows, lines in lists.items())


def _what_follows(fault: Fault) -> str:
    follows = str(fault.follows)
    if fault.retries is not None:
        follows += f"; without it after {fault.retries} in a day"
    if fault.is_programs:
        follows += " (the process that is named)"
    if fault.follows is Follows.LEAVE_OUT:
        follows += ", saved first" if fault.answers else ", without a save"
    return f"{follows}; the hook is asked to {fault.remedy}" if fault.remedy else follows


def describe(fault: Fault, detail: str = "") -> str:
    """The fault in words, without the GPU: `Xid 79: it fell off the bus`."""
    name = f"Xid {fault.key.removeprefix('xid-')}: {fault.meaning}" if fault.key.startswith("xid-") else fault.meaning
    more = f" ({detail})" if detail and not fault.key.startswith("xid-") else ""
    return f"{name}{more}"


if __name__ == "__main__":
    print(_lists())  # noqa: T201
