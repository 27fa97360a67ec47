"""Names say step and attempt, and sort as training went."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import layout
from supervisor.protocol.layout import CheckpointName

NAMES = st.builds(CheckpointName, st.integers(0, 10**18 - 1), st.integers(1, 10**9 - 1))


@given(NAMES)
def test_a_name_comes_back_as_it_was(name: CheckpointName) -> None:
    assert layout.parse_name(str(name)) == name


@given(st.lists(NAMES))
def test_names_sort_by_step_then_by_attempt(names: list[CheckpointName]) -> None:
    assert sorted(names) == sorted(names, key=lambda name: (name.step, name.attempt))


@given(st.text(max_size=30))
def test_other_text_is_no_name(text: str) -> None:
    assert layout.parse_name(text) is None


@pytest.mark.parametrize(
    "text",
    ["step-1200.a3", "step-0000001200.a0", "step-0000001200.a03", "step-0000001200.a3 ", "step-0000001200.a3\n",
     "step-0000001200.a3.partial", "step-00000001200.a3", "step-\u0660000001200.a3", "STEP-0000001200.a3"],
)  # fmt: skip
def test_almost_a_name_is_none(text: str) -> None:
    assert layout.parse_name(text) is None


@given(NAMES)
def test_a_partial_is_no_checkpoint_but_is_known(name: CheckpointName) -> None:
    assert layout.parse_name(name.partial) is None
    assert layout.is_partial(name.partial)
    assert not layout.is_partial(str(name))


@given(NAMES)
def test_every_trace_of_a_checkpoint_tells_which(name: CheckpointName) -> None:
    for text in (str(name), name.partial, f"{name}.2", f"{name}.13"):
        assert layout.checkpoint_name_in(text) == name
    assert layout.checkpoint_name_in(f"{name}.old") is None


def test_the_highest_attempt_of_each_program_is_known_from_its_pipes(tmp_path: Path) -> None:
    for folder in ("digits/a9", "digits/a10", "digits/a999999999", "digits/s3f", "group:one/a2", "never"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "notices").write_text("")

    assert layout.highest_attempts(tmp_path) == {"digits": 10, "group:one": 2, "never": 0, "notices": 0}
    assert layout.highest_attempts(tmp_path / "missing") == {}
