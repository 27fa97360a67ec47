"""Hours of what is silent and alive, as `bench/hangs.py` simulates them at length: none of it is killed."""

import random
from dataclasses import replace

import pytest

from bench.hangs_simulated import KINDS, Kind, simulate
from supervisor.core.failures.hang_evidence import Hang, SilenceContext, judge_silence
from tests.fuzzing import QUICK


def test_nothing_that_lives_is_killed_in_a_hundred_simulated_hours():
    hours = 10.0 if QUICK else 100.0
    figures = simulate(hours, seed=3)

    assert not figures.killed
    assert figures.judged > 10 * hours


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.draw.__name__)
def test_each_kind_is_drawn_in_a_way_that_is_looked_at(kind: Kind):
    context = SilenceContext(kind.section, 60.0, 1.0, 540.0)
    drawn = [kind.draw(random.Random(seed)) for seed in range(20)]

    assert all(evidence.threads for evidence in drawn)
    assert not any(isinstance(judge_silence(evidence, context), Hang) for evidence in drawn)


def test_the_simulation_would_see_a_kill():
    asleep = replace(KINDS[0], draw=lambda chance: replace(KINDS[0].draw(chance), cpu_s=0.0))

    assert simulate(1.0, kinds=(asleep,)).killed
