"""The demonstration: trains the digits job undisturbed, then again under kills and damage, and compares the results.

Run it with `make demo`. It uses a real daemon, real workers and real signals. Its files are in `demo-run/`.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from supervisor.ctl.client import Client, Refusal, Unreachable
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints import selection as checkpoints

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "demo-run"
CONFIGURATION = ROOT / "examples" / "demo.conf"
STALLED_S = 170.0  # so long without a sign of life is a failure; the whole takes two minutes on two idle cores
POLL_S = 0.1

console = Console(highlight=False)
client = Client(f"unix://{FOLDER}/control.sock")


class DemoFailed(Exception):
    """The demonstration can't continue; the text says why."""


class Supervisord:
    """The daemon, started in the background as often as needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the daemon. Returns once it answers."""
        environment = {**os.environ, "STEPKEEPER_DEMO_PYTHON": sys.executable}
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(CONFIGURATION)]
        with (FOLDER / "supervisord.err").open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=errors, stderr=errors, start_new_session=True
            )
        deadline = time.monotonic() + STALLED_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise DemoFailed(
                    f"the daemon exited with status {self._process.returncode}; see {FOLDER}/supervisord.err"
                )
            with contextlib.suppress(Unreachable):
                client.call("pid")
                return
            time.sleep(POLL_S)
        raise DemoFailed(f"the daemon does not answer; see {FOLDER}/supervisord.err")

    def terminate(self) -> float:
        """Sends SIGTERM. Returns the seconds until the daemon has flushed all jobs and exited."""
        if self._process is None or self._process.poll() is not None:
            return 0.0
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STALLED_S)  # more than the daemon gives its jobs to save and exit
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)  # the second one means: at once
            self._process.wait(STALLED_S)
        return time.monotonic() - began


def status(name: str) -> dict[str, Any]:
    """The status of one program."""
    programs: list[dict[str, Any]] = client.call("status")["programs"]
    return next(program for program in programs if program["name"] == name)


def watch(
    name: str,
    ask: Callable[[str], dict[str, Any]] = status,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """The status of a job, again and again, however long it takes.

    Raises DemoFailed once the job has failed, or shows no progress for `STALLED_S`.
    """
    before, changed_at = None, clock()
    while True:
        current = ask(name)
        yield current
        if current["state"] == "FAILED":
            raise DemoFailed(f"{name} failed: {current['reason']}")
        progress = (current["state"], current["pid"], *(current["job"][key] for key in ("attempt", "section", "step")))
        if progress != before:
            before, changed_at = progress, clock()
        elif clock() - changed_at > STALLED_S:
            raise DemoFailed(f"{name} made no progress for {STALLED_S:g} s; its status is {current['description']}")
        pause(POLL_S)


class Display:
    """The progress bars and the lines above them."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<12}"), BarColumn(40), MofNCompleteColumn())
        self._bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._bar: Any = None

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def begin(self, name: str) -> None:
        """Starts a new bar."""
        self._bar = self._bars.add_task(name, total=None, note="")

    def print_line(self, text: str) -> None:
        """Prints a line above the bars."""
        self._bars.print(text)

    def follow(self, name: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Shows the job's progress until `until` is true of its status."""
        for current in watch(name):
            job = current["job"]
            saved = job["checkpoint"]["step"] if job["checkpoint"] else "none"
            note = f"{current['state']:<9} attempt {job['attempt']}  last checkpoint {saved}"
            if job["step"] is not None:
                self._bars.update(self._bar, completed=job["step"], total=job["total_steps"], note=note)
            else:
                self._bars.update(self._bar, note=note)
            if until(current):
                break
        return current


def reaches(step: int) -> Callable[[dict[str, Any]], bool]:
    """A condition: the job trains at `step` or beyond."""
    return lambda current: current["state"] == "RUNNING" and (current["job"]["step"] or 0) >= step


def has_succeeded(current: dict[str, Any]) -> bool:
    """A condition: the job is done."""
    return bool(current["state"] == "SUCCEEDED")


def kill_worker(display: Display, moment: str) -> None:
    """Sends SIGKILL to the worker and prints how long it takes until the next process exists."""
    before = status("disturbed")
    os.kill(before["pid"], signal.SIGKILL)
    began = time.monotonic()
    for current in watch("disturbed", pause=lambda _: time.sleep(0.001)):
        if (new := current["pid"]) not in (None, before["pid"]):
            break
    took = (time.monotonic() - began) * 1000
    display.print_line(
        f"[red]kill -9[/] {moment} at step {before['job']['step']}: "
        f"worker {new} took over from {before['pid']} after {took:.0f} ms"
    )


def flip_a_bit(display: Display) -> str:
    """Flips one bit in the middle of the tensors of the newest checkpoint."""
    newest = checkpoints.committed_checkpoints(FOLDER / "disturbed")[0]
    file = next((FOLDER / "disturbed" / str(newest)).glob(f"{layout.PREFIX}.data-*"))
    with file.open("r+b") as data:
        middle = file.stat().st_size // 2
        data.seek(middle)
        byte = data.read(1)[0]
        data.seek(middle)
        data.write(bytes([byte ^ 1]))
    display.print_line(f"[red]one bit flipped[/] in {newest}/{file.name}, byte {middle}")
    return str(newest)


def disturb(display: Display, daemon: Supervisord) -> None:
    """Does everything that happens to the disturbed job."""
    total = display.follow("disturbed", reaches(1))["job"]["total_steps"]
    display.follow("disturbed", reaches(int(total * 0.25)))
    kill_worker(display, "during training")
    display.follow("disturbed", reaches(int(total * 0.5)))
    flip_a_bit(display)
    kill_worker(display, "right after that")
    current = display.follow("disturbed", reaches(int(total * 0.75)))
    took = daemon.terminate()
    display.print_line(
        f"[red]SIGTERM[/] to the daemon at step {current['job']['step']}: it saved and exited after {took:.1f} s"
    )
    daemon.start()
    display.print_line("the daemon is started again; it continues the job by itself")
    display.follow("disturbed", has_succeeded)


def tensors_hash(name: str) -> str:
    """The hash of the last checkpoint's tensors: weights, optimizer, step counters."""
    selection = checkpoints.select_checkpoint(FOLDER / name)
    if selection.path is None or selection.manifest is None:
        raise DemoFailed(f"there is no whole checkpoint of {name}")
    files = {file.name: file.hash for file in manifest.verify_checkpoint(selection.path).files}
    return next(value for key, value in files.items() if key.startswith(f"{layout.PREFIX}.data-"))


def summarise(results: dict[str, dict[str, Any]]) -> bool:
    """Prints what happened. Returns whether both runs have the same result."""
    table = Table(
        "attempt", "from step", "to step", "how it ended", "steps lost", title="what happened to the disturbed run"
    )
    refused: list[tuple[str, str]] = []
    for attempt in client.call("history", name="disturbed")["attempts"]:
        lost = "-" if attempt["lost_steps"] is None else str(attempt["lost_steps"])
        table.add_row(
            str(attempt["attempt"]), str(attempt["from_step"]), str(attempt["to_step"]), attempt["text"] or "", lost
        )
        refused += [(name, why) for name, why in attempt["refused"]]
    console.print(table)
    for name, why in refused:
        console.print(f"refused and quarantined: {name}: {why}")
    ends = {name: (results[name]["job"]["metrics"]["accuracy"], tensors_hash(name)) for name in results}
    for name, (accuracy, value) in ends.items():
        console.print(f"{name:<11}  test accuracy {accuracy:.4f}  weights and optimizer {value[-16:]}")
    same = len(set(ends.values())) == 1
    console.print("[green]bit for bit the same[/]" if same else "[red]the results differ[/]")
    return same


@contextlib.contextmanager
def supervised() -> Iterator[Supervisord]:
    """A running daemon that is stopped at the end in any case."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    daemon = Supervisord()
    try:
        daemon.start()
        yield daemon
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clean-up
        daemon.terminate()


def main() -> int:
    """Returns 0 if the disturbed run has the same result as the undisturbed one."""
    began = time.monotonic()
    try:
        with supervised() as daemon:
            results = {}
            with Display() as display:
                display.begin("undisturbed")
                client.call("start", name="undisturbed", wait=False)
                results["undisturbed"] = display.follow("undisturbed", has_succeeded)
                display.begin("disturbed")
                client.call("start", name="disturbed", wait=False)
                disturb(display, daemon)
                results["disturbed"] = status("disturbed")
            same = summarise(results)
    except KeyboardInterrupt:
        console.print("interrupted; all processes are stopped")
        return 130
    except (DemoFailed, Refusal, Unreachable, subprocess.TimeoutExpired) as error:
        console.print(f"[red]the demonstration failed[/]: {error}")
        return 1
    console.print(f"took {time.monotonic() - began:.0f} s; logs, ledger and checkpoints are in {FOLDER.name}/")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
