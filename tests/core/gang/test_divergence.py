"""Below which step a gang begins, by what its nodes say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gang.divergence import restore_below
from supervisor.protocol.gang import SeenDivergence

steps = st.integers(0, 1000)
said = st.lists(st.builds(SeenDivergence, steps, st.integers(1, 20)), max_size=6)


@pytest.mark.parametrize(
    ("own", "divergences", "newest", "below"),
    [
        (None, [], 3, None),
        (21, [], 3, 21),
        (None, [SeenDivergence(21, 3)], 3, 21),
        (None, [SeenDivergence(21, 3)], 2, 21),
        (None, [SeenDivergence(21, 3)], None, 21),
        (30, [SeenDivergence(21, 3), SeenDivergence(24, 3)], 3, 21),
        (14, [SeenDivergence(21, 3)], 3, 14),
        (None, [SeenDivergence(21, 3)], 4, None),
        (30, [SeenDivergence(21, 3)], 4, 30),
    ],
)
def test_the_lowest_step_counts_that_no_later_attempt_has_overtaken(
    own: int | None, divergences: list[SeenDivergence], newest: int | None, below: int | None
):
    assert restore_below(own, divergences, newest) == below


@given(st.none() | steps, said, st.none() | st.integers(1, 20))
def test_nothing_that_any_node_has_seen_of_the_newest_attempt_is_restored(
    own: int | None, divergences: list[SeenDivergence], newest: int | None
):
    below = restore_below(own, divergences, newest)

    for seen in divergences:
        if newest is None or seen.attempt >= newest:
            assert below is not None
            assert below <= seen.below_step
    assert own is None or (below is not None and below <= own)
    assert below is None or below in {own, *(seen.below_step for seen in divergences)}
