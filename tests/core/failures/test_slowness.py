"""Which step times are slower than usual, and why. Times are numbers; noise is drawn."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.slowness import (
    ACCEPTED_AFTER_S,
    HostLoad,
    Slowdown,
    SlownessDetector,
    Window,
    explain_slowness,
)
from tests.fuzzing import QUICK, cases


class Training:
    """Windows of ten seconds, one after another; what the detector said of them, with the time."""

    def __init__(self) -> None:
        self.detector = SlownessDetector()
        self.now = 0.0
        self.said: list[tuple[float, bool]] = []

    def go_on(self, for_s: float, step_s: float, noise: float = 0.0, chance: random.Random | None = None) -> None:
        chance = chance or random.Random(1)
        ends_at = self.now + for_s
        while self.now < ends_at:
            factor = max(0.2, chance.gauss(1.0, noise)) if noise else 1.0
            steps = max(1, round(10.0 / step_s))
            length_s = steps * step_s * factor
            self.now += length_s
            if self.detector.add(Window(self.now, steps, length_s)):
                self.said.append((self.now, self.detector.slower_since is not None))


def trained(step_s: float = 0.1) -> Training:
    training = Training()
    training.go_on(3600.0, step_s)
    return training


@pytest.mark.parametrize("step_s", [0.01, 0.1, 3.0, 50.0])
def test_steps_that_take_30_percent_longer_are_said_once_after_five_minutes_and_taken_back(step_s: float):
    training = trained(step_s)
    began_at = training.now

    training.go_on(3600.0, step_s * 1.3)
    slow = training.detector.slowdown()
    ended_at = training.now
    training.go_on(1200.0, step_s)

    (said_at, is_slower), (over_at, is_still) = training.said
    assert (is_slower, is_still) == (True, False)
    assert 265 <= said_at - began_at <= 300 + 2 * max(10.0, step_s * 1.3)
    assert over_at - ended_at <= 300
    assert slow is not None and slow.percent == 30


def test_ten_percent_is_not_said():
    training = trained()
    training.go_on(7200.0, 0.11)

    assert training.said == []


def test_four_slow_minutes_are_not_said():
    training = trained()
    for _ in range(20):
        training.go_on(220.0, 0.2)
        training.go_on(600.0, 0.1)

    assert training.said == []


def test_a_simulated_thousand_hours_of_noise_give_no_false_alarm():
    chance = random.Random(7)
    for noise in (0.02, 0.1, 0.3, 0.6):
        training = Training()
        training.go_on((2.5 if QUICK else 25) * 3600.0, 0.1, noise, chance)
        assert training.said == [], noise


STEP_TIMES = st.lists(st.tuples(st.floats(0.05, 0.5), st.integers(1, 60)), min_size=1, max_size=30)


@cases(200)
@given(STEP_TIMES)
def test_whatever_the_step_times_slower_means_slower_than_the_past_for_five_minutes(phases: list[tuple[float, int]]):
    detector, now, past = SlownessDetector(), 0.0, list[tuple[float, float]]()
    for step_s, windows in phases:
        for _ in range(windows):
            now += 100 * step_s
            past.append((now, step_s))
            if not detector.add(Window(now, 100, 100 * step_s)) or detector.slower_since is None:
                continue
            slowdown, usual_s = detector.slowdown(), detector.usual_step_s or 0.0
            last = [step_s for at, step_s in past if at > now - 300.0]
            assert slowdown is not None and slowdown.step_s > 1.2 * slowdown.usual_step_s
            assert sum(step_s > 1.2 * usual_s for step_s in last) >= 0.8 * len(last)
            assert any(step_s <= 1.001 * usual_s for _, step_s in past), "it was as fast before"


@cases(100)
@given(st.lists(st.floats(0.091, 0.109), min_size=200, max_size=400))
def test_a_job_that_stays_within_a_fifth_is_never_slower(step_times: list[float]):
    detector = SlownessDetector()

    assert not any(detector.add(Window(10.0 * n, 100, 100 * step_s)) for n, step_s in enumerate(step_times, 1))


def test_a_job_whose_speed_always_changes_is_as_usual():
    training, chance = Training(), random.Random(3)
    for _ in range(200 if QUICK else 2000):
        training.go_on(chance.choice([30.0, 120.0]), chance.choice([0.1, 0.16]), 0.05, chance)

    assert training.said == []


def test_a_speed_that_stays_becomes_usual():
    training = trained()
    training.go_on(ACCEPTED_AFTER_S + 3600.0, 0.2)

    assert [is_slower for _, is_slower in training.said] == [True, False]
    assert training.detector.usual_step_s == pytest.approx(0.2)


def test_a_new_attempt_is_compared_with_the_past_and_on_other_devices_it_is_not():
    for is_alike in (True, False):
        training = trained()
        training.detector.begin_attempt(is_alike)
        training.go_on(1000.0, 0.2)
        assert bool(training.said) is is_alike


def test_the_first_minute_of_an_attempt_counts_for_nothing():
    training = Training()
    training.go_on(50.0, 5.0)
    training.go_on(3600.0, 0.1)

    assert training.detector.usual_step_s == pytest.approx(0.1)


def test_a_slowdown_is_said_in_a_sentence():
    text = str(Slowdown(0.39, 0.3, "it waits for data 41% of the time, usually 2%"))

    assert text == (
        "30 % slower than usual (a step takes 390 ms, usually 300 ms): it waits for data 41% of the time, usually 2%"
    )


USUAL = [Window(at, 100, 10.0, data_s=0.2) for at in range(10, 3000, 10)]
RECENT = [Window(at, 70, 10.0, data_s=0.2) for at in range(3000, 3300, 10)]


def load(at: float, **counters: float) -> HostLoad:
    quiet = HostLoad(at, at * 2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3000.0)
    return replace(quiet, **counters)


QUIET = [load(float(at)) for at in range(0, 3300, 10)]


def loads(name: str, a_second: float) -> list[HostLoad]:
    return [replace(sample, **{name: max(0.0, sample.at - 3000) * a_second}) for sample in QUIET]


def test_nothing_that_changed_is_no_reason():
    assert explain_slowness(RECENT, USUAL, QUIET) == ""
    always = [replace(sample, steal_s=sample.at * 0.6) for sample in QUIET]
    assert explain_slowness(RECENT, USUAL, always) == "", "a neighbour that was always there explains nothing"


@pytest.mark.parametrize(
    ("name", "a_second", "says"),
    [
        ("steal_s", 0.5, "other virtual machines take 25% of the CPU time"),
        ("cpu_stall_s", 0.5, "wait for a CPU 50%"),
        ("memory_stall_s", 0.2, "wait for memory 20%"),
        ("io_stall_s", 0.4, "wait for disks 40%"),
        ("swapped_pages", 500.0, "swaps 500 pages a second"),
        ("throttled", 1.0, "because they are hot"),
    ],
)
def test_what_is_new_on_the_host_is_a_reason(name: str, a_second: float, says: str):
    assert says in explain_slowness(RECENT, USUAL, loads(name, a_second))


def test_a_slower_clock_is_a_reason():
    slow = [replace(sample, megahertz=3000.0 if sample.at < 3000 else 1200.0) for sample in QUIET]

    assert explain_slowness(RECENT, USUAL, slow) == "the CPUs run at 1200 MHz, before at 3000"


def test_waits_for_data_and_saves_are_reasons_of_the_job_itself():
    data = [replace(window, data_s=4.0) for window in RECENT]
    saves = [replace(window, saving_s=9.0) for window in RECENT]

    assert explain_slowness(data, USUAL, QUIET) == "it waits for data 40% of the time, usually 2%"
    assert explain_slowness(saves, USUAL, QUIET) == "a save is written beside it 90% of the time, usually 0%"
    assert explain_slowness(RECENT, USUAL, [], "GPU 3 is hot") == "GPU 3 is hot"
