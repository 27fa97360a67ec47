"""A real worker without TensorFlow that goes wrong once, in the way that FAULT says, and else counts and draws numbers.

STEPS, STEP_S: how many and how long. MARKS: a folder outside of its checkpoints, for what happened already and, in the
end, for what the whole training came to. SIZE: of the state, in numbers.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker import attempt
from worker.files import FilesRun, Unfit

FAULT = os.environ["FAULT"]
STEPS = int(os.environ.get("STEPS", "40"))
STEP_S = float(os.environ.get("STEP_S", "0.02"))
SIZE = int(os.environ.get("SIZE", "16"))
MARKS = Path(os.environ["MARKS"])
AT = 13  # a checkpoint of step 10 is there
GARBAGE = (b'{"type": "progress", "step": 1e999}\n', b"\xff\xfe\x00" * 100 + b"\n", b"[" * 5000 + b"\n", b"x" * 200_000)


def first_time() -> bool:
    """Whether it has not gone wrong yet."""
    try:
        (MARKS / "happened").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class State:
    """The sum of all that was drawn, and as much besides as SIZE says."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.value = np.zeros(SIZE)

    def write(self, folder: Path) -> None:
        if FAULT.endswith("in-save") and run.step >= AT and first_time():
            (folder / "value.npy").write_bytes(b"half")
            if FAULT == "exit-in-save":
                os._exit(3)
            time.sleep(600)
        np.save(folder / "value.npy", self.value)

    def read(self, folder: Path) -> None:
        self.value = np.load(folder / "value.npy", allow_pickle=False)

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("another program's")


def go_wrong() -> None:
    channel = attempt.this().channel
    assert channel is not None
    match FAULT:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "segfault":
            ctypes.string_at(0)
        case "raise":
            raise ValueError("no such batch")
        case "hang":
            time.sleep(600)
        case "exit-0":
            os._exit(0)
        case "flood":
            for _ in range(20):
                os.write(1, b"flood\n" * 170_000)
        case "family":
            stubborn = "import signal, time; signal.signal(15, 1); time.sleep(600)"
            for leaves in (True, False):
                subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=leaves)
            os.kill(os.getpid(), signal.SIGKILL)
        case "close-pipes":
            for name in os.listdir("/proc/self/fd"):
                if "pipes" in os.readlink(f"/proc/self/fd/{name}") or ".fifo" in os.readlink(f"/proc/self/fd/{name}"):
                    os.close(int(name))
            os.closerange(3, 256)
        case "garbage":
            pipe = os.open(channel.pipes / "from-worker", os.O_WRONLY)
            for _ in range(10):
                for each in GARBAGE:
                    os.write(pipe, each)
            os.write(pipe, b"\n")


def main() -> None:
    with run:
        only = os.open(MARKS / "only", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(only, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (MARKS / "two").touch()
        os.set_inheritable(only, False)
        if run.step == 0:
            np.random.seed(7)
        while not run.reached:
            time.sleep(STEP_S)
            state.value += np.random.rand()
            figures = {"loss": float("nan")} if FAULT == "nan" and run.step >= AT and first_time() else {}
            if FAULT not in ("nan", "none") and not FAULT.endswith("in-save") and run.step >= AT and first_time():
                go_wrong()
            run.step_done(epoch=0, batch=run.step, **figures)
    (MARKS / "result").write_text(json.dumps([run.step, float(state.value[0])]))


state = State()
run = FilesRun(state, total_steps=STEPS)

if __name__ == "__main__":
    main()
