"""Looks up what is locked in requirements/ among the known vulnerabilities: `make audit`, with pip-audit.

- What an installation gets (install.txt) and a later version mends: an error. `make lock` takes the later version.
- What has no fix yet, or is only in the environment for development or the demo: said, and no error. Nobody who changes
  something else could do anything about it.
- Where PyPI can't be asked (no network, a mirror without advisories, too slow): skipped, with the reason, and no error.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.protocol.plurals import listed
from tests.places import ROOT

LOCKS = ROOT / "requirements"
ENVIRONMENT = ROOT / ".venv-audit"
INSTALLED = "install.txt"
ASKED = (INSTALLED, "demo.txt", "dev.txt")
ADVISORIES = "https://pypi.org/pypi/pip/25.0/json"  # has the key `vulnerabilities`, which mirrors leave out
PROBE_S, INSTALL_S, AUDIT_S = 10.0, 300.0, 180.0


class NotPossible(Exception):
    """The audit can't be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A known vulnerability of a locked package. `fixed_in`: versions without it."""

    package: str
    version: str
    id: str
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}; run make lock" if self.fixed_in else "there is no fix yet"
        return f"{self.package} {self.version}: {self.id}; {remedy}"


def probe(url: str = ADVISORIES, timeout_s: float = PROBE_S) -> None:
    """Raises NotPossible unless PyPI answers, with its advisories."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            body = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise NotPossible(f"PyPI's advisories can't be asked: {error}") from error
    if not isinstance(body, dict) or "vulnerabilities" not in body:
        raise NotPossible("the index here is a mirror without PyPI's advisories")


def install() -> Path:
    """The pip-audit of an environment of its own. Raises NotPossible."""
    command = ENVIRONMENT / "bin" / "pip-audit"
    if not command.exists():
        pip = [ENVIRONMENT / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        run([sys.executable, "-m", "venv", ENVIRONMENT], INSTALL_S)
        run([*pip, "-r", LOCKS / "audit.txt"], INSTALL_S)
    return command


def run(command: list[str | Path], limit_s: float) -> str:
    """The output of a command that may exit with 1. Raises NotPossible."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPossible(str(error)) from error
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout):
        raise NotPossible(f"{Path(command[0]).name} exited with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def findings_in(report: str) -> tuple[list[Finding], list[str]]:
    """What a report of pip-audit lists, and the packages that it could not look up.

    Raises NotPossible, also if it could look up none.
    """
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
        skipped = [each["name"] for each in packages if "skip_reason" in each]
        found = [
            Finding(each["name"], each["version"], one["id"], tuple(one["fix_versions"]))
            for each in packages
            if "skip_reason" not in each
            for one in each["vulns"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise NotPossible(f"pip-audit's report can't be read: {error!r}") from error
    if len(skipped) == len(packages):
        raise NotPossible("the index here knows none of the packages that are locked")
    return found, skipped


def judge(lock: str, found: Iterable[Finding]) -> tuple[list[str], bool]:
    """A line for each finding in a lock file, and whether one of them is an error."""
    lines = [f"{lock}: {each}" for each in found]
    return lines, lock == INSTALLED and any(each.fixed_in for each in found)


def main() -> int:
    is_bad = False
    try:
        probe()
        command = install()
        for lock in ASKED:
            options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
            found, skipped = findings_in(run([command, *options, "--requirement", LOCKS / lock], AUDIT_S))
            lines, is_error = judge(lock, found)
            is_bad |= is_error
            print("\n".join(lines) or f"{lock}: no known vulnerability in what was looked up")
            if skipped:
                print(f"{lock}: not looked up: {listed(skipped, ', ')}")
    except NotPossible as error:
        print(f"audit skipped: {error}")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
