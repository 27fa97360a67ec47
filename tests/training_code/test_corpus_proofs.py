"""`worker.prove`, with a daemon and a comparison of its own, says of a sample of the corpus what our judge says.

`make test` proves two that have no framework; tests/prove proves the examples in TensorFlow and PyTorch, and all the
corpus' exact scripts without a framework, and one with JAX, are killed in test_corpus.py. `make nightly` proves all.
"""

from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import proving
from tests.training_code.corpus import Entry, id_of

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
IN_EVERY_RUN = ("np_permutation", "np_counted_state")


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=() if entry.name in IN_EVERY_RUN else pytest.mark.nightly) for entry in proving.PROVED],
    ids=id_of,
)
def test_proof_of_an_exact_script_says_exact(entry: Entry, tmp_path: Path) -> None:
    try:
        status, said = proving.prove(entry, tmp_path / "proof")
    except NotInstalled as error:
        pytest.skip(str(error))

    assert status == 0, said
