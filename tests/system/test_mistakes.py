"""People's mistakes: a clear message, nothing stopped, and a fix that works without restarting the daemon."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.system.harness import TRAINER, Daemon, Refused, job, let_others_in


def test_bad_configuration_is_refused_with_everything_that_is_wrong_at_once(tmp_path: Path):
    daemon = Daemon(tmp_path, "[program:x]\ncomand=/bin/true\n[program:y]\ncommand=/bin/true\nstartsecs=soon\n")

    with pytest.raises(AssertionError, match="exited with 78") as refused:
        daemon.start()

    assert "did you mean 'command'" in str(refused.value)
    assert "startsecs" in str(refused.value)


def test_bad_section_keeps_its_program_as_it_is_and_others_are_updated(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        pid = daemon.until_step("count", 1)["pid"]
        daemon.write("[program:count]\ncomand=x\n[program:more]\ncommand=/bin/sleep 100000\n")

        answer = daemon.call("update")

        assert [(action["name"], action["action"]) for action in answer["actions"]] == [("more", "added")]
        (broken,) = answer["broken"]
        assert (broken["section"], broken["kept"]) == ("program:count", ["count"])
        assert any("comand" in problem for problem in broken["problems"])
        assert daemon.status("count")["pid"] == pid
        daemon.until_state("more", "RUNNING")

        daemon.write(
            job("count", tmp_path, STEPS=100_000)
            + "[program:more]\ncommand=\n[program:last]\ncommand=/bin/sleep 100000\n"
        )
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)  # does the same
        daemon.until(
            lambda: "last" in [program["name"] for program in daemon.call("status")["programs"]], "it is added"
        )
        assert daemon.status("more")["state"] == "RUNNING"
        assert daemon.status("count")["pid"] == pid


def test_an_empty_command_fails_its_program_alone_and_reload_does_not_end_one_that_runs(tmp_path: Path):
    with Daemon(tmp_path, "[program:a]\ncommand=\n[program:b]\ncommand=/bin/sleep 100000\n") as daemon:
        pid = daemon.until_state("b", "RUNNING")["pid"]
        assert "its command is empty" in daemon.until_state("a", "FAILED")["reason"]
        with pytest.raises(Refused, match="NOT_EXECUTABLE: cannot start a: its command is empty"):
            daemon.call("start", name="a")
        daemon.write("[program:b]\ncommand=\n")

        with pytest.raises(Refused, match="CANT_REREAD"):
            daemon.call("reload")

        assert daemon.status("b")["pid"] == pid


def test_neither_a_restart_nor_a_drill_stops_a_job_whose_script_is_gone(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(f'import runpy\nrunpy.run_path("{TRAINER}", run_name="__main__")\n')
    with Daemon(tmp_path, job("j", tmp_path, STEPS=100_000).replace(str(TRAINER), str(script))) as daemon:
        pid = daemon.until_step("j", 1)["pid"]
        script.unlink()

        with pytest.raises(Refused, match=r"CANT_RESTART: cannot start j: there is no .* j trains on"):
            daemon.call("stop", name="j", only_if_saved=True, restarts=True)
        with pytest.raises(Refused, match=r"CANT_RESTART: cannot start j: there is no .* no drill was started"):
            daemon.call("drill", name="all", in_s=1)

        assert daemon.call("drill", name="j", in_s=1000, certainty="possible")["id"]
        assert daemon.status("j")["pid"] == pid


def test_a_new_name_that_may_not_restore_what_the_old_one_saved_stops_nothing(tmp_path: Path):
    section = job("old", tmp_path, STEPS=100_000, EVERY=5)
    with Daemon(tmp_path, section) as daemon:
        pid = daemon.until_step("old", 10)["pid"]
        renamed = section.replace("[program:old]", "[program:new]")
        daemon.write(renamed)

        heir, refused = daemon.call("update")["actions"]

        assert (refused["name"], refused["action"]) == ("old", "refused")
        assert "set restore_from_jobs = old in the section of new" in refused["text"]
        assert (heir["name"], heir["action"]) == ("new", "refused")
        assert "old has its checkpoint_dir as long as its own section is not applied" in heir["text"]
        assert [program["name"] for program in daemon.call("status")["programs"]] == ["old"]
        assert daemon.status("old")["pid"] == pid
        daemon.write(f"{renamed}restore_from_jobs=old\n")
        daemon.call("update")
        found = daemon.until_step("new", 11)
        assert [program["name"] for program in daemon.call("status")["programs"]] == ["new"]
        assert found["job"]["restored"] is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs of others")
@pytest.mark.parametrize("closed", ["the command", "the checkpoints"])
def test_an_update_to_a_user_who_can_not_go_on_stops_nothing(tmp_path: Path, closed: str):
    let_others_in(tmp_path)
    command = tmp_path / "bin" / "python"
    command.parent.mkdir(mode=0o700 if closed == "the command" else 0o755)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    command.chmod(0o755)
    section = job("j", tmp_path, STEPS=100_000, EVERY=5).replace(sys.executable, str(command))
    with Daemon(tmp_path, section) as daemon:
        pid = daemon.until_step("j", 10)["pid"]
        daemon.write(f"{section}user=nobody\n")

        (refused,) = daemon.call("update")["actions"]

        assert refused["action"] == "refused"
        words = f"nobody may not enter or execute {command.parent}" if closed == "the command" else "j as nobody: "
        assert words in refused["text"]
        assert daemon.status("j")["pid"] == pid


def test_update_of_one_program_speaks_of_its_section_alone(tmp_path: Path):
    with Daemon(tmp_path, "[program:a]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.until_state("a", "RUNNING")
        daemon.write("[program:a]\ncommand=/bin/sleep 200000\n[program:b]\ncommand=/bin/true\nstartsecs=soon\n")

        (new,) = daemon.call("update", names=["b"])["broken"]
        changed = daemon.call("update", names=["a"])

        assert new["section"] == "program:b" and "startsecs" in new["problems"][0]
        assert [action["action"] for action in changed["actions"]] == ["stopped", "updated"]
        assert changed["broken"] == []


def test_reload_with_a_bad_section_keeps_the_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        pid = daemon.until_step("count", 1)["pid"]
        daemon.write("[program:count]\ncomand=x\n[program:more]\ncommand=/bin/sleep 100000\n")

        with pytest.raises(Refused) as refused:
            daemon.call("reload")

        assert refused.value.code == "CANT_REREAD"
        assert daemon.status("count")["pid"] == pid


def test_bad_section_of_the_daemon_changes_nothing(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=100_000)) as daemon:
        pid = daemon.until_step("count", 1)["pid"]
        daemon.write("[unix_http_server]\nchmod=9\n[program:more]\ncommand=/bin/sleep 100000\n")

        with pytest.raises(Refused) as refused:
            daemon.call("update")

        assert refused.value.code == "CANT_REREAD"
        assert daemon.status("count")["pid"] == pid


def test_update_touches_only_what_changed(tmp_path: Path):
    both = job("a", tmp_path, STEPS=100_000) + job("b", tmp_path, STEPS=100_000)
    with Daemon(tmp_path, both + "[program:gone]\ncommand=/bin/sleep 100000\n") as daemon:
        kept, changed = daemon.until_step("a", 1)["pid"], daemon.until_step("b", 1)["pid"]
        daemon.write(job("a", tmp_path, STEPS=100_000) + job("b", tmp_path, STEPS=99_999) + job("c", tmp_path))

        announced = daemon.call("reread")
        done = daemon.call("update")

        nothing = {"broken": [], "remarks": [], "not_applied": {}}
        assert announced == {"added": ["c"], "changed": ["b"], "removed": ["gone"], **nothing}
        assert {action["name"] for action in done["actions"]} == {"b", "c", "gone"}
        assert daemon.status("a")["pid"] == kept
        assert daemon.until_step("b", 1)["pid"] != changed
        assert {program["name"] for program in daemon.call("status")["programs"]} == {"a", "b", "c"}


def test_missing_command_is_named_and_works_once_it_is_there(tmp_path: Path):
    script = tmp_path / "late.sh"
    with Daemon(tmp_path, f"[program:late]\ncommand={script}\nautostart=false\n") as daemon:
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="late")
        assert refused.value.code == "NO_FILE"
        assert str(script) in refused.value.message

        script.write_text("#!/bin/sh\nexec sleep 100\n")
        script.chmod(0o755)

        daemon.call("start", name="late")
        assert daemon.status("late")["state"] == "RUNNING"


def test_exception_before_the_first_step_is_shown_and_not_retried(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "autostart=false", FAIL="import")) as daemon:
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="count")

        assert "No module named 'trian'" in refused.value.message
        assert daemon.status("count")["state"] == "FAILED"
        assert "No module named 'trian'" in daemon.status("count")["description"]
        assert len(daemon.call("history", name="count")["attempts"]) == 1


def test_checkpoint_dir_that_is_a_file_is_named(tmp_path: Path):
    (tmp_path / "count").write_text("in the way")
    with Daemon(tmp_path, job("count", tmp_path, "autostart=false")) as daemon:
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="count")

        assert f"{tmp_path}/count: Not a directory; make it a folder" in refused.value.message
        (tmp_path / "count").unlink()
        daemon.call("start", name="count")


def test_exit_0_without_done_counts_as_a_crash(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "startretries=0", FAIL="exit-0", EVERY=1000)) as daemon:
        failed = daemon.until_state("count", "FAILED")

        assert "never reported that training was done" in failed["reason"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import time; time.sleep(100)", "train.py did not use worker within 1 s (startup_timeout)"),
        ("print('trained for long')", "train.py exited 0 without using worker"),
        ("import worker", "train.py exited 0 before it reached worker.Run"),
    ],
)
def test_script_that_never_trains_with_worker_fails_once_and_says_why(tmp_path: Path, script: str, says: str):
    (tmp_path / "train.py").write_text(script)
    startup_s = 1 if "sleep" in script else 60
    section = (
        f"[program:mute]\ncommand={sys.executable} train.py\ndirectory={tmp_path}\ncheckpoint_dir={tmp_path}/mute\n"
        f"startup_timeout={startup_s}\nstopwaitsecs=1\nautostart=false\n"
    )
    with Daemon(tmp_path, section) as daemon:
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="mute")

        assert says in str(refused.value)
        assert daemon.status("mute")["state"] == "FAILED"
        assert [attempt["cause"] for attempt in daemon.call("history", name="mute")["attempts"]] == ["setup"]


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        ("start", {"name": "nope"}, "BAD_NAME"),
        ("start", {}, "BAD_ARGUMENTS"),
        ("start", {"name": "count", "wait": "yes"}, "BAD_ARGUMENTS"),
        ("start", {"name": "count"}, "ALREADY_STARTED"),
        ("stop", {"name": "plain", "wait": 1}, "BAD_ARGUMENTS"),
        ("signal", {"name": "count", "signal": "NOPE"}, "BAD_SIGNAL"),
        ("history", {"name": "count", "limit": -1}, "BAD_ARGUMENTS"),
        ("checkpoint", {"name": "plain"}, "NOT_A_JOB"),
        ("__class__", {}, "UNKNOWN_COMMAND"),
    ],
)
def test_bad_commands_are_refused_by_name_and_touch_nothing(
    tmp_path: Path, command: str, arguments: dict[str, object], code: str
):
    sections = job("count", tmp_path, STEPS=100_000) + "[program:plain]\ncommand=/bin/sleep 100000\n"
    with Daemon(tmp_path, sections) as daemon:
        pid = daemon.until_step("count", 1)["pid"]

        with pytest.raises(Refused) as refused:
            daemon.call(command, **arguments)

        assert refused.value.code == code
        assert daemon.status("count")["pid"] == pid
