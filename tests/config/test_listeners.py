"""[eventlistener:NAME] sections: Supervisor's keys and defaults, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.config import Config
from supervisor.config.migration.outcomes import MigrationOutcome, explain_migration
from tests.config.conftest import DAEMON

EAR = "[eventlistener:ear]\ncommand=/bin/ear\nevents=PROCESS_STATE,tick_60\n"


def test_a_listener_is_a_program_whose_group_is_its_pool(read: Callable[..., Config]):
    programs = read(DAEMON + EAR + "numprocs=2\nprocess_name=%(program_name)s_%(process_num)d\n").programs

    assert list(programs) == ["ear:ear_0", "ear:ear_1"]
    ear = programs["ear:ear_0"]
    assert ear.listener is not None
    assert ear.listener.events == ("PROCESS_STATE", "TICK_60")
    assert ear.listener.buffer_size == 1000
    assert (ear.group, ear.group_priority, ear.priority) == ("ear", -1, 999)
    assert ear.stdout_logfile is None
    assert ear.stderr_logfile is not None


def test_listeners_start_before_programs_unless_they_say_otherwise(read: Callable[..., Config]):
    program = "[program:a]\ncommand=x\n"

    assert list(read(DAEMON + program + EAR).programs) == ["ear", "a"]
    assert list(read(DAEMON + program + EAR + "priority=1000\n").programs) == ["a", "ear"]


def test_supervisor_s_keys_are_taken(read: Callable[..., Config]):
    keys = "buffer_size=5\nresult_handler=supervisor.dispatchers:default_handler\nstdout_logfile=/var/log/ear.log\n"

    ear = read(DAEMON + EAR + keys + "redirect_stderr=false\nstdout_capture_maxbytes=0\n").programs["ear"]

    assert ear.listener is not None
    assert ear.listener.buffer_size == 5
    assert ear.stdout_logfile == Path("/var/log/ear.log")


def test_a_program_is_no_listener(read: Callable[..., Config]):
    assert read(DAEMON + "[program:a]\ncommand=x\n").programs["a"].listener is None


def test_impossible_listener_is_refused_with_the_reason(complaints: Callable[..., list[str]]):
    def of(*lines: str, head: str = "[eventlistener:ear]\ncommand=x\n") -> str:
        (problem,) = complaints(DAEMON + head + "\n".join(lines))
        return problem

    assert "has no 'events'; add it" in of()
    assert "which is no event type; did you mean PROCESS_STATE?" in of("events=PROCESS_STAT")
    assert "is empty" in of("events=,")
    assert "not MODULE:FUNCTION" in of("events=EVENT", "result_handler=handler")
    assert "buffer_size" in of("events=EVENT", "buffer_size=0")
    assert "an event listener answers on its standard output" in of("events=EVENT", "redirect_stderr=true")
    assert "has no key 'checkpoint_dir'" in of("events=EVENT", "checkpoint_dir=/x")
    twins = "[program:ear]\ncommand=x\n[eventlistener:ear]\ncommand=y\n"
    assert "has the same name as [program:ear]" in of("events=EVENT", head=twins)
    assert "has no name; write [eventlistener:NAME]" in of("events=EVENT", head="[eventlistener]\ncommand=x\n")
    assert "did you mean [eventlistener:ear]" in of("events=EVENT", head="[eventlistner:ear]\ncommand=x\n")


@pytest.mark.parametrize("line", ["stdout_events_enabled=true", "stdout_capture_maxbytes=1MB"])
def test_the_answers_of_a_listener_are_no_events(read: Callable[..., Config], line: str):
    config = read(f"{DAEMON}{EAR}{line}\n")

    (remark,) = config.warnings
    assert "has no effect for event listeners, which answer on standard output" in remark.text
    ear = config.programs["ear"]
    assert (ear.stdout_events_enabled, ear.stdout_capture_maxbytes) == (False, 0)


def test_a_handler_of_others_is_remarked_on(read: Callable[..., Config]):
    printing = EAR.replace("PROCESS_STATE", "PROCESS_LOG") + "result_handler=supervisor_stdout:event_handler\n"

    config = read(DAEMON + printing)

    ear = config.programs["ear"].listener
    assert ear is not None
    assert ear.has_foreign_handler
    (remark,) = config.warnings
    assert (
        "what this listener answers is dropped; if it is to be printed, set stdout_logfile = /dev/stdout" in remark.text
    )


def test_output_events_need_captured_output(read: Callable[..., Config], complaints: Callable[..., list[str]]):
    keys = "stdout_events_enabled=true\nstderr_capture_maxbytes=1MB\n"

    program = read(f"{DAEMON}[program:a]\ncommand=x\n{keys}").programs["a"]

    assert (program.stdout_events_enabled, program.stdout_capture_maxbytes) == (True, 0)
    assert (program.stderr_events_enabled, program.stderr_capture_maxbytes) == (False, 1024**2)
    handed = f"{DAEMON}[program:a]\ncommand=x\n{keys}stdout_logfile=/dev/stdout\nstdout_logfile_maxbytes=0\n"
    (remark,) = read(handed).warnings
    assert "stdout_events_enabled needs the output of the program, but this stdout_logfile gives" in remark.text
    (problem,) = complaints(handed + EAR.replace("PROCESS_STATE", "PROCESS_LOG"))
    assert "and a listener waits for PROCESS_LOG_STDOUT; set stdout_logfile = NONE" in problem


def test_migrate_says_which_defaults_are_others(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text(DAEMON + EAR)

    header = [migration for migration in explain_migration(path, {}) if migration.subject == "[eventlistener:ear]"]

    assert [(migration.outcome, migration.reason) for migration in header] == [
        (MigrationOutcome.CHANGED, "1000 events may wait, not 10"),
        (MigrationOutcome.CHANGED, "standard output, which is the protocol, has no log"),
    ]


def test_migrate_says_what_is_different(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text(
        DAEMON + EAR + "buffer_size=50\nstdout_logfile=AUTO\nstdout_events_enabled=false\nstartretries=1\n"
        "result_handler=other:handler\n"
    )

    judged = {
        migration.location.line: migration.outcome
        for migration in explain_migration(path, {})
        if (migration.location.line or 0) > 1
    }

    assert list(judged.values()) == [
        MigrationOutcome.KEPT,
        MigrationOutcome.KEPT,
        MigrationOutcome.KEPT,
        MigrationOutcome.KEPT,
        MigrationOutcome.CHANGED,
        MigrationOutcome.KEPT,
        MigrationOutcome.CHANGED,
        MigrationOutcome.NO_EFFECT,
    ]
