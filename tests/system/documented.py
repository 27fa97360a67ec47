"""Runs the commands of a document as a reader would: copied literally, in a shell, one after the other."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0  # for what takes a second; the machine may be busy
ENDED_BY_CTRL_C = ("status --watch", "supervisorctl events")  # `top` ends by itself without a terminal


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document: what stands between two fences."""

    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """Its lines without their comments."""
        for line in self.text.splitlines():
            if command := line.partition(" #")[0].strip():
                yield command


def blocks(document: Path, *languages: str) -> list[Block]:
    """Those of the document that are in one of these languages; all for none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(*block) for block in found if not languages or block[0] in languages]


class Shell:
    """A shell in the folder of a script, with stepkeeper's commands in its PATH."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}

    def run(self, command: str, patience_s: float = PATIENCE_S) -> tuple[int, str]:
        """The exit status and what it printed; what runs until Ctrl-C gets one once it has printed something."""
        process = subprocess.Popen(
            command, shell=True, executable="/bin/bash", cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=(self.folder / "out").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        if command.endswith(ENDED_BY_CTRL_C):
            wait_until(lambda: (self.folder / "out").stat().st_size > 0 or process.poll() is not None, command)
            process.send_signal(signal.SIGINT)
        return process.wait(patience_s), (self.folder / "out").read_text()

    def do(self, command: str, patience_s: float = PATIENCE_S) -> str:
        """What it printed; asserts that it succeeds."""
        status, printed = self.run(command, patience_s)
        assert status == 0, f"{command}: {printed}"
        assert "Traceback" not in printed, f"{command}: {printed}"
        return printed

    def end_daemon(self) -> None:
        """Ends the daemon of this folder, if one is left, also one that its commands no longer reach."""
        self.run("supervisorctl shutdown")
        lock = self.folder / ".stepkeeper" / "lock"
        if not lock.exists():
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(int(lock.read_text()))
            daemon.terminate()
            daemon.wait(PATIENCE_S)
