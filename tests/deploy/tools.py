"""The judges of what is in deploy/: other people's tools, found or named in the reason for a skip."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.places import ROOT

DEPLOY = ROOT / "deploy"
PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def tool(name: str, come_from: str) -> str:
    """The tool's path; skips the test where it is not installed. `come_from`: where one gets it."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        pytest.skip(f"{name} is not installed ({come_from})")
    return found


def judge(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """What a tool says; fails with it unless the tool ends with status 0."""
    judged = subprocess.run(
        [str(part) for part in command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        cwd=folder,
        env={**os.environ, "PATH": PLACES, "NO_COLOR": "1"},
    )
    assert judged.returncode == 0, f"{Path(str(command[0])).name} ended with {judged.returncode}:\n{judged.stdout}"
    return judged.stdout
