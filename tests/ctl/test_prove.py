"""`supervisorctl prove`: what it asks, shows, and exits with."""

import itertools
import json
from typing import Any

import pytest

from supervisor.ctl.actions import prove
from tests.ctl.daemon_end import Fault, job, program


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "POLL_S", 0.01)


def answer(**more: Any) -> dict[str, Any]:
    known = dict.fromkeys(("running_s", "done", "step", "of", "verdict", "failure", "report"))
    return {**known, "name": "digits", "number": 1, "is_over": False, "doing": "starts", "text": "", **more}


def over(verdict: str | None, text: str = "", **more: Any) -> dict[str, Any]:
    return answer(is_over=True, verdict=verdict, text=text, **more)


def goes(daemon: Any, *answers: dict[str, Any]) -> None:
    """The daemon's answers, one after the other."""
    coming = iter(answers)
    daemon.answers |= {"prove": lambda _: next(coming), "proof": lambda _: next(coming)}


@pytest.mark.parametrize(("verdict", "status"), [("exact", 0), ("different", 1), ("not provable", 2)])
def test_a_verdict_is_its_text_and_its_exit_status(daemon, ctl, verdict, status):
    parts = [answer(), answer(doing="undisturbed run"), answer(doing="undisturbed run", step=7)]
    goes(daemon, *parts, over(verdict, f"{verdict}: a\n  b"))

    result = ctl("prove", "digits")

    assert result.out.splitlines() == ["digits: starts", "digits: undisturbed run", f"{verdict}: a", "  b"]
    assert result.status == status


def test_what_is_wanted_is_asked_for(daemon, ctl):
    goes(daemon, over("exact", "exact"))

    ctl("prove", "--steps", "30", "--epochs=1.5", "--kills=4", "--anyway", "digits:digits")

    wanted = {"name": "digits", "steps": 30, "epochs": 1.5, "kills": 4, "anyway": True}
    assert daemon.asked[0] == ("prove", wanted)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--steps", "digits"], ["--steps", "x", "digits"], ["--steps"], ["--never", "digits"], ["a", "b"], ["all"]],
)
def test_wrong_arguments_are_no_verdict(daemon, ctl, arguments):
    result = ctl("prove", *arguments)

    assert result.status == 4
    assert "Error: " in result.out
    assert daemon.asked == []


@pytest.mark.parametrize(
    "code", ["NOT_PROVEN", "NOT_A_JOB", "BAD_NAME", "SHUTDOWN_STATE", "BAD_ARGUMENTS", "FORBIDDEN"]
)
def test_a_refusal_is_no_verdict(daemon, ctl, code):
    daemon.answers["prove"] = Fault(code, "digits trains; stop it")

    result = ctl("prove", "digits")

    assert result.status == 4
    assert result.out.startswith("digits: ERROR (")


def test_a_proof_that_comes_to_nothing_says_why(daemon, ctl):
    goes(daemon, answer(), over(None, failure="its process ended without a report"))

    result = ctl("prove", "digits")

    assert (result.status, result.out.splitlines()[-1]) == (4, "digits: ERROR (not proven)")
    assert "its process ended without a report" in result.err


def test_another_proof_is_not_taken_for_this_one(daemon, ctl):
    goes(daemon, answer(), over("exact", "exact", number=2))

    result = ctl("prove", "digits")

    assert (result.status, result.out.splitlines()[-1]) == (4, "digits: ERROR (another proof began meanwhile)")


def test_a_daemon_that_was_restarted_meanwhile_is_no_verdict(daemon, ctl):
    daemon.answers["prove"] = answer()
    daemon.answers["proof"] = Fault("NOT_RUNNING", "digits was not proven since this daemon's start")

    result = ctl("prove", "digits")

    assert result.status == 4
    assert "was not proven since this daemon's start" in result.err


def test_json_is_one_object(daemon, ctl):
    goes(daemon, answer(), answer(doing="undisturbed run"), over("different", "different: loss"))

    result = ctl("prove", "--json", "digits")

    assert json.loads(result.out)["verdict"] == "different"
    assert result.status == 1


def test_it_is_cancelled(daemon, ctl):
    daemon.answers["prove_cancel"] = over(None, failure="it was cancelled")

    result = ctl("prove", "--cancel", "digits")

    assert (result.status, result.out) == (0, "digits: its proof was cancelled; nothing of it is left\n")
    daemon.answers["prove_cancel"] = Fault("NOT_RUNNING", "digits is not being proven")
    assert ctl("prove", "--cancel", "digits").status == 4


def test_status_has_the_proof_of_a_job_that_is_named(daemon, ctl):
    text = "proven exact 3 days ago (3 kills, 214 steps)"
    shown = program("digits", job=job())
    shown["job"] |= {"proof": {"text": text}, "proving": {"doing": "killed run, 1 of 3 kills", "done": 0.5}}
    daemon.answers["status"] = {"programs": [shown]}

    assert f"remark: digits: {text}\n" in ctl("status", "digits").err
    assert "remark: digits: is being proven: killed run, 1 of 3 kills, 50 %\n" in ctl("status", "digits").err
    assert "proven" not in ctl("status").err


def test_control_characters_of_a_script_do_not_reach_a_terminal(daemon, ctl):
    goes(daemon, *itertools.repeat(over("different", "different: \x1b[2J"), 2))

    assert "\x1b[2J" in ctl("prove", "digits").out, "into a pipe all of it goes"
