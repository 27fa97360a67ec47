"""A real worker without TensorFlow that goes wrong once, in the way that FAULT says, and else counts and draws numbers.

With FAULT=told it goes wrong whenever a file `told` in MARKS says how, which it takes away.
STEPS, STEP_S: how many and how long; once there is a file `hurry` in MARKS, no longer than they have to be. MARKS: a
folder outside of its checkpoints, for what happened already and, in the end, for what the whole training came to.
SIZE: of the state, in numbers.
"""

import ctypes
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker.files import FilesRun, Unfit
from worker.process.startup import current_attempt

FAULT = os.environ["FAULT"]
STEPS = int(os.environ.get("STEPS", "40"))
STEP_S = float(os.environ.get("STEP_S", "0.02"))
SIZE = int(os.environ.get("SIZE", "16"))
MARKS = Path(os.environ["MARKS"])
AT = 13  # a checkpoint of step 10 is there
GARBAGE = (b'{"type": "progress", "step": 1e999}\n', b"\xff\xfe\x00" * 100 + b"\n", b"[" * 5000 + b"\n", b"x" * 200_000)


def due(step: int) -> str:
    """How it is to go wrong now; empty: it is not."""
    if FAULT != "told":
        return FAULT if FAULT != "none" and step >= AT and first_time() else ""
    told = MARKS / "told"
    try:
        word = told.read_text()
        told.unlink()
    except FileNotFoundError:
        return ""
    return word


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
        self.goes_wrong = ""

    def write(self, folder: Path) -> None:
        if self.goes_wrong:
            (folder / "value.npy").write_bytes(b"half")
            if self.goes_wrong == "exit-in-save":
                os._exit(3)
            time.sleep(600)
        np.save(folder / "value.npy", self.value)

    def read(self, folder: Path) -> None:
        self.value = np.load(folder / "value.npy", allow_pickle=False)

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("another program's")


def go_wrong(fault: str) -> None:
    channel = current_attempt().channel
    assert channel is not None
    match fault:
        case "hang-in-save" | "exit-in-save":
            state.goes_wrong = fault
        case "eat":
            eaten = []
            while True:
                eaten.append(b"x" * (1 << 20))
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
            random.seed(7)  # nobody draws from it, but it is in every checkpoint
        while not run.reached:
            time.sleep(0.0 if (MARKS / "hurry").exists() else STEP_S)
            state.value += np.random.rand()
            fault = due(run.step)
            if fault and fault != "nan":
                go_wrong(fault)
            run.step_done(epoch=0, batch=run.step, **({"loss": float("nan")} if fault == "nan" else {}))
    (MARKS / "result").write_text(json.dumps([run.step, float(state.value[0])]))


state = State()
run = FilesRun(state, total_steps=STEPS)

if __name__ == "__main__":
    main()
