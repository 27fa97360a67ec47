"""Runs one daemon and several jobs under every kind of fault, at random seeded moments, for a chosen time.

Run with `python -m bench.soak --minutes 10`. Jobs run in rounds: each is trained once without faults, then repeatedly
under faults, and each round's last checkpoint must have the same hashes. Checked throughout: no job ever has two
workers, the daemon's memory is bounded, and its own invariants hold. One job runs as another user, who is hostile: no
file of root's changes. Checked at the end: every attempt in the ledger has an end and a cause, the categories of time
sum to the wall time, the daemon has no more descriptors, memory or children than a new one, and nothing that it
started is left. Prints the faults, steps lost, time down, goodput, and failed checks; writes bench/results/soak.json;
exits with 1 if a check failed. The disks that are filled are small ones made for it; without root those faults and
the hostile user are left out.
`--daemon-kills 200` instead only kills the daemon that many times while one job trains.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness, soak_checks, soak_faults
from bench.soak_site import KINDS, START_S, Kind, Site
from tests.waiting import wait_until

STEPS_OF_A_KILL = 60  # of 0.01 s: a daemon lives for 0.15 s on average, and starting one takes as long
FIRST_S = 300.0  # a round in peace on a busy machine
LAST_S = 600.0  # what is still to do when the faults are over
GAP_S = 1.2  # mean time between two faults
LEDGER_S = 40.0  # its writer waits up to 30 s before it tries a full disk again
STRAYS_S = 20.0  # grandchildren that ignore SIGTERM take a while to be gone
ENDED = ("SUCCEEDED", "FAILED", "STOPPED", "EXITED")


@dataclass
class Report:
    """The faults that were injected and their results."""

    faults: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    books: list[soak_checks.Books] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)
    looks: int = 0

    def recorded(self) -> dict[str, Any]:
        """The entry for the file."""
        return {
            "wrong": self.wrong, "faults": dict(self.faults), "rounds": dict(self.rounds), "looks": self.looks,
            "daemon": self.sizes, "programs": [asdict(book) for book in self.books],
        }  # fmt: skip

    def fail(self, text: str) -> None:
        self.wrong.append(text)
        Console(stderr=True).print(f"[red]wrong[/]: {text}")


class Soak:
    """Runs rounds of the jobs under faults."""

    def __init__(self, site: Site, chance: random.Random, report: Report) -> None:
        self.site = site
        self.chance = chance
        self.report = report
        self.expected: dict[str, tuple[int, dict[str, str]]] = {}
        self.current: dict[str, str] = {}

    def in_peace(self) -> None:
        """The result of each kind of job without faults."""
        programs = {kind.name: self.site.add(kind) for kind in self.site.kinds}
        for kind, program in programs.items():
            ended = self.until_ended(program, FIRST_S)
            if ended != "SUCCEEDED":
                raise SystemExit(f"{program} is {ended} although no fault was injected: {self.site.status(program)}")
            self.expected[kind] = self.site.final(program)

    def until_ended(self, program: str, patience_s: float) -> str:
        deadline = time.monotonic() + patience_s
        while True:
            state = self.site.status(program)["state"]
            if state in ENDED or time.monotonic() > deadline:
                return str(state)
            time.sleep(0.1)

    def disturb(self, until: float, faults: list[soak_faults.Fault]) -> None:
        """Injects faults until that moment. Jobs that end are started again."""
        for kind in self.site.kinds:
            self.current[kind.name] = self.site.add(kind)
        weights = [soak_faults.FAULTS[fault] for fault in faults]
        while time.monotonic() < until:
            time.sleep(min(self.chance.expovariate(1 / GAP_S), 5 * GAP_S))
            (fault,) = self.chance.choices(faults, weights)
            workers = self.site.workers()
            if workers:
                self.report.faults[fault.__name__] += 1
                self._carry_out(fault, self.chance.choice(workers))
            for kind in self.site.kinds:
                self._go_on(kind)

    def _carry_out(self, fault: soak_faults.Fault, worker: Any) -> None:
        try:
            fault(self.site, worker, self.chance)
        except Exception:  # noqa: BLE001 - whatever the daemon did not bear is what this looks for
            self.report.fail(f"{fault.__name__} of {worker.program}: {traceback.format_exc(limit=-3)}")
            if self.site.daemon.process is None or self.site.daemon.process.poll() is not None:
                self.site.daemon.start(START_S)

    def _go_on(self, kind: Kind) -> None:
        program = self.current[kind.name]
        state = self.site.status(program)["state"]
        if state == "SUCCEEDED":
            self.judge(kind, program)
            self.current[kind.name] = self.site.add(kind)
        elif state in ("FAILED", "EXITED"):
            self.report.fail(f"{program} is {state}: {self.site.status(program)['reason']}")
            self.current[kind.name] = self.site.add(kind)

    def judge(self, kind: Kind, program: str) -> None:
        """Checks a finished round: its result and its goodput account."""
        self.report.rounds[kind.name] += 1
        try:
            final = self.site.final(program)
        except Exception as error:  # noqa: BLE001 - as above
            self.report.fail(f"{program} left no whole checkpoint: {error}")
            return
        if (self.site.folder / "marks" / program / "two").exists():
            self.report.fail(f"{program} was trained by two workers at once")
        if final != self.expected[kind.name]:
            self.report.fail(f"{program} ended otherwise: {final}, in peace {self.expected[kind.name]}")
        deadline = time.monotonic() + LEDGER_S
        while (books := soak_checks.books(self.site, program)).wrong and time.monotonic() < deadline:
            time.sleep(1.0)
        self.report.books.append(books)
        for problem in books.wrong:
            self.report.fail(f"{program}: {problem}")

    def finish(self) -> None:
        """Lets all rounds finish."""
        for kind in self.site.kinds:
            program = self.current[kind.name]
            self.site.try_call("start", name=program, wait=False)
            state = self.until_ended(program, LAST_S)
            if state != "SUCCEEDED":
                self.report.fail(
                    f"{program} is {state} {LAST_S:.0f} s after the last fault: {self.site.status(program)}"
                )
                self.site.try_call("stop", name=program)
            else:
                self.judge(kind, program)

    def daemon_kills(self, kills: int) -> None:
        """That many while one job trains."""
        (kind,) = self.site.kinds
        program = self.current[kind.name] = self.site.add(kind)
        for _ in range(kills):
            time.sleep(self.chance.uniform(0, 0.3))
            self.site.daemon.stop(signal.SIGKILL)
            self.site.daemon.launch()
            self.report.faults["daemon_killed"] += 1
        if self.site.worker(program) is None:
            self.report.fail(f"{program} was done, or gone, before the last kill of the daemon")
        self.site.call("status")
        self.finish()
        attempts = self.report.books[-1].attempts if self.report.books else 0
        if attempts != 1:
            self.report.fail(f"{program} took {attempts} attempts, though only daemons were killed")


def at_the_end(site: Site, report: Report) -> None:
    """Checks for leaks and orphans: compares this daemon with a new one."""
    time.sleep(2.0)
    old = soak_checks.size_of(site)
    site.daemon.stop()
    site.daemon.start(START_S)
    site.call("status")
    wait_until(site.is_ready, "the new daemon knows all programs", START_S)  # it has to be as large then
    time.sleep(2.0)
    new = soak_checks.size_of(site)
    report.sizes |= {"at the end": asdict(old), "a new daemon": asdict(new)}
    for leak in soak_checks.leaks(new, old, at_rest=True):
        report.fail(leak)
    code = site.daemon.stop()
    if code != 0:
        report.fail(f"the daemon ended with {code}")
    deadline = time.monotonic() + STRAYS_S
    while (left := site.strays()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        report.fail(f"left behind: {left}")
    if "Traceback" in site.daemon.errors():
        report.fail(f"the daemon met an error of its own: {site.daemon.errors()}")
    for line in (site.folder / "daemon.log").read_text(errors="replace").splitlines():
        if '"level": "critical"' in line or "internal" in line:
            report.fail(line[:500])


def show(report: Report, console: Console) -> None:
    """The tables."""
    table = Table("job", "rounds", "attempts", "causes", "steps lost", "down s", "hung s", "goodput", title="jobs")
    for kind in report.rounds:
        of_kind = [book for book in report.books if book.program.rpartition("-")[0] == kind]
        causes: Counter[str] = sum((Counter(book.causes) for book in of_kind), Counter())
        spent: Counter[str] = sum((Counter(book.spent_s) for book in of_kind), Counter())
        wanted = sum(spent.values()) - spent["stopped"]
        table.add_row(
            kind, str(report.rounds[kind]), str(sum(book.attempts for book in of_kind)),
            ", ".join(f"{name} {count}" for name, count in causes.most_common()),
            str(sum(book.lost_steps for book in of_kind)), f"{spent['down']:.1f}", f"{spent['hung']:.1f}",
            f"{spent['training'] / wanted:.2f}" if wanted else "-",
        )  # fmt: skip
    console.print(table)
    done = ", ".join(f"{name} {count}" for name, count in report.faults.most_common())
    console.print(f"{report.faults.total()} faults: {done}")
    console.print(f"checked {report.looks} times for a second worker; sizes of the daemon: {report.sizes}")
    for problem in report.wrong:
        console.print(f"[red]wrong[/]: {problem}")
    if not report.wrong:
        console.print("[green]all checks passed[/]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--daemon-kills", type=int, default=0)
    parser.add_argument(
        "--jobs", nargs="+", choices=[kind.name for kind in KINDS], default=[kind.name for kind in KINDS]
    )
    parser.add_argument(
        "--faults", nargs="+", choices=[fault.__name__ for fault in soak_faults.FAULTS], help="only these"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder, and print its path")
    options = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if kind.name in options.jobs)
    if options.daemon_kills:
        steps = {"STEPS": str(STEPS_OF_A_KILL * options.daemon_kills)}
        kinds = (replace(KINDS[0], environment={**KINDS[0].environment, **steps}),)
    report, console = Report(), Console(width=150)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    site = Site(Path(tempfile.mkdtemp(prefix="soak-")), kinds)
    try:
        with site.open():
            soak = Soak(site, random.Random(options.seed), report)
            soak.in_peace()
            with soak_checks.Watch(site) as watch:
                if options.daemon_kills:
                    soak.daemon_kills(options.daemon_kills)
                else:
                    chosen = [
                        fault for fault in soak_faults.FAULTS if not options.faults or fault.__name__ in options.faults
                    ]
                    soak.disturb(time.monotonic() + 60 * options.minutes, chosen)
                    console.print("no more faults; the jobs train to their ends")
                    soak.finish()
            report.looks = watch.looks
            report.sizes["peak_rss_bytes"] = watch.peak_rss_bytes
            if watch.peak_rss_bytes > soak_checks.PEAK_BYTES:
                report.fail(f"the daemon took {watch.peak_rss_bytes >> 20} MiB of memory")
            for change in (*watch.broken, *site.canaries.changes(), *soak_checks.broken_invariants(site)):
                report.fail(change)
            at_the_end(site, report)
    finally:
        if options.keep or report.wrong:
            for name in site.mounted:
                shutil.copytree(site.folder / name, site.folder / f"{name}.kept", dirs_exist_ok=True)
            console.print(f"logs and checkpoints are in {site.folder}")
        site.close()
        if not (options.keep or report.wrong):
            subprocess.run(["rm", "-rf", str(site.folder)], check=False)  # shutil's recursion ends in a deep tree
    show(report, console)
    harness.write("soak", {"seed": options.seed, "minutes": options.minutes, **report.recorded()})
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
