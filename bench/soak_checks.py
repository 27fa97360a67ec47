"""Checks what must hold during and after the soak."""

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import psutil

from bench.soak_site import Running, Site
from tests.reading import records

LOOK_S = 0.05
SLACK_S = 1.5  # between what is booked and the clock: the question itself takes time on a busy machine
FDS_SLACK = 6  # of the daemon: a client just leaving, a connection of the ledger for reading
SIZE_LOOKS, SIZE_LOOK_S = 20, 0.5  # ten seconds, though all programs' mirror processes begin at once
FDS_OF_MIRROR = 5  # pipes and the process, as counted
GROWTH_BYTES = 64 << 20
PEAK_BYTES = 300 << 20  # of the daemon at any moment, whatever a job's user plants
MAX_ATTEMPTS = 100_000  # of one round: more were made by a forged mark


def broken_invariants(site: Site) -> list[str]:
    """What the daemons themselves noticed that must never be (supervisor/core/invariants.py), each name once."""
    breaches = [record for record in records(site.folder / "daemon.log") if record["event"] == "invariant.broken"]
    return [
        f"{told_of['program']}: the invariant {name} was broken on {told_of['on']}"
        for name, told_of in {record["invariant"]: record for record in reversed(breaches)}.items()
    ]


class Watch:
    """Checks continuously whether any job has two workers; `broken`: the violations."""

    def __init__(self, site: Site) -> None:
        self.broken: list[str] = []
        self.looks = 0
        self.peak_rss_bytes = 0
        self._site = site
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        daemon = self._site.daemon.process
        with contextlib.suppress(psutil.Error):
            if daemon is not None:
                self.peak_rss_bytes = max(self.peak_rss_bytes, psutil.Process(daemon.pid).memory_info().rss)

    def _look(self) -> None:
        try:
            self._look_until_over()
        except Exception as error:  # noqa: BLE001 - a watch that sees nothing any more must not look like a quiet one
            self.broken.append(f"the watch for second workers ended: {error!r}")

    def _look_until_over(self) -> None:
        while not self._over.wait(LOOK_S):
            by_program: dict[str, list[Running]] = defaultdict(list)
            for worker in self._site.workers():
                by_program[worker.program].append(worker)
            self.looks += 1
            self._measure()
            for program, workers in by_program.items():
                pids = {worker.pid for worker in workers}
                if len(workers) > 1 and len(alive := [worker for worker in workers if _lives(worker, pids)]) > 1:
                    self.broken.append(f"{program} has {len(alive)} workers at once: {alive}")


def _lives(worker: Running, pids: set[int]) -> bool:
    """Whether it is still there: two that were seen one after the other need not have been there together.

    What a worker has just forked, `pids` being all of them, looks like it until it executes something else.
    """
    try:
        process = psutil.Process(worker.pid)
        if process.create_time() != worker.began or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.ppid() not in pids
    except psutil.Error:
        return False


@dataclass
class Size:
    """The resources of the daemon's process."""

    pid: int
    descriptors: int
    rss_bytes: int
    children: int
    threads: int


def size_of(site: Site) -> Size:
    """Once two looks agree: for a moment, a daemon that has just begun has fewer descriptors than `FDS_OF_MIRROR` for
    each of its new mirror processes."""
    size = _present_size(site)
    for _ in range(SIZE_LOOKS):
        time.sleep(SIZE_LOOK_S)
        size, last = _present_size(site), size
        if (size.descriptors, size.children) == (last.descriptors, last.children) and size.descriptors > 0:
            break
    return size


def _present_size(site: Site) -> Size:
    assert site.daemon.process is not None
    process = psutil.Process(site.daemon.process.pid)
    with process.oneshot():
        memory, threads = process.memory_info().rss, process.num_threads()
    children = process.children()
    mirrors = sum(map(_is_of_mirror, children))
    return Size(process.pid, process.num_fds() - FDS_OF_MIRROR * mirrors, memory, len(children) - mirrors, threads)


def _is_of_mirror(process: psutil.Process) -> bool:
    """Whether it uploads for a job; such a process stays for five idle minutes."""
    with contextlib.suppress(psutil.Error):
        return any("supervisor.host.mirror" in argument for argument in process.cmdline())
    return False


def leaks(before: Size, after: Size, at_rest: bool) -> list[str]:
    """What has grown. `at_rest`: nothing runs, so no process may be left."""
    problems = []
    if after.descriptors > before.descriptors + FDS_SLACK:
        problems.append(f"descriptors of the daemon grew from {before.descriptors} to {after.descriptors}")
    if after.rss_bytes > before.rss_bytes + GROWTH_BYTES:
        problems.append(f"the daemon's memory grew from {before.rss_bytes >> 20} to {after.rss_bytes >> 20} MiB")
    if at_rest and after.children:
        problems.append(f"{after.children} children of the daemon are left")
    return problems


@dataclass
class Books:
    """The ledger's records of one program, and what is wrong with them."""

    program: str
    attempts: int
    lost_steps: int
    goodput: float
    spent_s: dict[str, float]
    causes: dict[str, int]
    wrong: list[str] = field(default_factory=list)


def books(site: Site, program: str) -> Books:
    """Of a program whose round is over."""
    attempts: list[dict[str, Any]] = site.call("history", name=program, limit=10_000)["attempts"]
    sums = site.call("goodput", name=program)
    now = time.time()
    account = Books(program, len(attempts), sums["lost_steps"], sums["goodput"] or 0.0, sums["spent_s"], sums["causes"])
    numbers = [attempt["attempt"] for attempt in attempts]
    if max(numbers, default=0) > MAX_ATTEMPTS:
        account.wrong.append(f"attempts are numbered up to {max(numbers)}")
        return account
    unwritten = set(range(1, max(numbers, default=0) + 1)) - set(numbers)
    if numbers != sorted(set(numbers)) or len(unwritten) > _left_over(site, program):
        account.wrong.append(f"attempts are numbered {numbers}")
    for attempt in attempts:
        if attempt["ended_wall_at"] is None or attempt["cause"] is None:
            account.wrong.append(f"attempt {attempt['attempt']} has no end")
    for earlier, later in itertools.pairwise(attempts):
        if earlier["ended_wall_at"] and earlier["ended_wall_at"] > later["started_wall_at"] + SLACK_S:
            account.wrong.append(f"attempt {later['attempt']} began before attempt {earlier['attempt']} had ended")
    if attempts and attempts[-1]["cause"] != "done":
        account.wrong.append(f"the last attempt's cause is {attempts[-1]['cause']}")
    if sums["since_wall_at"] is None:
        account.wrong.append("it has no account")
        return account
    wall_s, booked_s = now - sums["since_wall_at"], sum(sums["spent_s"].values())
    if abs(wall_s - booked_s) > SLACK_S + 0.01 * wall_s:
        account.wrong.append(f"{booked_s:.1f} s are booked of {wall_s:.1f} s")
    if any(value < -0.001 for value in sums["spent_s"].values()):
        account.wrong.append(f"less than nothing is booked: {sums['spent_s']}")
    return account


def _left_over(site: Site, program: str) -> int:
    """How many of its workers a daemon met whose start the one before had not written down yet, when it was killed."""
    lines = (site.folder / "daemon.log").read_text(errors="replace").splitlines()
    return sum('"worker.left_over"' in line and f'"program": "{program}"' in line for line in lines)
