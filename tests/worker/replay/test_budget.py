"""The decision about replays: pure, so time is a number."""

from hypothesis import given
from hypothesis import strategies as st

from worker.replay.budget import MOST_S, MOST_STEPS, ReplayBudget

SHARES = st.floats(0.0001, 0.5)
STEPS_S = st.floats(1e-4, 100.0)


def earned(share: float, trained_s: float, overhead_s: float | None = None) -> ReplayBudget:
    return ReplayBudget(share, began_at=-trained_s, overhead_s=overhead_s)


def test_nothing_is_replayed_before_it_is_earned() -> None:
    assert earned(0.01, 1.0, 0.0).choose_steps(0.0, step_s=0.1, state_bytes=0) == 0
    assert earned(0.01, 30.0, 0.0).choose_steps(0.0, step_s=0.1, state_bytes=0) == 2


def test_at_least_half_of_a_replay_trains() -> None:
    assert earned(0.01, 100.0, 0.5).choose_steps(0.0, step_s=0.01, state_bytes=0) == 0
    assert earned(0.01, 200.0, 0.5).choose_steps(0.0, step_s=0.01, state_bytes=0) == 110


def test_a_large_state_is_taken_to_be_slow_before_the_first_replay() -> None:
    assert earned(0.01, 300.0).choose_steps(0.0, step_s=0.1, state_bytes=1 << 20) > 0
    assert earned(0.01, 300.0).choose_steps(0.0, step_s=0.1, state_bytes=1 << 30) == 0


@given(SHARES, st.floats(0, 1e6), STEPS_S, st.integers(0, 1 << 40), st.floats(0, 100) | st.none())
def test_a_replay_is_never_longer_than_what_was_earned(
    share: float, trained_s: float, step_s: float, state_bytes: int, overhead_s: float | None
) -> None:
    budget = earned(share, trained_s, overhead_s)

    steps = budget.choose_steps(0.0, step_s, state_bytes)

    assert 0 <= steps <= MOST_STEPS
    assert steps * step_s <= min(budget.left_s(0.0), MOST_S)


@given(
    SHARES,
    st.lists(
        st.tuples(st.floats(0.01, 1000.0), STEPS_S, st.floats(0.2, 5.0), st.floats(0.0, 1.0)), min_size=1, max_size=30
    ),
)
def test_the_share_is_kept_but_for_one_step(share: float, stretches: list[tuple[float, float, float, float]]) -> None:
    """`stretches`: training before a checkpoint, the time of its steps, how many times as long they take in the replay,
    and what the replay costs besides."""
    budget, now, trained_s, spent_s = ReplayBudget(share, 0.0), 0.0, 0.0, 0.0
    for training_s, step_s, slower, overhead_s in stretches:
        now += training_s
        trained_s += training_s
        steps = budget.choose_steps(now, step_s, 0)
        began_at, done = now, 0
        if steps == 0:
            continue
        while done < steps:
            now += step_s * slower
            done += 1
            if budget.must_end(now, began_at):
                break
        now += overhead_s * step_s
        budget.record(now - began_at, overhead_s * step_s if done == steps else None)
        spent_s += now - began_at

        assert spent_s <= share * trained_s + step_s * slower + overhead_s * step_s + 1e-6 * now


def test_what_was_spent_too_much_is_earned_again_first() -> None:
    budget = earned(0.01, 100.0, 0.0)
    budget.record(took_s=5.0)

    assert budget.choose_steps(0.0, step_s=0.01, state_bytes=0) == 0
    assert budget.choose_steps(405.0, step_s=0.01, state_bytes=0) == 0
    assert budget.choose_steps(700.0, step_s=0.01, state_bytes=0) > 0
