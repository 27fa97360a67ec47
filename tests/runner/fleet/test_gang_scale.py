"""A gang of 64 daemons on this machine, in four processes: they meet, lose one, meet again, and cost the chief no more
for each than those of a gang of 16 do. `bench.gang_scale` has 512.
"""

import pytest

from bench.gang_scale import Figures, measure

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FEW, MANY = 16, 64
TOLERANCE = 1.1
ROUNDS = 2


@pytest.fixture(scope="module")
def figures() -> dict[int, Figures]:
    """Of ROUNDS with each number of ranks: on a busy machine some take so long to meet that they say meanwhile, once a
    second, that they live."""
    measured = {FEW: Figures(), MANY: Figures()}
    for number, (size, its) in enumerate([*measured.items()] * ROUNDS):
        measure(size, number, 2.0, its, with_silence=False)
    return measured


def test_they_meet_and_a_loss_is_known_to_all_at_once(figures: dict[int, Figures]) -> None:
    many = figures[MANY]
    assert max(*many.meet_s, *many.meet_again_s) < 20.0
    assert max(*many.loss_all_s, *many.chief_loss_s) < 5.0  # half of what silence takes to be noticed


@pytest.mark.parametrize("name", ["meet_bytes", "well_bytes", "well_messages", "files"])
def test_at_the_chief_nothing_grows_faster_than_the_number_of_ranks(figures: dict[int, Figures], name: str) -> None:
    few, many = (min(getattr(figures[size], name)) for size in (FEW, MANY))
    assert many / few < TOLERANCE * (MANY - 1) / (FEW - 1)


def test_the_output_of_the_job_is_not_longer_for_more_ranks(figures: dict[int, Figures]) -> None:
    few, many = (figures[size].output_lines[0] for size in (FEW, MANY))
    assert many <= few + 2  # of every second, fourth, eighth … rank it is written that it has joined
