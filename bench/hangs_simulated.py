"""Simulated hours of jobs that are silent for long and alive: compilations, evaluations, saves, slow storage.

Each silence is handed to the core as a daemon would: looks when the core asks for them, with evidence that is drawn
anew each time. Nothing waits, so a thousand hours take seconds.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from supervisor.core.failures.gpu_activity import GpuActivity
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.hang_evidence import LOOKS
from supervisor.core.failures.looks import Call, SilenceEvidence, ThreadEvidence
from supervisor.core.job import Job
from supervisor.core.program.effects import Abort, LookAtSilence
from supervisor.core.program.events import (
    CheckpointSelected,
    SilenceObserved,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    TrainingRestored,
)
from supervisor.core.program.facts import Policy

WORKER = 100
POLICY = Policy(name="simulated", is_job=True, hang_timeout_min=600.0, hang_evidence=60.0)
FRAMES = ("model.py:12 call", "train.py:30 step", "train.py:60 main")

Draw = Callable[[random.Random], SilenceEvidence]


def _thread(pid: int = WORKER, **differing: object) -> ThreadEvidence:
    asleep = ThreadEvidence(pid, True, "python", "S" * LOOKS, "futex", Call.OTHER, True, 0.0, 0.0)
    return replace(asleep, **differing)


def _evidence(main: ThreadEvidence, *others: ThreadEvidence, **differing: object) -> SilenceEvidence:
    idle = SilenceEvidence(0.0, 30.0, WORKER, (main, *others), processes=1, io_bytes=0)
    return replace(idle, **differing)


def compiler_in_child(chance: random.Random) -> SilenceEvidence:
    """ptxas, nvcc: the worker waits, a child computes, on a host where it gets little of a CPU."""
    return _evidence(_thread(waits_in="wait4"), cpu_s=30.0 * chance.choice([0.03, 0.3, 1.0]), processes=2)


def compiler_in_threads(chance: random.Random) -> SilenceEvidence:
    """XLA with many threads."""
    return _evidence(_thread(), cpu_s=30.0 * chance.uniform(0.5, 64.0), faults=chance.randint(1000, 10**6))


def compiler_in_main_thread(chance: random.Random) -> SilenceEvidence:
    """XLA with one thread: as an endless loop, except that it touches memory."""
    main = _thread(states="R" * LOOKS, slept=False, ran_s=chance.uniform(20.0, 30.0), ready_s=5.0)
    return _evidence(main, cpu_s=main.ran_s, faults=chance.randint(1600, 10**6), stacks=(FRAMES,) * LOOKS)


def evaluation_on_cpu(chance: random.Random) -> SilenceEvidence:
    """A loop over batches in Python, one thread: its stacks differ."""
    main = _thread(states="R" * LOOKS, slept=False, ran_s=29.0)
    places = [("metrics.py:5 update", *FRAMES[1:]), FRAMES, ("data.py:7 __next__", "train.py:31 step", FRAMES[2])]
    stacks = tuple(chance.choice(places) for _ in range(LOOKS - 1))
    if len(set(stacks)) == 1:
        stacks = (*stacks[:-1], places[0] if stacks[0] != places[0] else places[1])
    return _evidence(main, cpu_s=29.0, faults=chance.randint(0, 1000), stacks=stacks)


def evaluation_on_gpu(chance: random.Random) -> SilenceEvidence:
    """The host only waits, asleep or in a loop; what the GPU does is measured, or not known."""
    gpu = chance.choice([GpuActivity.BUSY, None])
    if chance.random() < 0.5:
        main = _thread(states="R" * LOOKS, slept=False, ran_s=30.0)
        return _evidence(main, cpu_s=30.0, stacks=(FRAMES,) * LOOKS, has_accelerator=True, gpu=gpu)
    return _evidence(_thread(), cpu_s=chance.uniform(0.0, 0.4), has_accelerator=True, gpu=gpu)


def save_that_writes(chance: random.Random) -> SilenceEvidence:
    """Bytes of a checkpoint, to a disk that takes 50 kB/s or more."""
    writer = _thread(is_main=False, states="D" * LOOKS, waits_in="write", slept=False)
    return _evidence(_thread(), writer, io_bytes=chance.randint(30 * 50_000, 10**10))


def save_that_syncs(chance: random.Random) -> SilenceEvidence:
    """All is written, and the disk makes it durable: no counter moves."""
    syncs = chance.choice(["fsync", "fdatasync", "close", "renameat2"])
    writer = _thread(is_main=False, states="D" * LOOKS, waits_in=syncs, call=Call.WRITE_BACK)
    return _evidence(_thread(), writer)


def slow_read(chance: random.Random) -> SilenceEvidence:
    """One large read, page for page: no byte counts before its end, but the kernel wakes the thread."""
    main = _thread(states="".join(chance.choice("DDDS") for _ in range(LOOKS)), waits_in="read", slept=False)
    return _evidence(main, cpu_s=chance.uniform(0.0, 0.3))


def file_server_that_fetches(chance: random.Random) -> SilenceEvidence:
    """FUSE in front of an object store: it fetches the whole file before it answers."""
    main = _thread(waits_in="read (request_wait_answer)", call=Call.REMOTE)
    return _evidence(main, network_bytes_s=chance.uniform(3e5, 1e9))


def download(chance: random.Random) -> SilenceEvidence:
    """A dataset over a bad line."""
    return _evidence(_thread(slept=False), io_bytes=chance.randint(30 * 2000, 10**9), cpu_s=0.1)


def pause_before_retry(chance: random.Random) -> SilenceEvidence:
    """An object store is asked again after a while."""
    return _evidence(_thread(waits_in="clock_nanosleep", is_timed=True, wakes_in_s=chance.uniform(0.0, 60.0)))


def loader_that_polls(chance: random.Random) -> SilenceEvidence:
    """PyTorch's loader waits for its workers, five seconds at a time."""
    return _evidence(_thread(slept=False), _thread(101, slept=False), cpu_s=0.01, processes=2)


def data_workers(chance: random.Random) -> SilenceEvidence:
    """Training waits for data that other processes prepare."""
    return _evidence(_thread(), _thread(101, slept=False), cpu_s=30.0 * chance.uniform(0.1, 8.0), processes=9)


def shell_pipeline(chance: random.Random) -> SilenceEvidence:
    """A script that starts tools one after another."""
    return _evidence(_thread(waits_in="wait4"), processes_changed=True, cpu_s=chance.uniform(0.0, 3.0))


@dataclass(frozen=True)
class Kind:
    draw: Draw
    section: LoopSection
    longest_s: float


KINDS = (
    Kind(compiler_in_child, LoopSection.STEP, 550.0),
    Kind(compiler_in_threads, LoopSection.STEP, 550.0),
    Kind(compiler_in_main_thread, LoopSection.STEP, 550.0),
    Kind(evaluation_on_cpu, LoopSection.STEP, 550.0),
    Kind(evaluation_on_gpu, LoopSection.EVALUATION, 1700.0),
    Kind(evaluation_on_gpu, LoopSection.STEP, 550.0),
    Kind(save_that_writes, LoopSection.SAVE, 550.0),
    Kind(save_that_syncs, LoopSection.SAVE, 550.0),
    Kind(slow_read, LoopSection.DATA, 550.0),
    Kind(file_server_that_fetches, LoopSection.DATA, 550.0),
    Kind(download, LoopSection.DATA, 550.0),
    Kind(pause_before_retry, LoopSection.DATA, 300.0),
    Kind(loader_that_polls, LoopSection.DATA, 550.0),
    Kind(data_workers, LoopSection.DATA, 550.0),
    Kind(shell_pipeline, LoopSection.STEP, 550.0),
)
"""What is silent, in which section, and for how long at most: silence alone ends none of these."""


@dataclass
class Figures:
    hours: float = 0.0
    silences: int = 0
    judged: int = 0
    killed: Counter[str] = field(default_factory=Counter)


def simulate(hours: float, seed: int = 1, kinds: tuple[Kind, ...] = KINDS) -> Figures:
    """Lets jobs train, and be silent for 60 s and more, for so many hours of silence."""
    chance, figures = random.Random(seed), Figures()
    while figures.hours < hours:
        kind = chance.choice(kinds)
        job, now, step_s = _trained(chance)
        job.handle(StepsDone(1, 30, step_s, kind.section), now)
        ends_at = now + chance.uniform(61.0, kind.longest_s)
        figures.silences += 1
        while (due_at := job.deadline()) is not None and due_at < ends_at:
            effects = job.expire(due_at)
            if Abort(1) not in effects and effects and isinstance(effects[0], LookAtSilence):
                figures.judged += 1
                end = due_at + effects[0].over_s
                observed = replace(kind.draw(chance), began_at=due_at, ended_at=end)
                effects = job.handle(SilenceObserved(1, observed), end)
            if Abort(1) in effects:
                figures.killed[kind.draw.__name__] += 1
                break
        figures.hours += (ends_at - now) / 3600
    return figures


def _trained(chance: random.Random) -> tuple[Job, float, float]:
    """A job with thirty steps behind it, the time, and what its steps take."""
    job, step_s = Job(POLICY), chance.choice([0.01, 0.3, 2.0])
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(TrainingRestored(1, 0), 5.0)
    now = 10.0
    for step in range(1, 31):
        now += step_s
        job.handle(StepsDone(1, step, step_s), now)
    return job, now, step_s
