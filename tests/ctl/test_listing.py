"""status, pid, version, avail, checkpoints, history."""

import json
import time

import pytest

from tests.ctl.daemon_end import Fault, down, job, program


def test_status_lines_are_supervisors(daemon, ctl):
    off = down("off")
    crash = program("crash", wire_state="FATAL", wire_code=200, description="Exited too quickly", pid=None)
    daemon.answers["status"] = {"programs": [crash, program("job"), off]}

    result = ctl("status")

    assert result.out.splitlines() == [
        "crash                            FATAL     Exited too quickly",
        "job                              RUNNING   pid 4242, uptime 0:00:05",
        "off                              STOPPED   Not started",
    ]
    assert result.status == 3


def test_status_of_programs_that_run_is_0(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("a"), down("b")]}

    assert ctl("status", "a").status == 0


def test_status_says_what_is_wrong_with_the_daemon_without_disturbing_scripts(daemon, ctl):
    troubles = {"ledger_error": "cannot write the ledger: the disk is full", "hooks_error": None}
    daemon.answers["status"] = {"programs": [program("a")], **troubles}

    result = ctl("status")

    assert result.out.splitlines() == ["a                                RUNNING   pid 4242, uptime 0:00:05"]
    assert result.err == "supervisord: cannot write the ledger: the disk is full\n"


@pytest.mark.parametrize("code", [10, 20, 30, 40])
def test_states_on_the_way_count_as_fine(daemon, ctl, code):
    daemon.answers["status"] = {"programs": [program("a", wire_code=code)]}

    assert ctl("status").status == 0


def test_a_long_name_widens_the_column(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("n" * 40), program("b")]}

    lines = ctl("status").out.splitlines()

    assert [line.index("RUNNING") for line in lines] == [43, 43]


def test_status_of_an_unknown_name_says_so_with_4(daemon, ctl):
    daemon.answers["status"] = {"programs": [down("a")]}

    result = ctl("status", "nope", "a")

    assert result.out.splitlines()[0] == "nope: ERROR (no such process)"
    assert (len(result.out.splitlines()), result.status) == (2, 4)


def test_status_json_holds_everything_the_daemon_told(daemon, ctl):
    programs = [program("digits", job=job())]
    troubles = {"ledger_error": "the disk is full", "hooks_error": None}
    daemon.answers["status"] = {"programs": programs, **troubles}

    status = json.loads(ctl("status", "--json").out)

    assert status == {"schema": 1, "programs": programs, "unknown": [], **troubles}


def test_a_description_of_several_lines_is_one_line(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("a", description="line 1\nline 2")]}

    assert ctl("status").out.count("\n") == 1


def test_pid_is_the_daemons(daemon, ctl):
    daemon.answers["pid"] = {"pid": 77}

    assert ctl("pid").out == "77\n"


def test_pid_of_a_stopped_program_is_0_with_7(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("a"), down("b")]}

    result = ctl("pid", "a", "b")

    assert (result.out, result.status) == ("4242\n0\n", 7)


def test_pids_come_in_the_order_of_the_names(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("a", pid=11), program("b", pid=22)]}

    assert ctl("pid", "b", "x", "a").out == "22\nNo such process x\n11\n"


def test_pid_of_an_unknown_program(daemon, ctl):
    daemon.answers["status"] = {"programs": []}

    result = ctl("pid", "x")

    assert (result.out, result.status) == ("No such process x\n", 1)


def test_version_is_the_bare_number(daemon, ctl):
    daemon.answers["version"] = {"version": "0.1.0"}

    assert ctl("version").out == "0.1.0\n"


def test_avail_has_supervisors_columns(daemon, ctl):
    daemon.answers["avail"] = {
        "programs": [
            {"name": "a", "in_use": True, "autostart": True, "group_priority": 999, "priority": 999},
            {"name": "g:b", "in_use": False, "autostart": False, "group_priority": 7, "priority": 1},
        ]
    }

    assert ctl("avail").out.splitlines() == [
        "a                                in use    auto      999:999",
        "g:b                              avail     manual    7:1",
    ]


def listed(name: str, step: int, **other: object) -> dict[str, object]:
    plain = {"attempt": 1, "created_wall_at": time.time() - 61, "size_bytes": 2048, "reason": None}
    return {"name": name, "step": step, "valid": True, "quarantined": False, **plain, **other}


def test_checkpoints_say_whole_or_why_not(daemon, ctl):
    daemon.answers["checkpoints"] = {
        "checkpoints": [
            listed("step-0000000300.a1", 300),
            listed("step-0000000200.a1", 200, valid=False, reason="ckpt.index is missing"),
            listed("step-0000000100.a1", 100, valid=None, quarantined=True, reason="one bit is wrong"),
        ]
    }

    lines = ctl("checkpoints", "digits").out.splitlines()

    assert lines[1].split()[:2] == ["300", "step-0000000300.a1"]
    assert "2.0 KB" in lines[1]
    assert "0:01:0" in lines[1]
    assert [line.split("KB  ")[1] for line in lines[1:]] == [
        "whole",
        "damaged: ckpt.index is missing",
        "quarantined: one bit is wrong",
    ]


def test_checkpoints_say_which_are_mirrored(daemon, ctl):
    daemon.answers["checkpoints"] = {
        "checkpoints": [listed("step-0000000300.a1", 300), listed("step-0000000200.a1", 200)],
        "mirror": ["step-0000000200.a1", "step-0000000100.a1"],
    }

    lines = ctl("checkpoints", "digits").out.splitlines()

    assert [line.rsplit("  ", 1)[1] for line in lines[1:]] == ["whole", "whole, mirrored", "in the mirror only"]
    assert lines[3].split()[:2] == ["100", "step-0000000100.a1"]


def test_no_verify_is_passed_on(daemon, ctl):
    daemon.answers["checkpoints"] = {"checkpoints": []}

    result = ctl("checkpoints", "--no-verify", "digits")

    assert daemon.asked == [("checkpoints", {"name": "digits", "verify": False})]
    assert result.out == "no checkpoints yet\n"


@pytest.mark.parametrize("action", ["checkpoints", "history"])
def test_listing_an_unknown_program_fails(daemon, ctl, action):
    daemon.answers[action] = Fault("BAD_NAME", "x")

    result = ctl(action, "x")

    assert (result.out, result.status) == ("x: ERROR (no such process)\n", 1)


def attempt(number: int, **other: object) -> dict[str, object]:
    return {
        "attempt": number,
        "started_wall_at": 1_000.0,
        "ended_wall_at": 1_090.0,
        "ran_s": 90.0,
        "restored": None,
        "from_step": 0,
        "to_step": 120,
        "cause": "crash",
        "text": "killed by SIGKILL",
        "lost_steps": 20,
        "refused": [],
        "changed": [],
        "older_because": None,
        "older_text": None,
        "checkpoints": 1,
        **other,
    }


def test_history_tells_each_attempt_and_what_it_refused(daemon, ctl):
    running = {"ended_wall_at": None, "to_step": None, "cause": None, "text": None, "lost_steps": None}
    refused = {"from_step": 100, "refused": [["step-0000000110.a1", "ckpt.index is missing"]]}
    daemon.answers["history"] = {"attempts": [attempt(1), attempt(2, **running, **refused)]}

    lines = ctl("history", "-5", "digits").out.splitlines()

    assert lines[0].split() == ["ATTEMPT", "STARTED", "LASTED", "FROM", "TO", "SAVED", "LOST", "ENDED"]
    assert lines[1].split()[3:] == ["0:01:30", "0", "120", "1", "20", "killed", "by", "SIGKILL"]
    assert lines[2].strip() == "refused step-0000000110.a1: ckpt.index is missing"
    assert lines[3].split()[3:] == ["running", "100", "-", "1", "-"]
    assert daemon.asked == [("history", {"name": "digits", "limit": 5})]


@pytest.mark.parametrize("action", ["checkpoints", "goodput", "history", "timeline"])
@pytest.mark.parametrize("name", ["all", "w:*", "w:"])
def test_details_of_one_program_are_not_requested_for_many(daemon, ctl, action, name):
    result = ctl(action, name)

    assert result.out.startswith(f"Error: {action} requires one process name\n")
    assert (result.status, daemon.asked) == (1, [])
