"""Measures the daemons of a gang of many nodes: how they meet, what it costs the chief, and how a loss becomes known.

Run with `python -m bench.gang_scale [--ranks 8 64 512]` (five minutes). Simulated: the daemons' own code for a gang
(the agent, its view and its connections), over real sockets, but all ranks in four processes of this machine, over
loopback, and without workers. The chief, rank 0, has a process of its own, which is what is measured; the last rank
too, which is killed (SIGKILL: its connection ends) or stopped (SIGSTOP: it is silent, as behind a cut link).

meet        seconds from the first daemon's begin until the last knows the cluster; all come at once
meet again  the same in the next generation, right after a loss
loss        seconds from the kill until the chief knows, and until all ranks know
silence     the same from the stop
chief       seconds from its kill until all others know
CPU         seconds that the chief computes until all have met; percent of a core while all is well
traffic     bytes and messages a second at the chief, both directions, while all is well; bytes until all have met
memory      MiB of the chief above those before the gang met
files       descriptors that the chief has open
output      lines and bytes that all daemons write to the batch script's output, from the first meeting to the end of
            the first loss

`growth`: a figure's last column over the one before. What has grown by more than the number of other ranks has is
marked. Prints a table and writes bench/results/gang_scale.json.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness
from supervisor.protocol.allocation import OUTPUT_RANKS

RANKS = (8, 64, 512)
WELL_S = 10.0
TOLERANCE = 1.25  # growth above linear that is noise
MIB = 1 << 20


@dataclass
class Figures:
    """Of one number of ranks, one value for each round."""

    meet_s: list[float] = field(default_factory=list)
    meet_again_s: list[float] = field(default_factory=list)
    meet_cpu_s: list[float] = field(default_factory=list)
    meet_bytes: list[float] = field(default_factory=list)
    loss_chief_s: list[float] = field(default_factory=list)
    loss_all_s: list[float] = field(default_factory=list)
    loss_cpu_s: list[float] = field(default_factory=list)
    silence_chief_s: list[float] = field(default_factory=list)
    silence_all_s: list[float] = field(default_factory=list)
    well_cpu_percent: list[float] = field(default_factory=list)
    well_bytes: list[float] = field(default_factory=list)
    well_messages: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    chief_loss_s: list[float] = field(default_factory=list)
    output_lines: list[float] = field(default_factory=list)
    output_bytes: list[float] = field(default_factory=list)


ROWS = {
    "meet_s": "all have met, s",
    "meet_again_s": "all have met again after a loss, s",
    "meet_cpu_s": "the chief's CPU until then, s",
    "meet_bytes": "bytes through the chief until then, less signs of life",
    "well_bytes": "bytes a second through the chief, all well",
    "well_messages": "messages a second, both ways",
    "well_cpu_percent": "the chief's CPU meanwhile, % of a core",
    "memory_mib": "the chief's memory for it, MiB",
    "files": "the chief's open files",
    "loss_chief_s": "a daemon killed: the chief knows after, s",
    "loss_all_s": "all know after, s",
    "loss_cpu_s": "the chief's CPU until all are gone, s",
    "silence_chief_s": "a node silent: the chief knows after, s",
    "silence_all_s": "all know after, s",
    "chief_loss_s": "the chief killed: all know after, s",
    "output_lines": "lines in the batch script's output",
    "output_bytes": "bytes of them",
}
GROWING = ("meet_cpu_s", "meet_bytes", "well_bytes", "well_messages", "well_cpu_percent", "memory_mib", "files",
           "loss_cpu_s", "output_lines", "output_bytes")  # fmt: skip
"""What may grow with the number of ranks, but not faster."""


class Process:
    """Some ranks in a process of their own."""

    def __init__(self, job_id: int, first: int, last: int, size: int, folder: Path) -> None:
        self._output = folder / f"output-{first}"
        command = [sys.executable, "-m", "bench.gang_scale_ranks", *map(str, (job_id, first, last, size))]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, str(folder / f"log-{first}")], cwd=harness.ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
            )  # fmt: skip

    def order(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the gang ended: {self._output.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, *words: object) -> dict[str, Any]:
        self.order(*words)
        return self.answer()

    def output(self) -> bytes:
        return self._output.read_bytes()

    def send_signal(self, number: signal.Signals) -> float:
        self._process.send_signal(number)
        return time.monotonic()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def meet(processes: Sequence[Process], generation: int) -> float:
    """Seconds until all have met."""
    for process in processes:
        process.order("meet", generation)
    answers = [process.answer() for process in processes]
    return max(answer["met_at"] for answer in answers) - min(answer["began_at"] for answer in answers)


def lose(victim: Process, others: Sequence[Process], how: signal.Signals) -> tuple[float, float]:
    """Seconds until the chief, the first of `others`, knows, and until all know."""
    for process in others:
        process.order("over")
    at = victim.send_signal(how)
    answers = [process.answer() for process in others]
    return answers[0]["last_at"] - at, max(answer["last_at"] for answer in answers) - at


def measure(size: int, number: int, well_s: float, figures: Figures, with_silence: bool = True) -> None:
    """One round."""
    job_id = os.getpid() * 100 + number
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bounds = [0, 1, *([OUTPUT_RANKS] if size - 1 > OUTPUT_RANKS else []), size - 1]
        others = [Process(job_id, first, last, size, folder) for first, last in pairwise(bounds)]
        victim = Process(job_id, size - 1, size, size, folder)
        chief = others[0]
        try:
            for process in (*others, victim):
                process.ask("figures")  # it is there
            began = chief.ask("figures")
            figures.meet_s.append(meet([*others, victim], 1))
            met = chief.ask("figures")
            figures.meet_cpu_s.append(met["cpu_s"] - began["cpu_s"])
            figures.meet_bytes.append(met["sent_bytes"] + met["received_bytes"] - met["alive_bytes"])
            time.sleep(well_s)
            well = chief.ask("figures")
            for kind, names in {"bytes": ("sent_bytes", "received_bytes"), "messages": ("sent", "received")}.items():
                passed = sum(well[name] - met[name] for name in names)
                getattr(figures, f"well_{kind}").append(passed / (well["at"] - met["at"]))
            figures.well_cpu_percent.append(100 * (well["cpu_s"] - met["cpu_s"]) / (well["at"] - met["at"]))
            figures.memory_mib.append((well["memory_bytes"] - began["memory_bytes"]) / MIB)
            figures.files.append(well["files"])
            chief_s, all_s = lose(victim, others, signal.SIGKILL)
            figures.loss_chief_s.append(chief_s)
            figures.loss_all_s.append(all_s)
            figures.loss_cpu_s.append(chief.ask("figures")["cpu_s"] - well["cpu_s"])
            output = b"".join(process.output() for process in (*others, victim))
            figures.output_lines.append(output.count(b"\n"))
            figures.output_bytes.append(len(output))
            victim.end()
            victim = Process(job_id, size - 1, size, size, folder)
            victim.ask("figures")
            figures.meet_again_s.append(meet([*others, victim], 2))
            if with_silence:
                chief_s, all_s = lose(victim, others, signal.SIGSTOP)
                figures.silence_chief_s.append(chief_s)
                figures.silence_all_s.append(all_s)
                victim.end()
                victim = Process(job_id, size - 1, size, size, folder)
                victim.ask("figures")
                meet([*others, victim], 3)
            figures.chief_loss_s.append(lose(chief, [*others[1:], victim], signal.SIGKILL)[1])
        finally:
            for process in (*others, victim):
                process.end()


def grew_faster(growth: float, sizes: Sequence[int]) -> bool:
    """Whether a figure has grown by more than the number of other ranks, from the last but one size to the last."""
    return growth > TOLERANCE * (sizes[-1] - 1) / (sizes[-2] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--well-s", type=float, default=WELL_S, help="how long all is well")
    options = parser.parse_args()
    sizes = sorted(options.ranks)
    results = {size: Figures() for size in sizes}
    for number in range(options.rounds):
        for size in sizes:
            print(f"round {number + 1} of {options.rounds}: {size} ranks", file=sys.stderr)
            measure(size, number * len(sizes) + sizes.index(size), options.well_s, results[size])
    table = Table("median (range)", *(f"{size} ranks" for size in sizes), "growth")
    faster: list[str] = []
    for name, title in ROWS.items():
        values = [getattr(results[size], name) for size in sizes]
        shown = [f"{statistics.median(value):.4g} ({min(value):.4g} to {max(value):.4g})" for value in values]
        growth = ""
        if name in GROWING and len(sizes) > 1:
            times = statistics.median(values[-1]) / max(statistics.median(values[-2]), 1e-9)
            growth = f"{times:.1f}"
            if grew_faster(times, sizes):
                faster.append(title)
                growth += " FASTER"
        table.add_row(title, *shown, growth)
    Console(width=150).print(table)
    if len(sizes) > 1:
        print(
            f"From {sizes[-2]} to {sizes[-1]} ranks are {(sizes[-1] - 1) / (sizes[-2] - 1):.1f} times as many others."
        )
        print(f"Faster than that grew: {'; '.join(faster) or 'nothing'}.")
    harness.write("gang_scale", {"ranks": {str(size): asdict(figures) for size, figures in results.items()}})


if __name__ == "__main__":
    main()
