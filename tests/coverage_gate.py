"""Measures which lines the tests run, and fails if fewer of them are run than before: `python -m tests.coverage_gate`.

Measured is what the tests of `make quick` run of the daemon and its clients, in the process of the tests. What real
daemons run besides is not: most of them are killed. Nor is `worker`, whose watch needs Python's trace function itself.
"""

import subprocess
import sys

from tests.places import ROOT

TESTS = (
    *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--ignore=tests/worker"),
    *("-m", "not integration and not slow and not tensorflow"),
)


def main() -> int:
    """The exit status: that of the gate in pyproject.toml. Whether tests pass is for another part."""
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "run", *TESTS], cwd=ROOT, check=False)
    return subprocess.run([*coverage, "report", "--skip-covered", "--sort=cover"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
