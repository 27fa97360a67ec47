"""Whether a silent job hangs, judged by what its processes did while somebody looked.

Silence alone proves little: a compilation, an evaluation or a slow disk is silent too, so a limit for silence alone has
to be long (`hang_detection.py`). A process that does nothing proves more. After a minute of silence the runner looks
several times at the worker and at all that it started (`looks.py`), and `judge_silence` says what that shows.

What counts as life, in the order in which it is looked for:

* A **debugger** holds the process, or its **control group is frozen**: a person, or the host, has stopped it and will
  let it go on. That silence is not its doing and is not counted.
* **Processes begin or end**: somebody starts them; a compiler that is run a hundred times, a shell pipeline.
* **Bytes move**, read or written by any process of the tree: a save, a download, a slow disk or mount. A
  thread that the kernel puts to sleep in a read and wakes for each page has bytes moving even where the counters move
  only at the end; it is seen by its count of context switches.
* **CPU time** passes, in whichever thread or child: XLA, nvcc and ptxas compile in either, an evaluation computes. So
  does a thread that waits for a CPU on a busy host.
* The main thread **wakes up now and then**: it polls for something, however little it does. Nobody can tell from
  outside whether what it polls for will come, so that is no evidence of a hang.
* The main thread, or that of a child, waits in a call that **ends by itself**, before the silence would be a hang
  anyway: a pause before a request is repeated. `time.sleep(1e9)` does not.
* A **disk makes something durable** (fsync and its kind): while the kernel writes, no counter of the process moves.
* A **lock on a file** is waited for: another job may hold it while it fills a cache that both use.
* The **host's network or disks are busy** while a thread waits for a file: a file system in user space, or its server,
  may be fetching a whole file before it answers.
* A **GPU** computes (`gpu_activity.py`), or an accelerator is in use and nobody has measured what it does: its
  host waits meanwhile, asleep or in a loop. A GPU that is idle all the time, or that spins, excuses nothing.
* **Another host** may be what is waited for: the other ranks of a gang save or evaluate.

If nothing of that is found, and the kernel has not run the main thread at all, nothing inside can wake it: a deadlock,
a pipe that nobody reads, a peer that has left, a mount whose server is gone. That is a hang; and so is a worker that a
signal stopped (state T) and nobody continues.

An **endless loop** looks like a long computation, since both use a CPU. It counts as a hang only in a section that is
short by nature (a step, waiting for data), if no silence that the job survived there was ever as long, if the main
thread alone computes, all the time, without I/O and without touching new memory (a compilation needs memory all
the time), and if its Python stack was the same at all of at least MIN_STACKS looks: the same functions at the same
lines, except for the line of the innermost function. Whoever waits for a GPU may loop like that, too, so it is none
while a GPU may compute. A single call into native code that takes minutes on one CPU, in memory that it already has,
can look the same. So whatever was judged here ends an attempt at one place only once: if the next one is silent at the
same step too, it has the whole limit for silence.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.failures.gpu_activity import GpuActivity
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.looks import Call, SilenceEvidence, ThreadEvidence
from supervisor.protocol.plurals import counted, counted_bytes

USUAL_STEPS = 20.0  # a job whose steps take long is looked at later: a step may take several times as long as usual
LONGEST_LOOK_S = 30.0  # long enough to see a slow poll, or that a stack stays the same
LOOKS = 6
MIN_STACKS = 4
LOOK_AGAIN_S = 30.0  # of a job that was alive: it may hang a moment later
IDLE_CPUS = 0.02  # of one CPU: threads that watch, report and keep connections open use less
NAMED_PROCESSES, NAMED_PLACES = 3, 3  # in a reason
STARVED = 0.2  # of the time a thread waited for a CPU; one that only wakes up now and then waits for less
IDLE_BYTES_A_SECOND = 1024.0  # a log line now and then; the slowest disk moves more
BUSY_HOST_BYTES_A_SECOND = 256 * 1024.0  # between any two looks
FULL_CPU = 0.9  # of the time, running or ready to run
ALONE_CPUS = 0.05  # of one CPU, used by all other threads together
NEW_PAGES_A_SECOND = 50.0  # page faults; a compiler touches thousands a second


@dataclass(frozen=True, slots=True)
class Hang:
    """It will not go on by itself; `why`, for people."""

    word: ClassVar[str] = "hang"

    why: str


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """It does something. `is_paused`: it was stopped by somebody who will let it go on, so silence does not count."""

    word: ClassVar[str] = "alive"

    why: str
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may go on by itself."""

    word: ClassVar[str] = "unknown"

    why: str


Verdict = Hang | SignOfLife | Unknown


@dataclass(frozen=True, slots=True)
class SilenceContext:
    """What is known of the silence. `silent_s`: how long it lasts; `longest_s`: the longest in this section that the
    job survived; `patience_s`: until it is a hang without evidence; `waits_elsewhere`: other hosts train the same job.
    """

    section: LoopSection
    silent_s: float
    longest_s: float
    patience_s: float
    waits_elsewhere: bool = False


def usual_step_s(steps_s: tuple[float, ...]) -> float | None:
    """What a step usually takes: the median of the last few; None if none is known."""
    return sorted(steps_s)[len(steps_s) // 2] if steps_s else None


def least_silence_s(floor_s: float, step_s: float) -> float:
    """How long a silence has to be before evidence makes it a hang."""
    return max(floor_s, USUAL_STEPS * step_s)


def look_for_s(least_s: float) -> float:
    """For how long is looked, at the end of the least silence."""
    return min(LONGEST_LOOK_S, least_s / 2)


def judge_silence(evidence: SilenceEvidence, context: SilenceContext) -> Verdict:
    """What the evidence says. The text of this module explains each rule."""
    main = next((thread for thread in evidence.threads if thread.pid == evidence.pid and thread.is_main), None)
    if main is None or evidence.over_s <= 0:
        return Unknown("its processes could not be looked at")
    if (pause := _pause(evidence, main)) is not None:
        return pause
    if set(main.states) == {"T"}:
        return Hang("a signal stopped it (state T), and nothing continues it")
    if evidence.processes_changed:
        return SignOfLife("its processes begin and end")
    io_bytes_s = (evidence.io_bytes or 0) / evidence.over_s
    if io_bytes_s >= IDLE_BYTES_A_SECOND:
        return SignOfLife(f"it reads or writes {counted_bytes(round(io_bytes_s))} a second")
    starved = [thread for thread in evidence.threads if thread.ready_s >= STARVED * evidence.over_s]
    if starved or evidence.cpu_s >= IDLE_CPUS * evidence.over_s:
        return _judge_busy(evidence, context, main, starved)
    return _judge_idle(evidence, context, main)


def wants_stack(states: str) -> bool:
    """Whether the main thread's stack helps, by its state at each look so far: only if it may be in an endless loop.

    A thread that computes is in no system call, which the request would interrupt.
    """
    return bool(states) and set(states) == {"R"}


def _pause(evidence: SilenceEvidence, main: ThreadEvidence) -> SignOfLife | None:
    if evidence.traced_by is not None or "t" in main.states:
        who = "a debugger" if evidence.traced_by is None else f"a debugger (pid {evidence.traced_by})"
        return SignOfLife(f"{who} is attached", is_paused=True)
    if evidence.is_frozen:
        return SignOfLife("its control group is frozen", is_paused=True)
    return None


def _judge_busy(
    evidence: SilenceEvidence, context: SilenceContext, main: ThreadEvidence, starved: list[ThreadEvidence]
) -> Verdict:
    cpus = evidence.cpu_s / evidence.over_s
    alive = SignOfLife(f"it uses {cpus:.2g} CPUs" + (" and waits for more" if starved else ""))
    busy_s = main.ran_s + main.ready_s
    others_s = evidence.cpu_s - main.ran_s + sum(thread.ready_s for thread in starved if thread is not main)
    is_loop = (
        context.section in (LoopSection.STEP, LoopSection.DATA)
        and context.longest_s < context.silent_s
        and set(main.states) == {"R"}
        and busy_s >= FULL_CPU * evidence.over_s
        and others_s <= ALONE_CPUS * evidence.over_s + _TICK_S * evidence.processes
        and evidence.faults <= NEW_PAGES_A_SECOND * evidence.over_s
        and evidence.io_bytes is not None
        and not _may_compute_on_gpu(evidence)
    )
    if not is_loop or (place := _same_place(evidence.stacks)) is None:
        return alive
    return Hang(
        f"it computes without end at one place ({place}): the same stack at {len(evidence.stacks)} looks within "
        f"{evidence.over_s:.0f} s, no I/O, no new memory, no other thread computes"
    )


def _may_compute_on_gpu(evidence: SilenceEvidence) -> bool:
    return evidence.gpu is GpuActivity.BUSY or (evidence.has_accelerator and evidence.gpu is None)


_TICK_S = 0.01  # to which the kernel rounds the CPU time of a process


def _same_place(stacks: tuple[tuple[str, ...], ...]) -> str | None:
    """The innermost function, if all stacks are the same but for the line in it."""
    if len(stacks) < MIN_STACKS or len({(_function(stack[0]), *stack[1:]) for stack in stacks}) != 1:
        return None
    return _function(stacks[0][0])


def _function(frame: str) -> str:
    """A frame, `FILE:LINE FUNCTION`, without its line."""
    place, _, name = frame.rpartition(" ")
    return f"{name} in {place.rpartition(':')[0]}"


def _judge_idle(evidence: SilenceEvidence, context: SilenceContext, main: ThreadEvidence) -> Verdict:
    if not main.slept:
        return Unknown("its main thread wakes up now and then")
    if evidence.io_bytes is None:
        return Unknown("what it reads and writes is not shown to the daemon")
    mains = [thread for thread in evidence.threads if thread.is_main]
    for thread in mains:
        if thread.slept and thread.is_timed and (thread.wakes_in_s or 0.0) < context.patience_s:
            left = "a while" if thread.wakes_in_s is None else f"at most {thread.wakes_in_s:.0f} s more"
            return Unknown(f"{_whose(thread, evidence)} waits for {left}")
    if any(thread.call is Call.WRITE_BACK for thread in evidence.threads):
        return Unknown("it waits for a disk to write")
    if any(thread.is_main and thread.call is Call.LOCK for thread in evidence.threads):
        return Unknown("it waits for a lock on a file, which another program may hold")
    is_remote = any(thread.call is Call.REMOTE for thread in evidence.threads)
    if is_remote and evidence.network_bytes_s >= BUSY_HOST_BYTES_A_SECOND:
        return Unknown("it waits for a file server, and this host's network is busy")
    in_disk_sleep = any(set(thread.states) == {"D"} and thread.call is Call.OTHER for thread in evidence.threads)
    if in_disk_sleep and evidence.disk_bytes_s >= BUSY_HOST_BYTES_A_SECOND:
        return Unknown("it waits for a disk, and this host's disks are busy")
    if _may_compute_on_gpu(evidence):
        return SignOfLife("a GPU computes") if evidence.gpu is not None else Unknown("an accelerator may be computing")
    if context.waits_elsewhere:
        return Unknown("it may wait for another host")
    return Hang(f"no CPU time, no I/O{_gpu(evidence)}, {_waits(evidence, main)}")


def _whose(thread: ThreadEvidence, evidence: SilenceEvidence) -> str:
    return "its main thread" if thread.pid == evidence.pid else f"its process {thread.pid} ({thread.name})"


def _gpu(evidence: SilenceEvidence) -> str:
    return {GpuActivity.IDLE: ", an idle GPU", GpuActivity.SPINNING: ", a GPU that only spins"}.get(
        evidence.gpu or GpuActivity.BUSY, ""
    )


def _waits(evidence: SilenceEvidence, main: ThreadEvidence) -> str:
    """Where its threads wait: the main thread first, then those of other processes, such as ranks, then all others."""
    others = [thread for thread in evidence.threads if thread is not main]
    mains = [thread for thread in others if thread.is_main][:NAMED_PROCESSES]
    parts = [
        f"the main thread {_waits_in(main)}",
        *(f"that of process {other.pid} {_waits_in(other)}" for other in mains),
    ]
    places = Counter(_place(thread) for thread in others if thread not in mains)
    if places:
        most = ", ".join(f"{count} in {place}" for place, count in places.most_common(NAMED_PLACES))
        parts.append(f"{counted(sum(places.values()), 'other thread')}: {most}")
    return "; ".join(parts)


def _waits_in(thread: ThreadEvidence) -> str:
    if set(thread.states) == {"T"}:
        return "is stopped by a signal"
    return f"waits {'in disk sleep ' if thread.states[-1] == 'D' else ''}in {_place(thread)}"


def _place(thread: ThreadEvidence) -> str:
    return thread.waits_in or "an unknown place"
