"""Runs all tests of a real Slurm, also those that take minutes: `make slurm-test`.

Exit status: 0 if all pass, 1 if one does not, 2 if there can be no cluster on this machine.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import why_not_here


def main() -> int:
    if (reason := why_not_here()) is not None:
        print(f"cannot make a Slurm cluster here: {reason}", file=sys.stderr)
        return 2
    os.environ["SLURM_TEST"] = "1"
    own_cache = ["-o", "cache_dir=.pytest_cache/slurm"]  # what failed here is kept, whatever runs beside it
    options = ["-n", "0", "-rs", "-v", "--durations=0", *own_cache, *sys.argv[1:]]
    status = pytest.main([str(Path(__file__).parent), *options])
    return 1 if status != pytest.ExitCode.OK else 0


if __name__ == "__main__":
    sys.exit(main())
