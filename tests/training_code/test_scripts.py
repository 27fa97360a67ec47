"""Training code as tutorials write it, with a few lines added, is killed at exact lines and ends the same.

`make test` kills one, whose loop is in a library, under a daemon. Loops of their own and `fit` are killed there in
the corpus without a daemon, and in tests/prove and tests/system under one. `make nightly` kills all.
"""

from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import rig
from tests.training_code.scripts import SCRIPTS, Script
from worker.state.script_conditions import OTHER_SCRIPT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
IN_EVERY_RUN = [script for script in SCRIPTS if script.name == "torch_ignite"]
FEW = slice(1, 3)
"""Of its strikes, those of every run: in an epoch's tail and in a step."""
OTHER_DATA = "training continues on other data"
MOST_LINES = 13
"""The most lines that had to be added to one of them; half of them need four or fewer."""


@pytest.mark.parametrize(
    ("script", "strikes"),
    [
        *(pytest.param(each, each.strikes[FEW], id=f"{each.name}, twice") for each in IN_EVERY_RUN),
        *(pytest.param(each, each.strikes, marks=pytest.mark.nightly, id=each.name) for each in SCRIPTS),
    ],
)
def test_killed_script_ends_with_the_bits_of_an_undisturbed_one(
    script: Script, strikes: tuple[rig.Strike, ...], tmp_path: Path
) -> None:
    try:
        missing = rig.missing_package(script.name, script.package)
    except NotInstalled as error:
        missing = str(error)
    if missing is not None:
        pytest.skip(missing)
    undisturbed = rig.run(script.name, tmp_path / "undisturbed")
    killed = rig.run(script.name, tmp_path / "killed", strikes)

    assert killed.hits == strikes, "each attempt but the last dies where it was meant to"
    assert killed.attempts == len(strikes) + 1
    assert killed.result == undisturbed.result
    assert OTHER_SCRIPT not in killed.said and OTHER_DATA not in killed.said, "nobody edited it"


@pytest.mark.parametrize("name", [each.name for each in SCRIPTS])
def test_only_a_few_lines_are_added(name: str) -> None:
    assert 1 <= len(rig.added_lines(name)) <= MOST_LINES
