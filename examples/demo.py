"""The demonstration: trains the digits job in peace, then again while everything is done to stop it, and compares.

Run with `make demo`. Real daemon, real worker, real signals; what it leaves behind is in `demo-run/`.
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
PATIENCE_S = 170.0  # the whole takes about two minutes on two cores
LOOK_S = 0.1

console = Console(highlight=False)
client = Client(f"unix://{FOLDER}/control.sock")


class Gone(Exception):
    """The demonstration can't go on; the text says why."""


class Supervisord:
    """The daemon in the background, as often as it is started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers."""
        environment = {**os.environ, "STEPKEEPER_DEMO_PYTHON": sys.executable}
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(CONFIGURATION)]
        with (FOLDER / "supervisord.err").open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=errors, stderr=errors, start_new_session=True
            )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Gone(f"the daemon ended with {self._process.returncode}; see {FOLDER}/supervisord.err")
            with contextlib.suppress(Unreachable):
                client.call("pid")
                return
            time.sleep(LOOK_S)
        raise Gone(f"the daemon does not answer; see {FOLDER}/supervisord.err")

    def terminate(self) -> float:
        """SIGTERM; gives the seconds until it has flushed all jobs and left."""
        if self._process is None or self._process.poll() is not None:
            return 0.0
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)  # a second one: in a hurry
            self._process.wait(30)
        return time.monotonic() - began


def status(name: str) -> dict[str, Any]:
    """One program's standing."""
    found: list[dict[str, Any]] = client.call("status")["programs"]
    return next(each for each in found if each["name"] == name)


class Show:
    """The progress bar, and the lines above it."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<12}"), BarColumn(40), MofNCompleteColumn())
        self._bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._bar: Any = None

    def __enter__(self) -> "Show":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def begin(self, name: str) -> None:
        """A new bar."""
        self._bar = self._bars.add_task(name, total=None, note="")

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._bars.print(text)

    def follow(self, name: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Shows the job's progress until `until` is true of its status."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = status(name)
            job = found["job"]
            saved = job["checkpoint"]["step"] if job["checkpoint"] else "none"
            note = f"{found['state']:<9} attempt {job['attempt']}  last checkpoint {saved}"
            if job["step"] is not None:
                self._bars.update(self._bar, completed=job["step"], total=job["total_steps"], note=note)
            else:
                self._bars.update(self._bar, note=note)
            if until(found):
                return found
            if found["state"] == "FAILED":
                raise Gone(f"{name} failed: {found['reason']}")
            time.sleep(LOOK_S)
        raise Gone(f"{name} did not get there within {PATIENCE_S:g} s; it is {status(name)['description']}")


def reaches(step: int) -> Callable[[dict[str, Any]], bool]:
    """Whether the job trains at `step` or beyond."""
    return lambda found: found["state"] == "RUNNING" and (found["job"]["step"] or 0) >= step


def ended(found: dict[str, Any]) -> bool:
    """Whether the job is done."""
    return bool(found["state"] == "SUCCEEDED")


def kill_worker(show: Show, moment: str) -> None:
    """SIGKILL, and how long until the next process exists."""
    found = status("disturbed")
    os.kill(found["pid"], signal.SIGKILL)
    began = time.monotonic()
    while (new := status("disturbed")["pid"]) in (None, found["pid"]):
        if time.monotonic() - began > 10:
            raise Gone("no new worker within 10 s")
    took = (time.monotonic() - began) * 1000
    show.say(
        f"[red]kill -9[/] {moment} at step {found['job']['step']}: "
        f"worker {new} took over from {found['pid']} after {took:.0f} ms"
    )


def flip_a_bit(show: Show) -> str:
    """Damages one byte in the newest checkpoint, in the middle of its tensors."""
    newest = checkpoints.committed_checkpoints(FOLDER / "disturbed")[0]
    file = next((FOLDER / "disturbed" / str(newest)).glob(f"{layout.PREFIX}.data-*"))
    with file.open("r+b") as data:
        middle = file.stat().st_size // 2
        data.seek(middle)
        byte = data.read(1)[0]
        data.seek(middle)
        data.write(bytes([byte ^ 1]))
    show.say(f"[red]one bit flipped[/] in {newest}/{file.name}, byte {middle}")
    return str(newest)


def disturb(show: Show, daemon: Supervisord) -> None:
    """Everything that is done to the job."""
    total = show.follow("disturbed", reaches(1))["job"]["total_steps"]
    show.follow("disturbed", reaches(int(total * 0.25)))
    kill_worker(show, "in mid-training")
    show.follow("disturbed", reaches(int(total * 0.5)))
    flip_a_bit(show)
    kill_worker(show, "right after")
    found = show.follow("disturbed", reaches(int(total * 0.75)))
    took = daemon.terminate()
    show.say(f"[red]SIGTERM[/] to the daemon at step {found['job']['step']}: flushed and gone after {took:.1f} s")
    daemon.start()
    show.say("the daemon is started again; nobody tells it to start the job")
    show.follow("disturbed", ended)


def tensors_hash(name: str) -> str:
    """The hash of the last checkpoint's tensors: weights, optimizer, step counters."""
    selection = checkpoints.select_checkpoint(FOLDER / name)
    if selection.path is None or selection.manifest is None:
        raise Gone(f"{name} left no whole checkpoint")
    files = {file.name: file.hash for file in manifest.verify_checkpoint(selection.path).files}
    return next(value for key, value in files.items() if key.startswith(f"{layout.PREFIX}.data-"))


def summarise(results: dict[str, dict[str, Any]]) -> bool:
    """Prints what happened; whether both runs ended alike."""
    table = Table(
        "attempt", "from step", "to step", "how it ended", "steps lost", title="what happened to the disturbed run"
    )
    refused: list[tuple[str, str]] = []
    for each in client.call("history", name="disturbed")["attempts"]:
        lost = "-" if each["lost_steps"] is None else str(each["lost_steps"])
        table.add_row(str(each["attempt"]), str(each["from_step"]), str(each["to_step"]), each["text"] or "", lost)
        refused += [(name, why) for name, why in each["refused"]]
    console.print(table)
    for name, why in refused:
        console.print(f"refused and set aside: {name}: {why}")
    ends = {name: (results[name]["job"]["metrics"]["accuracy"], tensors_hash(name)) for name in results}
    for name, (accuracy, value) in ends.items():
        console.print(f"{name:<11}  test accuracy {accuracy:.4f}  weights and optimizer {value[-16:]}")
    same = len(set(ends.values())) == 1
    console.print("[green]bit for bit the same[/]" if same else "[red]they differ[/]")
    return same


@contextlib.contextmanager
def supervised() -> Iterator[Supervisord]:
    """A daemon that is gone at the end, whatever happens."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    daemon = Supervisord()
    try:
        daemon.start()
        yield daemon
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one Ctrl-C is enough; what follows is the cleaning up
        daemon.terminate()


def main() -> int:
    """Gives 0 if the disturbed run ended as the undisturbed one."""
    began = time.monotonic()
    try:
        with supervised() as daemon:
            results = {}
            with Show() as show:
                show.begin("undisturbed")
                client.call("start", name="undisturbed", wait=False)
                results["undisturbed"] = show.follow("undisturbed", ended)
                show.begin("disturbed")
                client.call("start", name="disturbed", wait=False)
                disturb(show, daemon)
                results["disturbed"] = status("disturbed")
            same = summarise(results)
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped")
        return 130
    except (Gone, Refusal, Unreachable) as error:
        console.print(f"[red]the demonstration failed[/]: {error}")
        return 1
    console.print(f"took {time.monotonic() - began:.0f} s; logs, ledger and checkpoints are in {FOLDER.name}/")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
