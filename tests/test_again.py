"""What runs again after a failed run, and what does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = pytest.mark.integration

ONCE = """
from pathlib import Path
def test_once():
    was, mark = Path("mark").exists(), Path("mark").touch()
    assert was
def test_whole(): pass
"""
BROKEN = "def test_broken(): assert False\n"


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_test_that_fails_once_is_named_and_the_others_do_not_run(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(ONCE)
    first = python(tmp_path, "pytest")

    again = python(tmp_path, "tests.again")

    assert (first.returncode, again.returncode) == (1, 0)
    assert "1 passed" in again.stdout
    assert "FAILED ONCE: test_it.py::test_once" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "says"),
    [
        (ONCE + BROKEN, "1 failed, 1 passed"),
        (
            "".join(BROKEN.replace("broken", f"broken_{number}") for number in range(4)),
            "4 tests are known to have failed",
        ),
        ("def test_whole(): pass", "0 tests are known to have failed"),
    ],
)
def test_repeated_or_frequent_failures_fail_the_run(tmp_path: Path, tests: str, says: str):
    (tmp_path / "test_it.py").write_text(tests)
    python(tmp_path, "pytest")

    again = python(tmp_path, "tests.again")

    assert again.returncode == 1
    assert says in again.stdout
    assert "FAILED ONCE" not in again.stdout
