"""Each example, killed at random seeded moments, ends with the bits of its undisturbed run.

A kill at a step, in a save and in a restore each, over the examples at least two of every kind; and the newest
checkpoint is damaged before some of them. Each meets the moment it was meant for, or is followed by another. In `make
test` that is the example without a framework, whose attempts are short; tests/prove kills the others there. `bench/`
does the same with a hundred kills of each.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.system.killing import EXAMPLES, Damage, Kill, Moment, Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEP, SAVE, RESTORE = Moment.STEP, Moment.SAVE, Moment.RESTORE
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}  # threads that spin slow a busy machine down
SHORTER = {
    "digits": ({"STEPS": "240"}, "checkpoint_interval=20 steps"),
    "charlm": ({"STEPS": "100"}, "checkpoint_interval=6 steps"),
    "fit": ({"EPOCHS": "8"}, "checkpoint_interval=15 steps"),
    "torch": ({"STEPS": "120", **PASSIVE}, "checkpoint_interval=10 steps"),
    "tf1": ({"STEPS": "5000"}, "checkpoint_interval=200 steps"),
    "plain": ({"STEPS": "24000"}, "checkpoint_interval=1200 steps"),
}
Plan = Sequence[tuple[Moment, Damage | None]]


@pytest.mark.nightly  # test_main_job.py kills twenty times, test_plain.py damages too, and the corpus has such loops
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("digits", [(STEP, None), (SAVE, Damage.FLIP)]),
        ("charlm", [(STEP, None), (RESTORE, Damage.CUT)]),
        ("fit", [(STEP, None), (SAVE, Damage.GONE)]),
        ("torch", [(STEP, Damage.MANIFEST), (SAVE, Damage.FLIP), (RESTORE, None)]),
        ("tf1", [(STEP, None), (SAVE, Damage.FLIP)]),
        ("plain", [(STEP, Damage.CUT), (SAVE, None), (RESTORE, Damage.FLIP), (SAVE, Damage.GONE), (RESTORE, None)]),
    ],
)
def test_an_example_killed_again_and_again_ends_with_the_same_bits(name: str, plan: Plan, tmp_path: Path) -> None:
    variables, interval = SHORTER[name]
    given = EXAMPLES[name]
    example = replace(
        given,
        keys=lambda: "\n".join(
            [*(line for line in given.keys().splitlines() if "checkpoint_interval" not in line), interval]
        ),
        environment={**given.environment, **variables},
    )
    chance = random.Random(f"kills of {name}")
    kills = [Kill(moment, 0.3 + 0.4 * chance.random(), damage) for moment, damage in plan]
    try:
        with Rig(example, tmp_path) as rig:
            undisturbed = rig.undisturbed()
            disturbed = rig.killed(kills, insist=True)
    except NotInstalled as error:
        pytest.skip(str(error))

    print([(hit.kill.moment, hit.met, hit.step, hit.damaged) for hit in disturbed.hits])
    met = Counter(hit.met for hit in disturbed.hits)
    assert met >= Counter(moment for moment, _ in plan), "else it was done before, or its moments were missed"
    assert any(hit.damaged for hit in disturbed.hits)
    assert disturbed.same_as == undisturbed.same_as, f"killed at {disturbed.hits}"
