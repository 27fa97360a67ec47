"""Starts scripts in forks of a process that has imported their framework (`forks.py`)."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import peer
from supervisor.protocol.wire.launch import Interval, Launch
from tests.places import ROOT
from tests.training_code.rig import Strike

HERE = Path(__file__).resolve().parent
SECONDS = 60.0
"""The most that an attempt may take; they take about one."""


class Framework(StrEnum):
    """What a script is written with."""

    NUMPY = "NumPy"
    TENSORFLOW = "TensorFlow"
    TORCH = "PyTorch"
    JAX = "JAX"


_CHECKPOINTS = ("supervisor.protocol.checkpoints.selection", "supervisor.protocol.wire.launch")
"""What `worker` imports of its own package that knows of no attempt."""
_MODULES = {
    Framework.NUMPY: ("numpy",),
    Framework.TENSORFLOW: ("tensorflow", "keras"),
    Framework.TORCH: ("torch", "torch._dynamo"),  # the first optimizer would import it
    Framework.JAX: ("jax", "optax", "tqdm"),
}
_PEERS = {Framework.TORCH: peer.TORCH, Framework.JAX: peer.JAX}


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: its exit status, or minus the number of a signal, and what it printed."""

    status: int
    stdout: str
    stderr: str


def python_of(framework: Framework) -> Path:
    """The interpreter that has it. Raises peer.NotInstalled."""
    return peer.binaries(_PEERS[framework]) / "python" if framework in _PEERS else Path(sys.executable)


class Starter:
    """A process that has imported a framework. Raises peer.NotInstalled."""

    def __init__(self, framework: Framework) -> None:
        python = python_of(framework)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        self.processor_s = 0.0
        """What its forks have taken, without its imports."""
        self._process = subprocess.Popen(
            [str(python), str(HERE / "forks.py"), *_MODULES[framework], *_CHECKPOINTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def start(
        self,
        script: Path,
        folder: Path,
        *,
        strike: Strike | None = None,
        strict: bool = False,
        counts: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> Ended:
        """Runs a script in `folder` until it ends or is struck, as a deterministic job that saves at each step.

        `counts`: a file that gets how often each line was executed. Raises TimeoutError.
        """
        number = len(list(folder.glob("stdout-*")))
        stdout, stderr = folder / f"stdout-{number}", folder / f"stderr-{number}"
        launch = Launch(
            job=script.stem,
            checkpoint_dir=folder / "checkpoints",
            checkpoint_interval=Interval(steps=1),
            deterministic=True,
            strict=strict,
        )
        order = {
            "script": str(script),
            "folder": str(folder),
            "arguments": list(arguments),
            "environment": {**launch.to_environment(), "XDG_STATE_HOME": str(folder / "state")},
            "stdout": str(stdout),
            "stderr": str(stderr),
            "strike": strike,
            "counts": None if counts is None else str(counts),
            "seconds": SECONDS,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        self.processor_s += reply["processor_s"]
        texts = [each.read_text(errors="replace") for each in (stdout, stderr)]
        if reply["is_late"]:
            raise TimeoutError(f"{script.name} was not at its end after {SECONDS:g} s\n{texts[1][-2000:]}")
        return Ended(reply["status"], *texts)


class Starters:
    """A starter for each framework, made at its first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[Framework, Starter] = {}

    def of(self, framework: Framework) -> Starter:
        """The framework's. Raises peer.NotInstalled."""
        if framework not in self._started:
            self._started[framework] = self._stack.enter_context(Starter(framework))
        return self._started[framework]
