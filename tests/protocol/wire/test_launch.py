"""The worker reads the settings that the daemon put into the environment."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import JobConfig
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.launch import (
    VARIABLE,
    Control,
    DaemonIdentity,
    Interval,
    Launch,
    LaunchError,
    Member,
    from_environment,
    parse_interval,
)
from supervisor.protocol.wire.messages import PROTOCOL, STANDBY
from tests.fuzzing import JSON, cases

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10)
PATHS = st.binary(min_size=1, max_size=10).map(
    lambda name: Path("/" + name.replace(b"\0", b"\xff").decode(errors="surrogateescape"))
)
POSITIVE = st.floats(1e-6, 1e12)
NUMBERS = st.integers(1, 10**9)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: NUMBERS,
    float: POSITIVE,
    Path: PATHS,
    Interval: st.builds(Interval, steps=st.integers(1, 2**53)) | st.builds(Interval, seconds=POSITIVE),
    Control: st.builds(Control, NUMBERS, PATHS),
    DaemonIdentity: st.none(),  # not with an attempt
    Member: st.builds(Member, NUMBERS, NUMBERS),
    launch.Strategy: st.sampled_from(launch.STRATEGIES),
    launch.OnNan: st.sampled_from(launch.ON_NAN),
    launch.OnReplayDifference: st.sampled_from(launch.ON_REPLAY_DIFFERENCE),
    launch.MemoryCheckpoint: st.sampled_from(get_args(launch.MemoryCheckpoint)),
    launch.Standby: st.sampled_from(get_args(launch.Standby)),
    launch.SaveShards: st.sampled_from(get_args(launch.SaveShards)),
    get_args(get_type_hints(Launch)["checkpoint_keep_best"])[0]: st.tuples(st.sampled_from(["min", "max"]), TEXT),
}


def _values_of(wanted: Any) -> st.SearchStrategy[Any]:
    if wanted in VALUES:
        return VALUES[wanted]
    (inner,) = (argument for argument in get_args(wanted) if argument is not type(None))
    return st.none() | VALUES[inner]


SETTINGS = {name: _values_of(wanted) for name, wanted in get_type_hints(Launch).items()}
LAUNCHES = st.builds(Launch, **SETTINGS | {"protocol": st.just(PROTOCOL)})


def _refused(**settings: object) -> str:
    with pytest.raises(LaunchError) as refused:
        from_environment({VARIABLE: json.dumps(settings)})
    return str(refused.value)


@given(LAUNCHES)
def test_every_setting_comes_back_as_it_was(whole: Launch) -> None:
    assert from_environment(whole.to_environment()) == whole


@given(PATHS, NUMBERS, st.integers(1, 10**15))
def test_a_standby_knows_its_daemon_and_has_no_attempt(pipes: Path, pid: int, start_time: int) -> None:
    whole = Launch(control=Control(STANDBY, pipes), standby="warm", waits_for=DaemonIdentity(pid, start_time))

    assert from_environment(whole.to_environment()) == whole


@given(LAUNCHES)
def test_the_record_holds_the_protocol_and_what_is_set(whole: Launch) -> None:
    body = json.loads(whole.to_environment()[VARIABLE])

    assert body["protocol"] == PROTOCOL
    assert body.keys() == {field.name for field in fields(Launch) if getattr(whole, field.name) is not None}


def test_a_setting_without_a_value_has_its_default() -> None:
    assert from_environment({VARIABLE: "{}"}) == from_environment({"HOME": "/root"}) == Launch()


def test_unknown_settings_are_ignored() -> None:
    record = from_environment({VARIABLE: '{"job": "digits", "later": {"x": [1]}}'})

    assert record == Launch(job="digits")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("replicas", "2", "replicas is '2', not int"),
        ("replicas", -1, "replicas is -1, not int"),
        ("replicas", 1.5, "replicas is 1.5, not int"),
        ("deterministic", 1, "deterministic is 1, not bool"),
        ("strategy", "both", "strategy is 'both'; it can be auto, mirrored, one-device"),
        ("checkpoint_dir", "", "checkpoint_dir is '', not Path"),
        ("checkpoint_dir", "/a\0b", "not Path"),
        ("checkpoint_dir", "/\ud800", "not Path"),
        ("checkpoint_interval", "500 steps", "checkpoint_interval is '500 steps', not a JSON object"),
        ("checkpoint_interval", {"steps": "5"}, "checkpoint_interval.steps is '5', not int"),
        ("checkpoint_keep_best", ["min"], "checkpoint_keep_best is ['min'], not a list of 2"),
        ("checkpoint_keep_best", ["mean", "loss"], "it can be min, max"),
        ("loss_spike", 10**400, "loss_spike is too large"),
        ("control", {"attempt": 1}, "control lacks 'pipes'"),
        ("control", ["/p"], "not a JSON object"),
        ("waits_for", {"pid": 1}, "waits_for lacks 'start_time'"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(name: str, value: object, wanted: str) -> None:
    text = _refused(**{name: value})

    assert text.startswith(VARIABLE) and wanted in text


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, '{"replicas": NaN}', "\udcff"])
def test_launch_record_must_be_a_json_object(text: str) -> None:
    with pytest.raises(LaunchError, match=VARIABLE):
        from_environment({VARIABLE: text})


def test_attempt_0_is_refused_without_a_daemon_to_wait_for() -> None:
    assert "waits_for" in _refused(control={"attempt": 0, "pipes": "/p"})


def test_an_attempt_that_waits_for_a_daemon_is_refused() -> None:
    assert "waits_for" in _refused(control={"attempt": 3, "pipes": "/p"}, waits_for={"pid": 1, "start_time": 2})


def test_another_protocol_says_what_to_install() -> None:
    assert "the daemon speaks protocol 2, this worker 1; install" in _refused(protocol=2, replicas="of another type")


@pytest.mark.fuzz
@cases(100)
@given(st.dictionaries(st.sampled_from([field.name for field in fields(Launch)]), JSON))
def test_a_record_written_by_hand_raises_launch_error_only(body: dict[str, object]) -> None:
    try:
        record = from_environment({VARIABLE: json.dumps(body)})
    except LaunchError:
        return
    assert from_environment(record.to_environment()) == record


@pytest.mark.integration
def test_the_longest_record_is_short_enough_for_one_variable() -> None:
    longest = Path("/" + "\udcff" * 4094)  # the longest path that Linux takes, each byte six characters long
    whole = Launch(job="j" * 100, control=Control(1, longest), checkpoint_dir=longest, initial_checkpoint=longest,
                   export_dir=longest, checkpoint_keep_best=("min", "m" * 1000))  # fmt: skip
    read = "import os; from supervisor.protocol.wire import launch; print(hash(launch.from_environment(os.environ)))"

    subprocess.run([sys.executable, "-c", read], env=whole.to_environment() | {"PYTHONPATH": ":".join(sys.path)},
                   check=True, capture_output=True)  # fmt: skip


def test_settings_of_a_job_have_the_names_and_defaults_of_its_keys() -> None:
    ours = {field.name: field.default for field in fields(Launch)}
    keys = {field.name: field.default for field in fields(JobConfig) if field.name in ours}

    assert ours.keys() - keys.keys() == {
        "job", "control", "memory_limit", "microbatches", "between_failures_s", "waits_for", "member", "generation",
        "leaves_with", "protocol",
    }  # fmt: skip
    del ours["checkpoint_dir"], keys["checkpoint_dir"]  # makes a program a job, so that it is required
    del ours["standby"], keys["standby"]  # what the worker is told is what this process is to be
    assert (ours.pop("memory_checkpoint"), keys.pop("memory_checkpoint")) == (
        "off",
        "auto",
    )  # only a daemon keeps copies
    assert {name: ours[name] for name in keys} == keys


def test_a_script_started_by_hand_takes_its_initial_checkpoint_from_a_variable() -> None:
    record = from_environment({"STEPKEEPER_INITIAL_CHECKPOINT": "/srv/old"})

    assert record == Launch(initial_checkpoint=Path("/srv/old"))


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
def test_text_that_is_not_an_interval_raises_value_error_only(text: str) -> None:
    try:
        parse_interval(text)
    except ValueError:
        return


def test_no_launch_variable_reaches_a_child() -> None:
    by_hand = {"STEPKEEPER_INITIAL_CHECKPOINT": "/c", "STEPKEEPER_MIRROR": "file:///m"}
    environment = {"HOME": "/root", **by_hand, **Launch(job="j").to_environment()}

    assert launch.without_launch_variables(environment) == {"HOME": "/root"}
