"""Installs stepkeeper on a machine with a real systemd and runs every scenario there: `make systemd-test`.

Exit status: 0 if all pass, 1 if one does not, 2 if there is no such machine to be had here.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.systemd import guest as guests
from tests.systemd import tensorflow_job
from tests.systemd.guest import Guest, NoGuest
from tests.systemd.scenarios import ALL, Scenario

SOURCE = Path(__file__).parent.parent.parent
PREFIX = "stepkeeper-systemd-"  # and the process it belongs to
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEARING_S = 20.0  # what the guest's last processes had open may be busy for a moment
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stepkeeper-systemd-test"


def wheelhouse(folder: Path) -> Path:
    """stepkeeper's wheel and those of all it needs, in the versions that are locked."""
    folder.mkdir()
    pip, quiet = [sys.executable, "-m", "pip"], ["--quiet", "--disable-pip-version-check"]
    lock = SOURCE / "requirements" / "install.txt"
    subprocess.run([*pip, "download", *quiet, "--require-hashes", "--dest", folder, "--requirement", lock], check=True)
    build = ["wheel", *quiet, "--no-deps", "--no-build-isolation", "--wheel-dir", folder, SOURCE]
    subprocess.run([*pip, *build], check=True)
    return folder


def run(guest: Guest, scenarios: Sequence[Scenario]) -> list[str]:
    """Runs the scenarios, says of each how it went, and gives the names of those that failed."""
    failed = []
    for scenario in scenarios:
        name, began = scenario.__name__.replace("_", " "), time.monotonic()
        try:
            scenario(guest)
            print(f"pass  {time.monotonic() - began:5.1f} s  {name}", flush=True)
        except Exception:  # noqa: BLE001 - the others are to run as well
            print(f"FAIL  {time.monotonic() - began:5.1f} s  {name}\n{traceback.format_exc()}", flush=True)
            print(guest.try_run("journalctl", "-u", "stepkeeper", "-n", "40", "--no-pager").stdout, flush=True)
            failed.append(name)
    return failed


def leave(number: int, _: object) -> None:
    """Ends this run as the signal asks, by way of clearing the machine away."""
    sys.exit(128 + number)


def clear(folder: Path) -> None:
    """Takes a machine's disk away, and says so if that can't be done."""
    deadline = time.monotonic() + CLEARING_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists() and time.monotonic() > deadline:
            print(f"cannot take {folder} away; see what is mounted or open there", file=sys.stderr)
            return


def sweep() -> None:
    """Takes away the disks of runs that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            clear(path)


def run_in_guest(scenarios: Sequence[Scenario], shown: dict[str, Path], keep: bool) -> list[str]:
    """Does what `run` does in a guest of its own, which it clears away. Raises NoGuest if none can be had."""
    guests.require_rights()
    for number in ENDING:
        signal.signal(number, leave)
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    guest: Guest | None = None
    try:
        tree = guests.build(CACHE)
        subprocess.run(["cp", "-a", tree, folder / "root"], check=True)
        (folder / "root" / "root").chmod(0o755)  # where this machine's interpreter may have to be shown
        guest = Guest(folder / "root", {**shown, "/wheelhouse": wheelhouse(folder / "wheelhouse")})
        try:
            guest.boot()
        except AssertionError as error:  # nothing of stepkeeper's is in it yet
            raise NoGuest(str(error)) from error
        return run(guest, scenarios)
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # to clear away takes a moment, and asking twice must not end it
        if guest is not None:
            guest.destroy()
        if keep:
            print(f"the machine's disk is {folder}")
        else:
            clear(folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.systemd", description=__doc__)
    parser.add_argument("-k", metavar="TEXT", help="after the installation only scenarios with this in their name")
    parser.add_argument("--tensorflow", action="store_true", help="train with TensorFlow too (some minutes more)")
    parser.add_argument("--keep", action="store_true", help="leave the machine's disk, and say where it is")
    options = parser.parse_args()
    wanted = [each for each in ALL if each is ALL[0] or not options.k or options.k in each.__name__.replace("_", " ")]
    shown = {"/src": SOURCE}
    if options.tensorflow:
        wanted.insert(
            -1 if wanted[-1] is ALL[-1] else len(wanted), tensorflow_job.weights_after_a_poweroff_are_bit_equal
        )
        shown |= tensorflow_job.shown()
    try:
        failed = run_in_guest(wanted, shown, options.keep)
    except NoGuest as error:
        print(f"cannot boot a machine here: {error}", file=sys.stderr)
        return 2
    print(f"{len(wanted) - len(failed)} of {len(wanted)} passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
