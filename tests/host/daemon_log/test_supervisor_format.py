"""Records of the daemon's log in Supervisor's words, one after the other as they come."""

from typing import Any

from supervisor.host.daemon_log.supervisor_format import SupervisorLogFormatter

AT = "2026-11-22T01:02:03.456789"


def lines(*records: dict[str, Any]) -> list[str]:
    """What comes out, without its time."""
    render = SupervisorLogFormatter()
    made = [render(None, "", {"timestamp": AT, "level": "info", **record}) for record in records]
    assert all(each.startswith("2026-11-22 01:02:03,456 ") for each in made)
    return [each.removeprefix("2026-11-22 01:02:03,456 ") for each in made]


def of(event: str, **facts: Any) -> dict[str, Any]:
    return {"event": event, "program": "web:web_0", "attempt": 1, **facts}


SPAWNED = of("worker.spawned", pid=7)
UP = of("program.changed", was="STARTING", state="RUNNING", startsecs=1.0)


def ended(how: str, *, expected: bool = False) -> dict[str, Any]:
    return of("worker.exited", how=how, expected=expected, level="warning")


def test_a_life_from_start_to_stop():
    told = of("worker.told_to_stop", signal="SIGTERM")

    assert lines(SPAWNED, UP, told, ended("terminated by SIGTERM")) == [
        "INFO spawned: 'web_0' with pid 7",
        "INFO success: web_0 entered RUNNING state, process has stayed up for > than 1 seconds (startsecs)",
        "INFO waiting for web_0 to stop",
        "WARN stopped: web_0 (terminated by SIGTERM)",
    ]
    assert lines(SPAWNED, UP, told, ended("exit status 0"))[-1] == "INFO stopped: web_0 (exit status 0)"


def test_an_end_is_expected_only_of_what_ran():
    good = ended("exit status 0", expected=True)

    assert lines(SPAWNED, UP, good)[-1] == "INFO exited: web_0 (exit status 0; expected)"
    assert lines(SPAWNED, good)[-1] == "WARN exited: web_0 (exit status 0; not expected)"
    assert lines(SPAWNED, UP, ended("exit status 3"))[-1] == "WARN exited: web_0 (exit status 3; not expected)"


def test_a_job_is_expected_to_end_when_it_is_done():
    done = of("training.done", step=9)

    assert lines(SPAWNED, UP, done, ended("exit status 0"))[-1] == "INFO exited: web_0 (exit status 0; expected)"
    assert lines(SPAWNED, UP, done, SPAWNED, UP, ended("exit status 0"))[-1].endswith("(exit status 0; not expected)")


def test_meaning_of_own_exit_codes_is_left_out():
    assert lines(SPAWNED, ended("exit status 74 (save failed)"))[-1].endswith("(exit status 74; not expected)")


def test_adopted_program_is_logged_as_running():
    adopted = of("worker.adopted", pid=8)

    made = lines(adopted, of("worker.killed"), ended("terminated by SIGKILL"))

    assert made[1:] == [
        "WARN killing 'web_0' (8) with SIGKILL",
        "WARN exited: web_0 (terminated by SIGKILL; not expected)",
    ]


def test_giving_up_and_failing_to_start():
    """Supervisor's line is what others look for; ours says why, at the level that asks for a person."""
    gone = of("program.changed", was="BACKOFF", state="FAILED", level="error", reason="it diverged")

    failed, gave_up = lines(of("worker.not_spawned", error="no such file: x", level="error"), gone)

    assert failed == "INFO spawnerr: no such file: x"
    assert gave_up.splitlines() == [
        "INFO gave up: web_0 entered FATAL state, too many start retries too quickly",
        "2026-11-22 01:02:03,456 ERRO program.changed program=web:web_0 attempt=1 was=BACKOFF state=FAILED "
        'reason="it diverged"',
    ]


def test_only_signals_that_ask_for_an_exit_are_said_to():
    """Supervisor restarts at a SIGHUP, which is why its words for that are not ours."""

    def signalled(name: str) -> str:
        return lines({"event": "daemon.signalled", "signal": name, "effect": "what it does", "level": "warning"})[0]

    assert signalled("SIGTERM") == "WARN received SIGTERM indicating exit request"
    assert signalled("SIGUSR2") == "INFO received SIGUSR2 indicating log reopen request"
    assert signalled("SIGHUP") == 'WARN daemon.signalled signal=SIGHUP effect="what it does"'


def test_a_job_that_was_told_to_flush_and_stop_is_stopped_well():
    flush = of("flush.asked", then="stop", reason="stop")
    going_on = of("flush.asked", then="go-on", reason="asked")

    assert lines(SPAWNED, UP, flush, ended("exit status 143 (stopped)"))[2:] == [
        "INFO waiting for web_0 to stop",
        "INFO stopped: web_0 (exit status 143)",
    ]
    assert lines(SPAWNED, UP, going_on, ended("exit status 143 (stopped)"))[-1].startswith("WARN exited: ")


def test_names_that_clients_invent_are_not_remembered():
    render = SupervisorLogFormatter()
    for number in range(100):
        render(None, "", of("change.asked") | {"program": f"no such {number}"})

    assert len(render._workers) == 0


def test_terminal_control_characters_are_quoted():
    (line,) = lines({"event": "change.asked", "program": "x\r\x1b[2J"})

    assert line.isprintable()


def test_the_daemons_own_lines():
    assert lines(
        {"event": "daemon.ready", "pid": 3, "programs": 1},
        {"event": "daemon.signalled", "signal": "SIGTERM", "effect": "hurry", "level": "warning"},
    ) == ["INFO supervisord started with pid 3", "WARN received SIGTERM indicating exit request"]


def test_records_without_a_supervisor_line_keep_their_facts():
    saved = of("checkpoint.committed", step=12, path="/a b")
    flushing = of("program.changed", was="RUNNING", state="FLUSHING")
    broken = {"event": "internal.failed", "level": "error", "exception": "Traceback ..."}

    assert lines(saved, flushing, broken) == [
        'INFO checkpoint.committed program=web:web_0 attempt=1 step=12 path="/a b"',
        "INFO program.changed program=web:web_0 attempt=1 was=RUNNING state=FLUSHING",
        "ERRO internal.failed\nTraceback ...",
    ]


def test_a_record_without_a_moment_or_facts_is_a_line():
    assert SupervisorLogFormatter()(None, "", {"event": "x"}).endswith("INFO x")
