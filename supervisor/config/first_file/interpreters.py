"""Which interpreter runs a script, and what it lacks for that."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from supervisor.protocol.installation import install_stepkeeper

PROBE_TIMEOUT_S = 20.0  # for an interpreter on a cold network disk to start


def missing_worker(python: Path) -> str:
    """That an interpreter lacks the package, and how it gets it."""
    command = install_stepkeeper(str(python))
    return f"{python} has no stepkeeper, which the script imports as 'worker'; install it there: {command}"


def has_worker(python: Path) -> bool:
    """Whether this interpreter can import stepkeeper's package `worker`."""
    code = "import importlib.util as u; s = u.find_spec('worker'); print(s.origin if s else '')"
    try:
        origin = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, cwd="/", timeout=PROBE_TIMEOUT_S, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return False
    return bool(origin) and (Path(origin).parent / "process" / "startup.py").exists()


def find_interpreter(script: Path, environment: Mapping[str, str]) -> Path:
    """The script's: of an environment beside it, of the one that is active, else the daemon's own."""
    folders = [script.parent / ".venv", script.parent / "venv"]
    folders += [
        Path(environment[variable]) for variable in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(variable)
    ]
    interpreters = [folder / "bin" / "python" for folder in folders]
    return next((path for path in interpreters if os.access(path, os.X_OK)), Path(sys.executable))


def missing_packages(python: Path, names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Those that the interpreter does not find, nor in these folders; none if it can't be asked."""
    code = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))"
    elsewhere = [name for name in names if not any(has_module(folder, name) for folder in folders)]
    if python == Path(sys.executable):
        return [name for name in elsewhere if find_spec(name) is None]
    try:
        answer = subprocess.run(
            [python, "-c", code, *elsewhere],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=PROBE_TIMEOUT_S,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return []
    return [name for name in elsewhere if name in answer]


def has_module(folder: Path, name: str) -> bool:
    """Whether a module or package of that name is in the folder."""
    return (folder / f"{name}.py").exists() or any((folder / name).glob("*.py"))
