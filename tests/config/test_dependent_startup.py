"""The keys of supervisord-dependent-startup: what they mean here."""

from collections.abc import Callable

import pytest

from supervisor.config import Config
from supervisor.config.migration.outcomes import MigrationOutcome, explain_migration

FILE = """[supervisord]
[eventlistener:dependent-startup]
command=python3 -m supervisord_dependent_startup
events=PROCESS_STATE
[program:log]
command=/bin/cat
autostart=false
dependent_startup=true
[program:prepare]
command=/bin/true
autostart=false
startsecs=0
dependent_startup=true
dependent_startup_wait_for=log:running
[program:web]
command=/bin/cat
autostart=false
dependent_startup=true
dependent_startup_inherit_priority=true
dependent_startup_wait_for=log prepare:exited
"""


def test_the_daemon_waits_for_what_the_listener_would_wait_for(read: Callable[..., Config]):
    config = read(FILE)

    needs = {name: (program.depends_on, program.depends_on_end) for name, program in config.programs.items()}
    assert needs["web"] == (("log",), ("prepare",)) and needs["prepare"] == (("log",), ())
    assert all(program.autostart for program in config.programs.values())
    assert config.warnings == ()


def section(wait_for: str, more: str = "") -> str:
    return (
        f"[supervisord]\n[program:a]\ncommand=/bin/cat\nnumprocs=2\nprocess_name=a%(process_num)d\n"
        f"[program:b]\ncommand=/bin/cat\n[program:x]\ncommand=/bin/cat\nautostart=false\n"
        f"dependent_startup_wait_for={wait_for}\n{more}"
    )


def test_a_program_of_a_group_and_one_with_several_processes_are_found(read: Callable[..., Config]):
    text = section("a:running b:RUNNING,exited", "dependent_startup=on\n[group:g]\nprograms=b\n")

    assert read(text).programs["x"].depends_on == ("a", "g:b")


def test_nothing_is_waited_for_where_the_listener_is_turned_off(read: Callable[..., Config]):
    program = read(section("a b", "dependent_startup=false\n")).programs["x"]

    assert program.depends_on == () and not program.autostart


@pytest.mark.parametrize(
    ("wait_for", "why"),
    [
        ("nobody", "dependent_startup_wait_for names 'nobody', which is neither a program nor a group"),
        ("x", "dependent_startup_wait_for makes a cycle: x needs x"),
        ("a:starting", "dependent_startup_wait_for has 'a:starting', but only RUNNING and EXITED can be waited for"),
    ],
)
def test_what_can_not_be_waited_for_is_refused_at_its_line(complaints, wait_for: str, why: str):
    (problem,) = complaints(section(wait_for, "dependent_startup=true\n"))

    assert ".conf:11: [program:x] " + why in problem


def test_a_word_that_is_neither_true_nor_false_is_refused(complaints):
    (problem,) = complaints(section("a", "dependent_startup=perhaps\n"))

    assert "[program:x] dependent_startup is 'perhaps', which is neither true nor false" in problem


def test_migrate_says_how_they_are_read(tmp_path):
    path = tmp_path / "old.conf"
    path.write_text(FILE)

    said = {line.subject: line for line in explain_migration(path, {}) if "dependent" in line.subject}

    assert said["[program:web] dependent_startup_wait_for"].outcome is MigrationOutcome.CHANGED
    assert said["[program:web] dependent_startup_wait_for"].reason.startswith("as depends_on for `running`")
    assert "the listener supervisord-dependent-startup is not needed" in said["[program:log] dependent_startup"].reason
