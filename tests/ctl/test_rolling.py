"""restart --rolling: one after the other."""

import json

import pytest

from tests.ctl.daemon_end import Fault, down, program


def asked(daemon) -> list[tuple[str, str]]:
    return [(command, arguments["name"]) for command, arguments in daemon.asked if command != "status"]


@pytest.mark.integration
def test_each_is_up_again_before_the_next_is_stopped(daemon, ctl):
    daemon.answers |= {"stop": lambda asked: asked, "start": lambda asked: asked}

    result = ctl("restart", "--rolling", "a", "b")

    assert asked(daemon) == [("stop", "a"), ("start", "a"), ("stop", "b"), ("start", "b")]
    assert (result.status, result.out) == (0, "a: stopped\na: started\nb: stopped\nb: started\n")


@pytest.mark.integration
def test_the_first_that_does_not_come_up_ends_it(daemon, ctl):
    daemon.answers["stop"] = lambda asked: asked
    daemon.answers["start"] = Fault("ABNORMAL_TERMINATION", "exit status 3")

    result = ctl("restart", "a", "b", "c", "--rolling")

    assert asked(daemon) == [("stop", "a"), ("start", "a")]
    assert result.status == 7
    assert result.out.splitlines()[1:] == [
        "a: ERROR (abnormal termination)",
        "b: left as it is",
        "c: left as it is",
    ]


@pytest.mark.integration
def test_all_means_what_is_up(daemon, ctl):
    daemon.answers |= {"stop": lambda asked: asked, "start": lambda asked: asked}
    daemon.answers["status"] = {"programs": [program("a"), down("off"), program("b")]}

    assert ctl("restart", "--rolling", "all").status == 0
    assert asked(daemon) == [("stop", "a"), ("start", "a"), ("stop", "b"), ("start", "b")]


@pytest.mark.integration
def test_rolling_restart_only_starts_a_stopped_program(daemon, ctl):
    daemon.answers |= {"stop": Fault("NOT_RUNNING"), "start": lambda asked: asked}

    assert ctl("restart", "--rolling", "a").out == "a: ERROR (not running)\na: started\n"


@pytest.mark.integration
def test_as_json_it_tells_what_was_left(daemon, ctl):
    daemon.answers |= {"stop": Fault("BAD_NAME", "a")}

    result = ctl("--json", "restart", "--rolling", "a", "b")

    outcome = json.loads(result.out)
    assert (outcome["stopped"][0]["error"]["code"], outcome["started"], outcome["left"]) == ("BAD_NAME", [], ["b"])


@pytest.mark.integration
def test_a_name_is_needed(ctl):
    assert ctl("restart", "--rolling").status == 1


@pytest.mark.integration
@pytest.mark.parametrize("typed", ["--roling", "--dicard", "--rolling=yes"])
@pytest.mark.parametrize("name", ["all", "a"])
def test_a_mistyped_option_restarts_nothing(daemon, ctl, typed, name):
    daemon.answers |= {"stop": lambda asked: asked, "start": lambda asked: asked}
    daemon.answers["status"] = {"programs": [program("a"), program("b")]}

    result = ctl("restart", typed, name)

    assert f"Error: bad argument {typed}" in result.out
    assert result.status == 1
    assert asked(daemon) == []
