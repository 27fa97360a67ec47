"""`worker.prove`, with a daemon and a comparison of its own, says of a sample of the corpus what our judge says."""

from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import proving
from tests.training_code.corpus import Entry, id_of

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("entry", proving.PROVED, ids=id_of)
def test_proof_of_an_exact_script_says_exact(entry: Entry, tmp_path: Path) -> None:
    try:
        status, said = proving.prove(entry, tmp_path / "proof")
    except NotInstalled as error:
        pytest.skip(str(error))

    assert status == 0, said
