"""Runs the tests that failed in the last run once more, one after another: `python -m tests.again`.

Most tests here are of real processes, and on a machine that stands still for a minute one in thousands can be too
late. A test that fails twice is broken, and so is a project of which more than `ACCIDENTS` fail; one that fails once
is named, as it may have met a race of the product's own.
"""

import json
import sys
from pathlib import Path

import pytest

ACCIDENTS = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """The exit status: 0 if a few failed, and pass now."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= ACCIDENTS:
        print(f"{len(failed)} tests are known to have failed in the last run; 1 to {ACCIDENTS} would be run again")
        return 1
    status = pytest.main(["-v", *failed])
    for test in failed if status == pytest.ExitCode.OK else ():
        print(f"FAILED ONCE: {test}: it passed alone; look for the race")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
