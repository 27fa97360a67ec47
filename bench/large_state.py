"""Measures a job with gigabytes of state: a save, a kill, the restore, the proof, and the memory that they take.

Run with `python -m bench.large_state --gb 10`; needs that much memory, and twice as much if the copy for a save is to
fit, and three times as much of disk in `--folder`. The first save, here right after the first step,
takes new memory for its copy, which the kernel has to clear, and a virtual machine may have to get from its host; the
next one uses that again. Prints a table and writes bench/results/large_state.json. Beside them `dd`, which writes and
reads the same bytes past the page cache and syncs them. `memory`: of the worker, at its peak, beyond what it had
before, as a share of the state.

With `--mirror file` or `--mirror s3` instead: the upload to a folder, or to moto's S3 server (which has all of it in
memory while it puts the parts together), and the download at a start on an empty host. `memory` of these: of the
largest of the daemon's processes, without the worker.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench import harness
from tests.mirror.stores import new_bucket, s3_server
from tests.system.harness import Daemon

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 1800.0
JOB = """
[program:job]
command = {python} {root}/bench/large_state_job.py
checkpoint_dir = {folder}/job
checkpoint_interval = 1000000 steps
standby = off
environment = GB="{gb}",PYTHONPATH="{root}"
{mirror}
"""
LOOK_S = 0.1
OF_DD = (
    ("first save", "write"),
    ("save", "write"),
    ("restore", "read"),
    ("verify", "read"),
    ("upload", "read"),
    ("fetch", "write"),
)
"""What is shown beside what `dd` takes."""


def memory_mb(pid: int, field: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field)) / 1024


def timed(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


@contextlib.contextmanager
def peak_memory(result: dict[str, Any], name: str, parent: int) -> Iterator[None]:
    """Records how many megabytes the largest of a process and its children has while the block runs; no worker's."""
    is_over = threading.Event()

    def watch() -> None:
        result[name] = 0.0
        while not is_over.wait(LOOK_S):
            for process in (daemon := psutil.Process(parent), *daemon.children()):
                with contextlib.suppress(psutil.Error):
                    if "large_state_job" not in " ".join(process.cmdline()):
                        result[name] = max(result[name], process.memory_info().rss / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def mirrored(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The keys of a job with a mirror of that kind, and the environment of its daemon."""
    if kind == "s3":
        with s3_server(folder) as endpoint:
            store = new_bucket(endpoint, folder / "s3.log")
            yield f"mirror = {store.url}/job\nmirror_keep = 1", dict(store.environment)
    else:
        (folder / "store" / "job").mkdir(parents=True)  # an empty store could be a disk that is not mounted
        yield f"mirror = file://{folder}/store\nmirror_keep = 1", {}


def logged(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (folder / "daemon.log").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def until_logged(daemon: Daemon, folder: Path, event: str, count: int = 1) -> dict[str, Any]:
    """The last line of that event in the daemon's log, once it has so many."""
    daemon.until(lambda: len(logged(folder, event)) >= count, event, PATIENCE_S)
    return logged(folder, event)[-1]


def measured_with_dd(gb: float, folder: Path) -> dict[str, float]:
    """Seconds in which `dd` writes and syncs as many bytes, and reads them, past the page cache."""
    path = folder / "dd"
    size = [f"bs={1 << 24}", f"count={int(gb * 1e9) >> 24}"]
    written_s = timed(["dd", "if=/dev/zero", f"of={path}", *size, "oflag=direct", "conv=fsync"])
    read_s = timed(["dd", f"if={path}", "of=/dev/null", *size, "iflag=direct"])
    path.unlink()
    return {"dd_write_s": written_s, "dd_read_s": read_s}


def measured_mirror(gb: float, folder: Path, kind: str) -> dict[str, Any]:
    """An upload, and a start on an empty host."""
    result: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        keys, environment = stack.enter_context(mirrored(kind, folder))
        text = JOB.format(python=sys.executable, root=ROOT, folder=folder, gb=gb, mirror=keys)
        daemon = stack.enter_context(Daemon(folder, text, environment=environment, scripts_have=None))
        assert daemon.process is not None
        daemon.until(lambda: daemon.status("job")["job"]["step"], "it trains", PATIENCE_S)
        with peak_memory(result, "upload_memory_mb", daemon.process.pid):
            daemon.call("checkpoint", name="job")
            result["upload_s"] = until_logged(daemon, folder, "mirror.uploaded")["took_s"]
        os.kill(int(daemon.status("job")["pid"]), signal.SIGSTOP)  # it saves no more
        daemon.stop(signal.SIGKILL)
        os.kill(worker := int(logged(folder, "worker.spawned")[-1]["pid"]), signal.SIGKILL)
        psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [])
        shutil.rmtree(folder / "job")
        result |= measured_with_dd(gb, folder)
        began = time.monotonic()
        daemon.start()
        assert daemon.process is not None
        with peak_memory(result, "fetch_memory_mb", daemon.process.pid):
            until_logged(daemon, folder, "mirror.fetched")
        result["fetch_s"] = time.monotonic() - began
        result["restore_s"] = until_logged(daemon, folder, "worker.restored", 2)["restore_s"]
    return result


def measured(gb: float, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    megabytes = int(gb * 1000)
    text = JOB.format(python=sys.executable, root=ROOT, folder=folder, gb=gb, mirror="")
    with Daemon(folder, text, scripts_have=None) as daemon:

        def job() -> dict[str, Any]:
            return dict(daemon.status("job")["job"])

        daemon.until(lambda: job()["step"], "it trains", PATIENCE_S)
        pid = int(daemon.status("job")["pid"])
        before = memory_mb(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        for count, what in enumerate(("first_save", "save"), 1):
            daemon.call("checkpoint", name="job")
            saved = until_logged(daemon, folder, "checkpoint.committed", count)
            result[f"{what}_s"], result[f"{what}_stall_s"] = saved["save_s"], saved["stall_s"]
        result["save_memory"] = (memory_mb(pid, "VmHWM") - before) / megabytes
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        daemon.until(lambda: job()["attempt"] == 2 and job()["step"] and job()["restored"], "it goes on", PATIENCE_S)
        result["until_it_trains_s"] = time.monotonic() - killed_at
        result["restore_s"] = logged(folder, "worker.restored")[-1]["restore_s"]
        pid = int(daemon.status("job")["pid"])
        result["restore_memory"] = (memory_mb(pid, "VmHWM") - before) / megabytes
        ctl = [sys.executable, "-c", "import sys; from supervisor.ctl.main import main; sys.exit(main())"]
        result["verify_s"] = timed([*ctl, "checkpoints", "--verify", str(folder / "job")])
        os.kill(pid, signal.SIGSTOP)
        result |= measured_with_dd(gb, folder)
        os.kill(pid, signal.SIGKILL)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=10)
    parser.add_argument("--folder", type=Path, help="where a folder for it is made")
    parser.add_argument("--mirror", choices=("file", "s3"), help="measure a mirror of this kind instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-", dir=options.folder) as folder:
        if options.mirror is not None:
            result = measured_mirror(options.gb, Path(folder), options.mirror)
        else:
            result = measured(options.gb, Path(folder))
    table = Table("", "seconds", "of dd", title=f"{options.gb:g} GB")
    for what, beside in OF_DD:
        if (seconds := result.get(f"{what.replace(' ', '_')}_s")) is not None:
            table.add_row(what, f"{seconds:.1f}", f"{seconds / result[f'dd_{beside}_s']:.2f}")
    for name, seconds in result.items():
        what = name.removesuffix("_s").replace("_", " ")
        if name.endswith("_s") and what not in dict(OF_DD):
            table.add_row(what, f"{seconds:.1f}", "")
        elif name.endswith("_memory"):
            table.add_row(what, f"{seconds:+.2f} of the state", "")
        elif name.endswith("_mb"):
            table.add_row(what.removesuffix(" mb"), f"{seconds:.0f} MB", "")
    Console(width=100).print(table)
    harness.write("large_state", {"gb": options.gb, "mirror": options.mirror, **result})


if __name__ == "__main__":
    main()
