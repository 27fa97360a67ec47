"""For how long a user is not waited for who let the event loop wait in vain."""

import pytest

from supervisor.host.passed_over import LONGEST_S, PassedOver

pytestmark = pytest.mark.hostile

USER, OTHER = 1000, 1001
HELD_UP_S = 2.0  # for how long each wait is


def test_one_wait_costs_the_programs_of_its_user_a_second_and_nobody_else_anything():
    passed_over = PassedOver()

    passed_over.add(USER, now=100.0)

    assert passed_over.left_s(USER, now=100.0) == 1.0
    assert passed_over.left_s(USER, now=101.0) == 0.0
    assert passed_over.left_s(OTHER, now=100.0) == 0.0


def test_waits_that_follow_each_other_cost_longer_and_longer():
    passed_over, now, costs = PassedOver(), 100.0, []

    for _ in range(10):
        passed_over.add(USER, now)
        costs.append(round(passed_over.left_s(USER, now)))
        now += passed_over.left_s(USER, now)

    assert costs == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]


def test_one_long_ago_is_forgotten():
    passed_over = PassedOver()
    for now in (100.0, 102.0):
        passed_over.add(USER, now)

    passed_over.add(USER, now=104.0 + 2 * LONGEST_S)

    assert passed_over.left_s(USER, now=104.0 + 2 * LONGEST_S) == 1.0


@pytest.mark.parametrize("pause_s", [0.0, 1.0, 10.0, LONGEST_S, 31.0])
def test_whoever_lets_it_wait_as_often_as_possible_gets_a_fifteenth_of_its_time(pause_s: float):
    passed_over, now, waited_s = PassedOver(), 0.0, 0.0

    while now < 24 * 3600.0:
        now += max(passed_over.left_s(USER, now), pause_s) + HELD_UP_S
        passed_over.add(USER, now)
        waited_s += HELD_UP_S

    assert waited_s / now < 1 / 15 + 0.001
