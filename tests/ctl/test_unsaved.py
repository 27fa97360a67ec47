"""What supervisorctl prints, and which exit status it gives, where steps of a job are lost or would be."""

import json
from functools import partial

import pytest

from tests.ctl.daemon_end import Fault

LOST = (
    "stopped at step 478; the newest checkpoint is of step 300, as the save failed: no; 178 steps will be trained again"
)
REFUSED = "the save failed: no; a trains on; restart --discard restarts it from step 300"

pytestmark = pytest.mark.integration


def refuse_a(asked: dict[str, object], code: str = "NOT_SAVED") -> object:
    if asked["name"] == "a":
        raise Fault(code, REFUSED)
    return {"name": asked["name"]}


def stop_with_loss(asked: dict[str, object]) -> object:
    return {"name": asked["name"], "text": LOST, "unsaved_steps": 178, "is_loss": True}


def test_a_stop_that_lost_steps_fails_and_json_has_all_of_it(daemon, ctl):
    daemon.answers["stop"] = stop_with_loss

    result, as_json = ctl("stop", "a"), ctl("--json", "stop", "a")

    assert (result.status, result.out) == (1, f"a: {LOST}\n")
    (outcome,) = json.loads(as_json.out)["programs"]
    assert (as_json.status, outcome["text"], outcome["unsaved_steps"], outcome["error"]) == (1, LOST, 178, None)


@pytest.mark.parametrize(("code", "words"), [("NOT_SAVED", "not saved"), ("CANT_RESTART", "can't be started again")])
def test_a_refused_restart_leaves_that_job_alone_and_restarts_the_others(daemon, ctl, code: str, words: str):
    daemon.answers |= {"stop": partial(refuse_a, code=code), "start": {}}

    result = ctl("restart", "a", "b")

    assert result.status == 1
    assert set(result.out.splitlines()) == {f"a: ERROR ({words})", "b: stopped", "b: started"}
    assert REFUSED in result.err
    stops = [asked for command, asked in daemon.asked if command == "stop"]
    assert [(stop["only_if_saved"], stop["restarts"]) for stop in stops] == [(True, True), (True, True)]


def test_a_discarding_restart_asks_for_no_save_first_and_its_loss_is_no_failure(daemon, ctl):
    daemon.answers |= {"stop": stop_with_loss, "start": {}}

    result = ctl("restart", "--discard", "a")

    assert (result.status, result.out) == (0, f"a: {LOST}\na: started\n")
    assert daemon.asked[0] == ("stop", {"name": "a", "restarts": True})


def test_a_rolling_restart_ends_at_the_first_job_that_can_not_save(daemon, ctl):
    daemon.answers |= {"stop": refuse_a, "start": {}}

    result = ctl("restart", "--rolling", "b", "a", "c")

    assert result.status == 1
    lines = ["b: stopped", "b: started", "a: ERROR (not saved)", "a: left as it is", "c: left as it is"]
    assert result.out.splitlines() == lines


def test_update_prints_what_it_refused_and_what_was_lost(daemon, ctl):
    refused = {"name": "a", "action": "refused", "text": "why", "unsaved_steps": 0}
    lost = {"name": "b", "action": "stopped", "text": LOST, "unsaved_steps": 178, "is_loss": True}
    daemon.answers["update"] = {"actions": [refused]}
    assert (ctl("update").status, ctl("update").out) == (1, "a: ERROR (not applied)\n    why\n")

    daemon.answers["update"] = {"actions": [lost]}

    assert (ctl("update").status, ctl("update").out) == (1, f"b: {LOST}\n")
    assert ctl("update", "--discard", "b").status == 0
    assert daemon.asked[-1] == ("update", {"discard": True, "names": ["b"]})


@pytest.mark.parametrize(("action", "last"), [("shutdown", "Shut down"), ("reload", "Restarted supervisord")])
def test_the_end_of_the_daemon_names_jobs_that_lose_steps(daemon, ctl, action, last):
    daemon.answers[action] = {"unsaved": [{"name": "a", "text": LOST, "unsaved_steps": 178}]}

    result = ctl(action)

    assert (result.status, result.out) == (1, f"a: {LOST}\n{last}\n")


def test_a_removal_says_it_beside_the_result(daemon, ctl):
    daemon.answers["remove"] = {"unsaved": [{"name": "a", "text": LOST, "unsaved_steps": 178}]}

    result = ctl("remove", "a")

    assert (result.status, result.out, result.err) == (
        0,
        "a: removed process group\n",
        f"remark: a {LOST}\n",
    )


def test_a_signal_says_how_far_the_job_is(daemon, ctl):
    daemon.answers["signal"] = {"name": "a", "text": "it is at step 3", "unsaved_steps": 3}

    assert (ctl("signal", "TERM", "a").status, ctl("signal", "TERM", "a").out) == (0, "a: signalled; it is at step 3\n")
