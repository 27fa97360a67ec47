"""What the load of GPUs over half a minute says: busy, idle, or one kernel that spins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.gpu_activity import GpuActivity, GpuLoad, judge_activity

LOOKS = 6


def samples(
    *busy: int, memory: int = 0, power: tuple[int | None, ...] = (90_000,), uuid: str = "GPU-a"
) -> list[GpuLoad]:
    """A GPU's load at each look; what is shorter repeats."""
    return [GpuLoad(uuid, busy[number % len(busy)], memory, power[number % len(power)]) for number in range(LOOKS)]


def together(*gpus: list[GpuLoad]) -> list[tuple[GpuLoad, ...]]:
    return list(zip(*gpus, strict=True))


CASES = {
    "no kernel ran": (samples(0), GpuActivity.IDLE),
    "one ran now and then": (samples(0, 0, 0, 7), GpuActivity.BUSY),
    "one spins": (samples(100, power=(120_000, 121_500)), GpuActivity.SPINNING),
    "one computes: its power changes": (samples(100, power=(120_000, 131_000)), GpuActivity.BUSY),
    "one computes: it moves memory": (samples(100, memory=30), GpuActivity.BUSY),
    "one at which nobody measures power": (samples(100, power=(None,)), GpuActivity.BUSY),
    "one whose power is known at some looks": (samples(100, power=(90_000, None)), GpuActivity.BUSY),
    "it computes at half": (samples(50), GpuActivity.BUSY),
}


@pytest.mark.parametrize("case", CASES)
def test_the_load_of_one_gpu_says_what_it_does(case: str):
    loads, activity = CASES[case]

    assert judge_activity(together(loads)) is activity


def test_one_that_computes_makes_all_busy_and_one_that_spins_makes_idle_ones_spin():
    idle, spins, computes = samples(0), samples(100, uuid="GPU-b"), samples(100, memory=40, uuid="GPU-c")

    assert judge_activity(together(idle, spins)) is GpuActivity.SPINNING
    assert judge_activity(together(idle, spins, computes)) is GpuActivity.BUSY


@pytest.mark.parametrize("missing", [None, ()])
def test_a_look_without_an_answer_leaves_it_unknown(missing: tuple[GpuLoad, ...] | None):
    looks = [*together(samples(0))[:-1], missing]

    assert judge_activity(looks) is None


def test_a_gpu_that_is_missing_once_and_too_few_looks_leave_it_unknown():
    both = together(samples(0), samples(0, uuid="GPU-b"))

    assert judge_activity([*both[:-1], both[-1][:1]]) is None
    assert judge_activity(both[:3]) is None
    assert judge_activity([]) is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(0, 1 << 31)), min_size=4))
def test_what_ever_moves_memory_or_runs_in_part_is_never_taken_for_a_hang(numbers: list[tuple[int, int, int | None]]):
    looks = [[GpuLoad("GPU-a", busy, memory, power)] for busy, memory, power in numbers]

    activity = judge_activity(looks)

    assert activity is not None
    if any(memory > 1 and busy for busy, memory, _ in numbers) or any(0 < busy < 99 for busy, _, _ in numbers):
        assert activity is GpuActivity.BUSY
