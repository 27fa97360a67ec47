"""A gang of 64 daemons on this machine, in four processes: they meet, lose one, meet again, and cost the chief no more
for each than those of a gang of 16 do. `bench.gang_scale` has 512.
"""

import pytest

from bench.gang_scale import Figures, measure

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FEW, MANY = 16, 64
TOLERANCE = 1.1
WELL_S = 2.0


@pytest.fixture(scope="module")
def figures() -> dict[int, Figures]:
    """Of one round with each number of ranks."""
    measured = {FEW: Figures(), MANY: Figures()}
    for number, (size, its) in enumerate(measured.items()):
        measure(size, number, WELL_S, its, with_silence=False)
    return measured


def test_they_meet_and_a_loss_is_known_to_all_at_once(figures: dict[int, Figures]) -> None:
    many = figures[MANY]
    assert max(*many.meet_s, *many.meet_again_s) < 20.0
    assert max(*many.loss_all_s, *many.chief_loss_s) < 5.0  # half of what silence takes to be noticed


def test_at_the_chief_files_grow_no_faster_than_the_number_of_ranks(figures: dict[int, Figures]) -> None:
    few, many = (figures[size].files[0] for size in (FEW, MANY))
    assert many / few < TOLERANCE * (MANY - 1) / (FEW - 1)


def test_each_rank_says_as_often_that_it_lives_in_as_many_bytes(figures: dict[int, Figures]) -> None:
    """Each second, and it is answered: in the time that was measured, each may have done so once more or less."""
    few, many = figures[FEW], figures[MANY]
    of_few, of_many = few.well_messages[0] / (FEW - 1), many.well_messages[0] / (MANY - 1)
    assert of_many < TOLERANCE * of_few + 2 / WELL_S
    few_bytes, many_bytes = (figure.well_bytes[0] / figure.well_messages[0] for figure in (few, many))
    assert many_bytes < TOLERANCE * few_bytes


def test_each_rank_takes_as_many_bytes_to_meet_besides_its_signs_of_life(figures: dict[int, Figures]) -> None:
    """One that has joined says every second that it lives, and on a busy machine the others take some: not counted."""
    few, many = figures[FEW], figures[MANY]
    assert many.meet_bytes[0] < TOLERANCE * few.meet_bytes[0] * (MANY - 1) / (FEW - 1)


def test_the_output_of_the_job_is_not_longer_for_more_ranks(figures: dict[int, Figures]) -> None:
    few, many = (figures[size].output_lines[0] for size in (FEW, MANY))
    assert many <= few + 2  # of every second, fourth, eighth … rank it is written that it has joined
