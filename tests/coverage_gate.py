"""Measures which lines the tests run, and fails if fewer of them are run than before: `python -m tests.coverage_gate`.

Measured is what the tests of `make quick` run in the packages that the daemon and its clients are made of. Those of
`worker` are run by processes that kill themselves, and its watch needs Python's trace function for itself.
"""

import subprocess
import sys

from tests.places import ROOT

TESTS = (
    "-m",
    "pytest",
    "-q",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-m",
    "not integration and not slow and not tensorflow",
)


def main() -> int:
    """The exit status: pytest's, or that of the gate in pyproject.toml."""
    coverage = [sys.executable, "-m", "coverage"]
    tests = subprocess.run([*coverage, "run", *TESTS], cwd=ROOT, check=False).returncode
    report = subprocess.run([*coverage, "report", "--skip-covered", "--sort=cover"], cwd=ROOT, check=False).returncode
    return tests or report


if __name__ == "__main__":
    sys.exit(main())
