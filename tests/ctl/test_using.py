"""add and remove, in Supervisor's words."""

import json

import pytest

from tests.ctl.daemon_end import Fault


def answering(refused: dict[str, Fault]):
    def answer(arguments):
        if arguments["name"] in refused:
            raise refused[arguments["name"]]
        return {"name": arguments["name"]}

    return answer


@pytest.mark.integration
def test_add_tells_each_name_and_goes_on_after_a_bad_one(daemon, ctl):
    daemon.answers["add"] = answering({"used": Fault("ALREADY_ADDED"), "nope": Fault("BAD_NAME")})

    result = ctl("add", "a", "used", "nope", "b")

    assert result.out.splitlines() == [
        "a: added process group",
        "ERROR: process group already active",
        "ERROR: no such process/group: nope",
        "b: added process group",
    ]
    assert result.status == 1


@pytest.mark.integration
def test_adding_what_is_in_use_is_no_failure(daemon, ctl):
    daemon.answers["add"] = Fault("ALREADY_ADDED")

    assert ctl("add", "a").status == 0


@pytest.mark.integration
def test_remove_refuses_what_runs(daemon, ctl):
    faults = {"up": Fault("STILL_RUNNING"), "nope": Fault("BAD_NAME"), "left": Fault("NOT_SAVED", "why")}
    daemon.answers["remove"] = answering(faults)

    result = ctl("remove", "up", "down", "nope", "left")

    assert result.out.splitlines() == [
        "ERROR: process/group still running: up",
        "down: removed process group",
        "ERROR: no such process/group: nope",
        "left: ERROR (not saved)",
        "    why",
    ]
    assert result.status == 1
    assert ctl("remove", "--discard", "down").status == 0
    assert daemon.asked[-1] == ("remove", {"name": "down", "discard": True})


@pytest.mark.integration
@pytest.mark.parametrize("action", ["add", "remove"])
def test_a_daemon_that_leaves_takes_no_more_orders(daemon, ctl, action):
    daemon.answers[action] = Fault("SHUTDOWN_STATE", "", 503)

    result = ctl(action, "a")

    assert (result.out, result.status) == ("ERROR: shutting down\n", 1)


@pytest.mark.integration
def test_as_json_each_name_has_its_error(daemon, ctl):
    daemon.answers["add"] = answering({"nope": Fault("BAD_NAME", "nope")})

    result = ctl("--json", "add", "a", "nope")

    assert json.loads(result.out)["programs"] == [
        {"name": "a", "error": None},
        {"name": "nope", "error": {"code": "BAD_NAME", "message": "nope"}},
    ]


@pytest.mark.integration
@pytest.mark.parametrize("action", ["add", "remove"])
def test_a_name_is_needed(ctl, action):
    assert ctl(action).status == 1
