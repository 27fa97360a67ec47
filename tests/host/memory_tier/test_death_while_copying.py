"""A process that copies its state dies at any point of that: what is proven afterwards is the whole state of one step.

Real processes: each makes two copies and dies in the third one, at another instruction of the code that copies, or at a
moment that nobody chose.
"""

import itertools
import json
import os
import subprocess
import sys

import pytest

from tests.places import CHILDREN, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MANY = 30  # instructions after which it is over


def proven_after_deaths(at: str, number: int) -> list[list[int]]:
    """By death: the steps that are proven then, newest first."""
    command = [sys.executable, str(CHILDREN / "copying.py"), at, str(number)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[list[int]] = json.loads(done.stdout)
    return outcomes


def test_before_any_instruction_of_the_copying_code_the_copy_before_is_whole_or_the_new_one() -> None:
    outcomes = proven_after_deaths("instructions", MANY)

    assert outcomes[0] == [11, 10], "nothing is overwritten yet"
    assert [steps for steps, _ in itertools.groupby(outcomes)] == [[11, 10], [11], [12, 11]]
    assert len(outcomes) > 5 * MANY


def test_a_kill_at_any_moment_leaves_a_whole_copy_of_one_step() -> None:
    outcomes = proven_after_deaths("moments", 30)

    assert len(outcomes) == 30
    for steps in outcomes:
        assert steps
        assert steps[0] >= 11
        assert steps in ([steps[0]], [steps[0], steps[0] - 1])
