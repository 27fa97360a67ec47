"""Runs the scripts of this folder under a real daemon, kills them at exact lines, compares their last checkpoints.

Each is stored as it runs, beside the patch that its plain form needed: what a user changes. To edit one, take the plain
form with `patch --reverse -o plain.py SCRIPT.py SCRIPT.patch`, and make the patch anew with `diff -U1`.
"""

import ast
import difflib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import peer
from supervisor.protocol.checkpoints import manifest, selection
from tests.places import ROOT
from tests.system.harness import Daemon
from tests.system.killing import TORCH_DIGEST

HERE = Path(__file__).resolve().parent
RESUMABLE = HERE / "resumable"
END_S = 280.0
_HUNK = re.compile(r"@@ -\S+ \+(\d+)")

_PEERS = {"torch_accelerate": peer.LIBRARIES}
"""Scripts that need more packages than PyTorch."""

Strike = tuple[str, int]
"""A pattern in the script's text, and at which execution of such a line the process dies."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `hashes`: of each file of its last checkpoint. `said`: what the worker reported on stderr."""

    step: int
    hashes: dict[str, str]
    hits: tuple[Strike, ...]
    attempts: int
    said: str

    @property
    def result(self) -> tuple[int, dict[str, str]]:
        """What has to be equal."""
        return self.step, self.hashes


def python_of(name: str) -> Path:
    """The interpreter that has the script's framework."""
    if not name.startswith("torch"):
        return Path(sys.executable)
    return peer.binaries(_PEERS.get(name, peer.TORCH)) / "python"


def missing_package(name: str, package: str | None) -> str | None:
    """Why a script can't run here; None if it can. Raises NotInstalled as `python_of`."""
    command = [
        str(python_of(name)),
        "-c",
        f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)",
    ]
    if package is None or subprocess.run(command, check=False).returncode == 0:
        return None
    return f"{package} is not installed; make installs it"


def run(name: str, folder: Path, strikes: Sequence[Strike] = (), keys: str = "", script: Path | None = None) -> Outcome:
    """Runs a resumable script to its end in `folder`; attempt n is killed by strike n."""
    folder.mkdir(parents=True)
    script = script or RESUMABLE / f"{name}.py"
    waiting = folder / "strikes.json"
    waiting.write_text(json.dumps(strikes))
    log = folder / "worker.log"
    section = (
        f"[program:{name}]\ncommand={python_of(name)} {HERE}/strike.py {script}\ndirectory={folder}\n"
        f"checkpoint_dir={folder}/checkpoints\ncheckpoint_interval=1 steps\ndeterministic=true\n"
        f'environment=STRIKES="{waiting}",PYTHONPATH="{ROOT}",TF_CPP_MIN_LOG_LEVEL="2"\n'
        f"startretries=100\nstdout_logfile={log}\nredirect_stderr=true\nstandby=off\n{keys}\n"
    )
    with Daemon(folder, section) as daemon:
        ended = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=END_S)
        attempts = len(daemon.call("history", name=name, limit=1000)["attempts"])
    said = log.read_text(errors="replace") if log.exists() else ""
    if ended["state"] != "SUCCEEDED":
        raise AssertionError(f"{name} is {ended['state']}: {ended['reason']}\n{said[-3000:]}")
    newest = selection.committed_checkpoints(folder / "checkpoints")[0]
    place = folder / "checkpoints" / str(newest)
    hashes = {
        file.name: _digest(name, place / file.name) or file.hash for file in manifest.verify_checkpoint(place).files
    }
    return Outcome(newest.step, hashes, _hits(waiting), attempts, said)


def _hits(strikes: Path) -> tuple[Strike, ...]:
    hits = strikes.with_suffix(".hits")
    return (
        tuple((pattern, count) for pattern, count in map(json.loads, hits.read_text().splitlines()))
        if hits.exists()
        else ()
    )


def _digest(name: str, path: Path) -> str | None:
    """A hash of what a file holds, for those that hold equal state as different bytes."""
    if path.suffix != ".pt":
        return None
    command = [str(python_of(name)), "-c", TORCH_DIGEST, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def added_lines(name: str) -> list[str]:
    """The lines of the resumable script that its plain form doesn't have. Indentation and comments don't count."""
    resumable = _code_lines((RESUMABLE / f"{name}.py").read_text().splitlines())
    return [line[2:] for line in difflib.ndiff(_code_lines(plain_form(name)), resumable) if line.startswith("+ ")]


def plain_form(name: str) -> list[str]:
    """The lines of the script without stepkeeper. Raises ValueError if the patch does not fit the script."""
    resumable = iter((RESUMABLE / f"{name}.py").read_text().splitlines())
    plain: list[str] = []
    taken = 0
    for line in (RESUMABLE / f"{name}.patch").read_text().splitlines()[2:]:
        if hunk := _HUNK.match(line):
            first = int(hunk[1])
            plain += itertools.islice(resumable, first - 1 - taken)
            taken = first - 1
            continue
        if line[0] in " +":
            taken += 1
            if next(resumable, None) != line[1:]:
                raise ValueError(f"{name}.patch does not fit line {taken} of {name}.py; make the patch anew")
        if line[0] in " -":
            plain.append(line[1:])
    return [*plain, *resumable]


def _code_lines(lines: list[str]) -> list[str]:
    """A script's lines without indentation, comments, blank lines and its docstring."""
    docstring = ast.parse("\n".join(lines)).body[0]
    texts = (line.strip() for line in lines[docstring.end_lineno or 0 :])
    return [text for text in texts if text and not text.startswith("#")]
