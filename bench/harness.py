"""Shared by the measurements: facts about the machine, compiled modules, the file of results."""

import compileall
import json
import os
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def machine() -> dict[str, Any]:
    """The facts about the machine that results depend on; the load is that of the last five minutes."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def compiled() -> None:
    """Compiles our modules, as pip does with what it installs: no figure has that in it, whatever Python is told."""
    for package in ("supervisor", "worker"):
        compileall.compile_dir(ROOT / package, quiet=1)


def write(name: str, content: dict[str, Any]) -> Path:
    """Writes bench/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")
    return path
