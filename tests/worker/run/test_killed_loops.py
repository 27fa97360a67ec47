"""Loops over indices, numbers and episodes are killed at any line, and end with the bits of an undisturbed training."""

from pathlib import Path

import pytest

from tests.training_code import rig
from tests.training_code.rig import Strike
from tests.training_code.strike import SAVE
from tests.worker.run.test_multiworker import CHILDREN

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
HEAD, STEP, SAVED, TAIL = r"run\.(order|epochs)", r"weights\.train", r"run\.step_done", r"weights\.change"
END = r"sys\.stdout"
"""The last line, when training is complete."""
AGAIN = pytest.mark.nightly  # tests/worker/progress/test_loops.py has a death at every moment of such a loop


@pytest.mark.parametrize(
    ("loop", "steps", "strikes"),
    [
        ("indices", 24, [(SAVED, 1), (STEP, 5), (TAIL, 1), (SAVE, 3), (TAIL, 1), (SAVED, 5), (END, 1)]),
        pytest.param("slices", 9, [(STEP, 2), (SAVED, 2), (TAIL, 1), (SAVE, 2), (TAIL, 1), (END, 1)], marks=AGAIN),
        ("episodes", 12, [(SAVED, 1), (TAIL, 1), (TAIL, 3), (SAVE, 2), (STEP, 2), (TAIL, 2), (END, 1)]),
        pytest.param("numbers", 12, [(SAVED, 1), (STEP, 4), (SAVE, 2), (STEP, 3), (END, 1)], marks=AGAIN),
    ],
)
def test_killed_loop_ends_with_the_bits_of_an_undisturbed_one(
    loop: str, steps: int, strikes: list[Strike], tmp_path: Path
) -> None:
    script = tmp_path / "loops.py"
    script.write_text((CHILDREN / "loops.py").read_text().replace("LOOP = indices", f"LOOP = {loop}"))
    undisturbed = rig.run("loops", tmp_path / "undisturbed", script=script)
    killed = rig.run("loops", tmp_path / "killed", strikes, script=script)

    assert undisturbed.step == steps
    assert "cannot resume exactly" not in undisturbed.said
    assert killed.hits == tuple(strikes), "each attempt but the last dies where it was meant to"
    assert killed.result == undisturbed.result
