"""Starts the scripts of the corpus in forks of a process that has imported their framework (`tests.forked`)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench import peer
from supervisor.protocol.wire.launch import Interval, Launch
from tests import forked
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


_MODULES = {
    Framework.NUMPY: forked.NUMPY,
    Framework.TENSORFLOW: forked.TENSORFLOW,
    Framework.TORCH: forked.TORCH,
    Framework.JAX: forked.JAX,
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
    """Starts scripts that have their framework already, and are killed where `strike.py` says.

    Raises peer.NotInstalled.
    """

    def __init__(self, framework: Framework) -> None:
        self._python = str(python_of(framework))
        self._modules = _MODULES[framework]

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
        strikes = folder / "strikes.json"
        strikes.write_text(json.dumps([] if strike is None else [strike]))
        environment = {**os.environ, **forked.ONE_THREAD, **launch.to_environment(), "STRIKES": str(strikes)}
        environment |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "XDG_STATE_HOME": str(folder / "state")}
        if counts is not None:
            environment["COUNTS"] = str(counts)
        command = [self._python, str(HERE / "strike.py"), str(script), *arguments]
        with stdout.open("ab") as output, stderr.open("ab") as errors:
            process = forked.ForkedProcess(
                command, self._modules, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            text = stderr.read_text(errors="replace")
            raise TimeoutError(f"{script.name} was not at its end after {SECONDS:g} s\n{text[-2000:]}") from error
        return Ended(status, *(path.read_text(errors="replace") for path in (stdout, stderr)))


class Starters:
    """A starter for each framework."""

    def __init__(self) -> None:
        self._started: dict[Framework, Starter] = {}

    def of(self, framework: Framework) -> Starter:
        """The framework's. Raises peer.NotInstalled."""
        if framework not in self._started:
            self._started[framework] = Starter(framework)
        return self._started[framework]
