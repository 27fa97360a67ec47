"""What the daemon puts into the environment is what the worker reads there."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import launch
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.launch import Control, Interval, Launch, LaunchError, from_environment, parse_interval
from supervisor.protocol.messages import STANDBY
from tests.fuzzing import cases

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10)
PATHS = TEXT.map(lambda text: Path("/") / text)
POSITIVE = st.floats(1e-6, 1e12)
INTERVALS = st.builds(Interval, steps=st.integers(1, 2**53)) | st.builds(Interval, seconds=POSITIVE)
LAUNCHES = st.builds(
    Launch,
    job=TEXT,
    control=st.none() | st.builds(Control, st.integers(1, 10**9), PATHS),
    checkpoint_dir=st.none() | PATHS,
    initial_checkpoint=st.none() | PATHS,
    export_dir=st.none() | PATHS,
    strategy=st.none() | st.sampled_from(launch.STRATEGIES),
    replicas=st.none() | st.integers(1, 10**6),
    deterministic=st.booleans(),
    strict=st.booleans(),
    checkpoint_interval=st.none() | INTERVALS,
    checkpoint_interval_min=st.none() | POSITIVE,
    checkpoint_interval_max=st.none() | POSITIVE,
    between_failures_s=st.none() | POSITIVE,
    checkpoint_make_room=st.booleans(),
    standby=st.none() | st.sampled_from(launch.STANDBYS),
    retention=st.builds(
        RetentionPolicy, checkpoint_keep=st.integers(1, 10**9), checkpoint_keep_every=st.none() | st.just(0.1)
    ),
)
KEYS = (
    *Launch(control=Control(1, Path("/p")), checkpoint_dir=Path("/c"), replicas=1).to_environment(),
    "STEPKEEPER_STRATEGY",
    "STEPKEEPER_DETERMINISTIC",
    "STEPKEEPER_STRICT",
    "STEPKEEPER_CHECKPOINT_INTERVAL",
    "STEPKEEPER_CHECKPOINT_INTERVAL_MIN",
    "STEPKEEPER_BETWEEN_FAILURES",
    "STEPKEEPER_CHECKPOINT_KEEP_EVERY",
    "STEPKEEPER_CHECKPOINT_KEEP_BEST",
)


@given(LAUNCHES)
def test_a_launch_comes_back_as_it_was(whole: Launch) -> None:
    assert from_environment(whole.to_environment()) == whole


@given(PATHS, st.integers(1, 10**9), st.integers(1, 10**15))
def test_a_standby_is_told_whom_it_waits_for_and_no_attempt(pipes: Path, pid: int, start_time: int) -> None:
    whole = Launch(control=Control(STANDBY, pipes), standby="warm", waits_for=launch.DaemonIdentity(pid, start_time))

    told = whole.to_environment()

    assert "STEPKEEPER_ATTEMPT" not in told, "so that a worker of an older version refuses to start"
    assert from_environment(told) == whole


@pytest.mark.parametrize("text", ["", "7", "0 1", "7 x", "7 8 9", "-1 5"])
def test_a_daemon_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="STEPKEEPER_WAITS_FOR"):
        from_environment({"STEPKEEPER_WAITS_FOR": text, "STEPKEEPER_PIPES": "/p"})


def test_who_waits_is_no_attempt_yet() -> None:
    with pytest.raises(LaunchError, match="STEPKEEPER_WAITS_FOR"):
        from_environment({"STEPKEEPER_WAITS_FOR": "1 2", "STEPKEEPER_PIPES": "/p", "STEPKEEPER_ATTEMPT": "3"})


@given(POSITIVE)
def test_the_hours_between_checkpoints_that_stay_come_back(hours: float) -> None:
    whole = Launch(retention=RetentionPolicy(checkpoint_keep_every=hours))

    found = from_environment(whole.to_environment()).retention.checkpoint_keep_every

    assert found is not None and math.isclose(found, hours)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_rule_for_the_best_comes_back(mode: str) -> None:
    whole = Launch(retention=RetentionPolicy(best_metric="val/loss", best_mode=mode))

    assert from_environment(whole.to_environment()) == whole


@pytest.mark.fuzz
@cases(100)
@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=20) | st.integers().map(str)))
def test_variables_set_by_hand_raise_launch_error_only(environment: dict[str, str]) -> None:
    try:
        found = from_environment(environment)
    except LaunchError as error:
        assert "STEPKEEPER_" in str(error) or "protocol" in str(error)
        return
    assert from_environment(found.to_environment()) == found


@pytest.mark.parametrize("key", ["REPLICAS", "ATTEMPT", "CHECKPOINT_KEEP", "CHECKPOINT_INTERVAL"])
@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "9" * 5000, "\u0663", "inf", "1e999 hours"])
def test_a_number_that_is_none_raises_launch_error(key: str, value: str) -> None:
    with pytest.raises(LaunchError, match=f"STEPKEEPER_{key}"):
        from_environment(
            {f"STEPKEEPER_{key}": value, "STEPKEEPER_PIPES": "/p", "STEPKEEPER_ATTEMPT": "1"}
            | {f"STEPKEEPER_{key}": value}
        )


def test_another_protocol_says_what_to_install() -> None:
    with pytest.raises(LaunchError, match="the daemon speaks protocol 2, this worker 1; install"):
        from_environment({"STEPKEEPER_PROTOCOL": "2"})


def test_an_empty_environment_is_a_script_without_a_daemon() -> None:
    assert from_environment({"HOME": "/root"}) == Launch()


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("500 steps", Interval(steps=500)),
        ("1 step", Interval(steps=1)),
        ("90s", Interval(seconds=90)),
        (" 10 Minutes ", Interval(seconds=600)),
        ("1.5 hours", Interval(seconds=5400)),
    ],
)
def test_intervals_are_read_as_people_write_them(text: str, interval: Interval) -> None:
    assert parse_interval(text) == interval


@given(st.text())
def test_text_that_is_no_interval_raises_value_error_only(text: str) -> None:
    try:
        parse_interval(text)
    except ValueError:
        return


def test_no_launch_variable_reaches_a_child() -> None:
    environment = {"HOME": "/root", **Launch(control=Control(1, Path("/p"))).to_environment()}

    assert launch.without_launch_variables(environment) == {"HOME": "/root"}
