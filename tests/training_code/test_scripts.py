"""Training code as tutorials write it, with a few lines added, is killed at exact lines and ends the same.

They are killed in `make nightly`: `make test` kills the corpus without a daemon, examples in tests/prove and jobs in
tests/system under one, and loops of libraries in tests/worker/torch.
"""

from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import rig
from tests.training_code.scripts import SCRIPTS, Script
from worker.state.script_conditions import OTHER_SCRIPT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
OTHER_DATA = "training continues on other data"
MOST_LINES = 13
"""The most lines that had to be added to one of them; half of them need four or fewer."""


@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_killed_script_ends_with_the_bits_of_an_undisturbed_one(script: Script, tmp_path: Path) -> None:
    try:
        missing = rig.missing_package(script.name, script.package)
    except NotInstalled as error:
        missing = str(error)
    if missing is not None:
        pytest.skip(missing)
    undisturbed = rig.run(script.name, tmp_path / "undisturbed")
    killed = rig.run(script.name, tmp_path / "killed", script.strikes)

    assert killed.hits == script.strikes, "each attempt but the last dies where it was meant to"
    assert killed.attempts == len(script.strikes) + 1
    assert killed.result == undisturbed.result
    assert OTHER_SCRIPT not in killed.said and OTHER_DATA not in killed.said, "nobody edited it"


@pytest.mark.parametrize("name", [each.name for each in SCRIPTS])
def test_only_a_few_lines_are_added(name: str) -> None:
    assert 1 <= len(rig.added_lines(name)) <= MOST_LINES
