"""Retention gives up what no rule keeps, and never the newest."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.checkpoints.retention import (
    RetainedCheckpoint,
    RetentionPolicy,
    select_expendable,
    select_for_room,
)
from supervisor.protocol.layout import CheckpointName

HOUR = 3600.0
KEPT = st.builds(
    RetainedCheckpoint,
    st.builds(CheckpointName, st.integers(0, 50), st.integers(1, 3)),
    st.floats(0, 1e6),
    st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=False), max_size=2),
    st.booleans(),
)
CHECKPOINTS = st.lists(KEPT, max_size=20, unique_by=lambda kept: kept.name)
POLICIES = st.builds(
    RetentionPolicy,
    checkpoint_keep=st.integers(0, 10),
    checkpoint_keep_every=st.none() | st.floats(0.01, 100),
    checkpoint_keep_best=st.none() | st.tuples(st.sampled_from(["min", "max"]), st.just("loss")),
)


def _hourly(count: int, **metrics: list[float]) -> list[RetainedCheckpoint]:
    return [
        RetainedCheckpoint(
            CheckpointName(step, 1), step * HOUR, {name: values[step] for name, values in metrics.items()}
        )
        for step in range(count)
    ]


def _steps(names: list[CheckpointName]) -> list[int]:
    return [name.step for name in names]


@given(CHECKPOINTS, POLICIES)
def test_the_newest_always_stay(checkpoints: list[RetainedCheckpoint], policy: RetentionPolicy) -> None:
    newest = sorted(kept.name for kept in checkpoints)[-max(1, policy.checkpoint_keep) :]

    assert not set(newest) & set(select_expendable(checkpoints, policy))


@given(CHECKPOINTS, POLICIES)
def test_only_what_exists_goes_oldest_first(checkpoints: list[RetainedCheckpoint], policy: RetentionPolicy) -> None:
    gone = select_expendable(checkpoints, policy)

    assert gone == sorted(set(gone))
    assert set(gone) <= {kept.name for kept in checkpoints}


@given(CHECKPOINTS, POLICIES)
def test_a_second_look_gives_up_nothing_more(checkpoints: list[RetainedCheckpoint], policy: RetentionPolicy) -> None:
    gone = set(select_expendable(checkpoints, policy))

    assert select_expendable([kept for kept in checkpoints if kept.name not in gone], policy) == []


@given(CHECKPOINTS, POLICIES)
def test_what_was_left_in_memory_takes_the_place_of_nothing_that_was_saved(
    checkpoints: list[RetainedCheckpoint], policy: RetentionPolicy
) -> None:
    saved = [kept.name for kept in checkpoints if not kept.was_left]
    stay = {max(saved), max(saved, key=lambda name: (name.attempt, name.step))} if saved else set()
    left = {kept.name: kept.was_left for kept in checkpoints}
    while (name := select_for_room(left)) is not None:
        del left[name]

    assert stay <= left.keys()
    assert not stay & set(select_expendable(checkpoints, policy))


def test_what_an_attempt_saved_behind_a_suspect_one_outlives_what_it_left_in_memory() -> None:
    suspect, saved, left = CheckpointName(200, 4), CheckpointName(110, 5), CheckpointName(115, 5)
    checkpoints = [RetainedCheckpoint(suspect, 0.0), RetainedCheckpoint(saved, HOUR)]
    checkpoints.append(RetainedCheckpoint(left, 2 * HOUR, was_left=True))

    assert select_expendable(checkpoints, RetentionPolicy(checkpoint_keep=1)) == []
    assert select_for_room({kept.name: kept.was_left for kept in checkpoints}) is None


def test_room_is_made_of_the_oldest_that_is_not_spared() -> None:
    names = [CheckpointName(step, 1) for step in (10, 20, 30, 40)]

    assert select_for_room(dict.fromkeys(names, False)) == names[0]
    assert select_for_room(dict.fromkeys(names, False), spared=names[:2]) == names[2]
    assert select_for_room(dict.fromkeys(names[2:], False), spared=names[2:]) is None


def test_newest_save_of_a_rolled_back_attempt_is_kept() -> None:
    passed_over = [RetainedCheckpoint(CheckpointName(step, 1), step * HOUR) for step in (20, 30)]
    saved = [RetainedCheckpoint(CheckpointName(step, 2), step * HOUR) for step in (11, 12)]

    assert select_expendable([*passed_over, *saved], RetentionPolicy(checkpoint_keep=2)) == [CheckpointName(11, 2)]


def test_all_but_the_newest_go() -> None:
    assert _steps(select_expendable(_hourly(3), RetentionPolicy(checkpoint_keep=0))) == [0, 1]
    assert _steps(select_expendable(_hourly(6), RetentionPolicy(checkpoint_keep=2))) == [0, 1, 2, 3]


def test_one_checkpoint_per_period_is_kept() -> None:
    assert _steps(select_expendable(_hourly(8), RetentionPolicy(checkpoint_keep=1, checkpoint_keep_every=3))) == [
        1,
        2,
        4,
        5,
    ]


def test_the_best_stays() -> None:
    checkpoints = _hourly(4, loss=[3.0, 1.0, 2.0, 4.0])

    assert _steps(select_expendable(checkpoints, RetentionPolicy(1, checkpoint_keep_best=("min", "loss")))) == [0, 2]
    assert _steps(select_expendable(checkpoints, RetentionPolicy(1, checkpoint_keep_best=("max", "loss")))) == [0, 1, 2]


def test_without_the_metric_nothing_is_the_best() -> None:
    assert _steps(select_expendable(_hourly(3), RetentionPolicy(1, checkpoint_keep_best=("min", "loss")))) == [0, 1]


def test_periodic_retention_survives_a_clock_set_back() -> None:
    set_back = [RetainedCheckpoint(CheckpointName(100 + step, 1), step * HOUR - 24 * HOUR, {}) for step in range(8)]
    checkpoints = [*_hourly(8), *set_back]

    gone = select_expendable(checkpoints, RetentionPolicy(checkpoint_keep=1, checkpoint_keep_every=4.0))

    kept = sorted({checkpoint.name.step for checkpoint in checkpoints} - set(_steps(gone)))
    assert kept == [0, 4, 100, 104, 107]
