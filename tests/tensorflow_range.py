"""Runs the worker's tests with the oldest and the newest TensorFlow that pyproject.toml promises.

`python -m tests.tensorflow_range [oldest|newest]`. Each has an environment of its own, `.venv-tensorflow-oldest` and
`.venv-tensorflow-newest`, which is made at its first use; the newest is brought up to date by every run. Needs a
package index.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.places import ROOT

TESTS = (
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "scikit-learn",
    "obstore",
    "aiohttp",
)
WHERE = ("tests/worker", "-m", "tensorflow and not nightly")


def promised() -> str:
    """The requirement, such as `tensorflow>=2.18,<3`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["tensorflow"]
    return str(requirement)


def oldest(requirement: str) -> str:
    """The oldest minor version that it allows, such as `tensorflow==2.18.*`."""
    return requirement.split(",")[0].replace(">=", "==") + ".*"


def python_with(name: str, requirement: str) -> Path:
    """The interpreter of an environment with this TensorFlow, and with what the worker's tests import."""
    folder = ROOT / f".venv-tensorflow-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*pip, requirement, "--editable", ROOT, *TESTS], check=True)
    return python


def main(names: list[str]) -> int:
    """The exit status: that of the first run that failed."""
    requirement = promised()
    wanted = {"oldest": oldest(requirement), "newest": requirement}
    statuses = []
    for name in names or list(wanted):
        python = python_with(name, wanted[name])
        print(f"{name} of {requirement}:", flush=True)
        version = "from importlib.metadata import version; print('TensorFlow', version('tensorflow'))"
        subprocess.run([python, "-c", version], check=True)
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *WHERE], cwd=ROOT, check=False
        )
        statuses.append(done.returncode)
    return next((status for status in statuses if status != 0), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
