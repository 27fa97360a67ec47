"""`worker.prove`, with a daemon and a comparison of its own, says of a sample of the corpus what our judge says.

`make test` proves those that have no framework and one with JAX; tests/prove proves the examples in the others.
"""

from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import proving
from tests.training_code.corpus import Entry, id_of
from tests.training_code.starter import Framework

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


def is_in_every_run(entry: Entry) -> bool:
    return entry.framework == Framework.NUMPY or entry.name == "jax_key_splitting"


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=() if is_in_every_run(entry) else pytest.mark.nightly) for entry in proving.PROVED],
    ids=id_of,
)
def test_proof_of_an_exact_script_says_exact(entry: Entry, tmp_path: Path) -> None:
    try:
        status, said = proving.prove(entry, tmp_path / "proof")
    except NotInstalled as error:
        pytest.skip(str(error))

    assert status == 0, said
