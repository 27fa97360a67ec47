"""goodput and timeline."""

import pytest

GOODPUT = {
    "name": "digits",
    "since_wall_at": 1_000.0,
    "attempts": 3,
    "spent_s": {"training": 75.0, "down": 25.0, "stopped": 3600.0},
    "wanted_s": 100.0,
    "goodput": 0.75,
    "lost_steps": 12,
    "causes": {"crash": 2},
}


@pytest.mark.integration
def test_goodput_shows_every_category_its_share_and_what_interrupted(daemon, ctl):
    daemon.answers["goodput"] = GOODPUT

    lines = ctl("goodput", "digits").out.splitlines()

    assert lines[1].split()[:4] == ["training", "75.0", "75.0", "%"]
    assert any(line.split()[:4] == ["down", "25.0", "25.0", "%"] for line in lines)
    assert "goodput: 75.0 % of the 0:01:40 in which the job should have run" in lines
    assert "stopped on request, not counted: 1:00:00" in lines
    assert "interrupted by: crash (2)" in lines
    assert "steps lost and repeated: 12" in lines


@pytest.mark.integration
def test_goodput_of_a_job_that_never_ran_has_no_shares(daemon, ctl):
    nothing = {"since_wall_at": None, "attempts": 0, "spent_s": {}, "wanted_s": 0.0, "goodput": None, "causes": {}}
    daemon.answers["goodput"] = {**GOODPUT, **nothing, "lost_steps": 0}

    lines = ctl("goodput", "digits").out.splitlines()

    assert lines[1].split()[:3] == ["training", "0.0", "-"]
    assert "interrupted by: nothing" in lines
    assert "steps lost and repeated: 0" in lines


@pytest.mark.integration
def test_timeline_shows_events_with_what_followed(daemon, ctl):
    scene = {
        "wall_at": 1_000.0,
        "attempt": 2,
        "event": "worker exited (signal 9)",
        "was": "RUNNING",
        "state": "BACKOFF",
        "effects": ["record end (cause crash)"],
        "reason": "terminated by SIGKILL",
    }
    daemon.answers["timeline"] = {"scenes": [scene]}

    lines = ctl("timeline", "-5", "digits").out.splitlines()

    assert "RUNNING -> BACKOFF" in lines[1]
    assert lines[1].endswith("worker exited (signal 9); record end (cause crash) [terminated by SIGKILL]")
    assert daemon.asked == [("timeline", {"name": "digits", "limit": 5})]


@pytest.mark.integration
def test_a_timeline_of_more_events_than_are_remembered_is_refused(daemon, ctl):
    assert "bad argument -201" in ctl("timeline", "-201", "digits").out


@pytest.mark.integration
def test_story_is_another_name_of_timeline(daemon, ctl):
    daemon.answers["timeline"] = {"scenes": []}

    assert ctl("story", "digits").out == "nothing has happened since the daemon started\n"
    assert daemon.asked == [("timeline", {"name": "digits", "limit": 20})]


POINT = {
    "first_step": 1,
    "step": 2,
    "wall_at": 9.5,
    "attempt": 1,
    "count": 2,
    "mean": 0.5,
    "least": 0.25,
    "greatest": 1.0,
}
METRIC = {
    "name": "loss",
    "reports": 2,
    "first_step": 1,
    "step": 2,
    "first": 0.5,
    "last": 0.5,
    "least": 0.25,
    "greatest": 1.0,
    "buckets": [POINT],
}


@pytest.mark.integration
def test_series_shows_each_metric_in_a_line_and_one_as_comma_separated_values(daemon, ctl):
    daemon.answers["series"] = {"name": "digits", "metrics": [METRIC]}

    assert ctl("series", "digits").out.splitlines()[1].split() == ["loss", "1", "2", "0.5", "0.5", "0.25", "1"]
    assert ctl("series", "digits", "loss").out.splitlines()[1] == "1,1,2,9.5,2,0.5,0.25,1.0"
    missing = ctl("series", "digits", "los")
    assert missing.out == "digits: ERROR (there is no metric los; recorded: loss)\n"
    assert missing.status == 1
