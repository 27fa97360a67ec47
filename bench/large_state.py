"""Measures a job with gigabytes of state: a save, a kill, the restore, the proof, and the memory that they take.

Run with `python -m bench.large_state --gb 10`; needs that much memory, and twice as much if the copy for a save is to
fit, and three times as much of disk in `--folder`. The first save, here right after the first step,
takes new memory for its copy, which the kernel has to clear, and a virtual machine may have to get from its host; the
next one uses that again. Prints a table and writes bench/results/large_state.json. Beside them `dd`, which writes and
reads the same bytes past the page cache and syncs them. `memory`: of the worker, at its peak, beyond what it had
before, as a share of the state.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness
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
"""


def memory_mb(pid: int, field: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field)) / 1024


def timed(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


def measured(gb: float, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    megabytes = int(gb * 1000)
    with Daemon(
        folder, JOB.format(python=sys.executable, root=ROOT, folder=folder, gb=gb), scripts_have=None
    ) as daemon:

        def job() -> dict[str, Any]:
            return dict(daemon.status("job")["job"])

        def logged(event: str) -> list[dict[str, Any]]:
            lines = (json.loads(line) for line in (folder / "daemon.log").read_text().splitlines())
            return [line for line in lines if line["event"] == event]

        daemon.until(lambda: job()["step"], "it trains", PATIENCE_S)
        pid = int(daemon.status("job")["pid"])
        before = memory_mb(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        for count, what in enumerate(("first_save", "save")):
            daemon.call("checkpoint", name="job")
            daemon.until(lambda count=count: len(logged("checkpoint.committed")) > count, "it is saved", PATIENCE_S)
            saved = logged("checkpoint.committed")[-1]
            result[f"{what}_s"], result[f"{what}_stall_s"] = saved["save_s"], saved["stall_s"]
        result["save_memory"] = (memory_mb(pid, "VmHWM") - before) / megabytes
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        daemon.until(lambda: job()["attempt"] == 2 and job()["step"] and job()["restored"], "it goes on", PATIENCE_S)
        result["until_it_trains_s"] = time.monotonic() - killed_at
        result["restore_s"] = logged("worker.restored")[-1]["restore_s"]
        pid = int(daemon.status("job")["pid"])
        result["restore_memory"] = (memory_mb(pid, "VmHWM") - before) / megabytes
        ctl = [sys.executable, "-c", "import sys; from supervisor.ctl.main import main; sys.exit(main())"]
        result["verify_s"] = timed([*ctl, "checkpoints", "--verify", str(folder / "job")])
        os.kill(pid, signal.SIGSTOP)
        path = folder / "dd"
        size = [f"bs={1 << 24}", f"count={int(gb * 1e9) >> 24}"]
        result["dd_write_s"] = timed(["dd", "if=/dev/zero", f"of={path}", *size, "oflag=direct", "conv=fsync"])
        result["dd_read_s"] = timed(["dd", f"if={path}", "of=/dev/null", *size, "iflag=direct"])
        path.unlink()
        os.kill(pid, signal.SIGKILL)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=10)
    parser.add_argument("--folder", type=Path, help="where a folder for it is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-", dir=options.folder) as folder:
        result = measured(options.gb, Path(folder))
    table = Table("", "seconds", "of dd", title=f"{options.gb:g} GB")
    for what, beside in (("first save", "write"), ("save", "write"), ("restore", "read"), ("verify", "read")):
        seconds, dd_s = result[f"{what.replace(' ', '_')}_s"], result[f"dd_{beside}_s"]
        table.add_row(what, f"{seconds:.1f}", f"{seconds / dd_s:.2f}")
    for what in ("first_save_stall_s", "save_stall_s", "until_it_trains_s", "dd_write_s", "dd_read_s"):
        table.add_row(what.removesuffix("_s").replace("_", " "), f"{result[what]:.1f}", "")
    for what in ("save_memory", "restore_memory"):
        table.add_row(what.replace("_", " "), f"{result[what]:+.2f} of the state", "")
    Console(width=100).print(table)
    harness.write("large_state", {"gb": options.gb, **result})


if __name__ == "__main__":
    main()
