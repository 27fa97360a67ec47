"""Whatever stands in the small files of a checkpoint folder, a worker reads it, or says in a ValueError what to do."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.protocol import layout
from tests.fuzzing import cases
from worker.devices import conditions
from worker.progress import divergence
from worker.state import state_file

pytestmark = pytest.mark.fuzz
IN_A_FOLDER = [HealthCheck.function_scoped_fixture]

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400)
KEYS = ["format", "left_out", "epoch", "batch", "step", "position", "seeds", "generators", "metrics", "replica_metrics"]
KEYS += ["replicas", "copies", "passes", "examples", "kind", "intra_op_threads", "onednn"]
JSONS = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), each, max_size=6)
    ),
    max_leaves=20,
)
CONTENTS = (
    st.binary(max_size=60)
    | JSONS.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"[" * 3000, b'{"format": 1, "left_out": ' * 1500, b"", b"null", b'"\\ud800"'])
)
SKIPPED = st.fixed_dictionaries({"format": st.just(1), "left_out": JSONS | st.lists(JSONS, max_size=3)})


@cases(150, suppress_health_check=IN_A_FOLDER)
@given(content=CONTENTS)
def test_any_conditions_are_read_or_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / layout.CONDITIONS).write_bytes(content)

    found = conditions.recorded_conditions(tmp_path)

    assert found is None or isinstance(found, dict)
    threads = conditions.recorded_threads(found)
    assert threads is None or threads > 0


@cases(150, suppress_health_check=IN_A_FOLDER)
@given(content=CONTENTS | SKIPPED.map(lambda body: json.dumps(body).encode()))
def test_any_list_of_skipped_batches_is_read_or_a_value_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / layout.SKIPPED).write_bytes(content)
    try:
        found = divergence.read_skipped(tmp_path)
    except ValueError as error:
        assert layout.SKIPPED in str(error)
    else:
        assert all(type(number) is int for each in found for number in each)


@cases(150)
@given(CONTENTS | st.fixed_dictionaries({"format": st.just(state_file.FORMAT), **dict.fromkeys(KEYS[3:11], JSONS)}).map(
    lambda body: json.dumps(body).encode()
))  # fmt: skip
def test_any_state_is_parsed_or_refused_as_not_fitting(content: bytes) -> None:
    try:
        found = state_file.parse_state(content)
    except (ValueError, KeyError, TypeError, AttributeError):  # restoring names the checkpoint and the remedy
        return
    assert isinstance(found, state_file.TrainingState)
