"""What `update` answers while another order is under way, and never does to a folder that two jobs name."""

import os
import signal
import time
from pathlib import Path

import pytest

from supervisor.ctl.main import main
from supervisor.protocol.checkpoints import selection
from supervisor.runner.mirror.epoch_watch import WATCH_S
from tests.reading import records
from tests.system.harness import Daemon, Refused, job
from tests.system.test_mirror import mirrored
from tests.system.test_races import Call, flushing
from tests.waiting import stays

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SLOW = {"STEPS": 100_000, "EVERY": 100_000, "FLUSH_S": 3}
AT_ONCE_S = 2.0  # on a busy machine; a stop takes as long as two flushes
PLAIN = "[program:{name}]\ncommand=/bin/sleep 100000\n"


def ctl(capsys: pytest.CaptureFixture[str], daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    """The exit status and what was printed to both streams."""
    capsys.readouterr()
    status = main(["-s", f"unix://{daemon.socket}", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_who_comes_during_an_update_is_answered_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed, new = job("count", tmp_path, **{**SLOW, "STEPS": 99_999}), PLAIN.format(name="new")
    with Daemon(tmp_path, job("count", tmp_path, **SLOW) + PLAIN.format(name="idle") + "autostart=false\n") as daemon:
        daemon.until_step("count", 5)
        daemon.write(changed + PLAIN.format(name="idle") + "autostart=false\n")
        update = Call(lambda: daemon.call("update"))
        flushing(daemon)

        began_at = time.monotonic()
        daemon.write(changed + new)
        status, out, _ = ctl(capsys, daemon, "update")
        with pytest.raises(Refused) as still:
            daemon.call("remove", name="count")
        took_s = time.monotonic() - began_at

        assert took_s < AT_ONCE_S
        assert (status, still.value.code) == (1, "STILL_RUNNING")
        lines = out.splitlines()
        assert lines[0] == "count: ERROR (not applied)"
        assert "another order (update, add or remove) has been changing count for " in lines[1]
        assert lines[2:] == ["idle: stopped", "idle: removed process group", "new: added process group"]
        assert daemon.status("new")["state"] in ("STARTING", "RUNNING")
        assert [action["action"] for action in update.result()["actions"]] == ["stopped", "updated"]
        assert daemon.status("count")["not_applied"] is None
        assert daemon.call("update")["actions"] == []


def test_a_hangup_during_an_update_is_not_forgotten(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("count", tmp_path, **SLOW)) as daemon:
        daemon.until_step("count", 5)
        daemon.write(job("count", tmp_path, **{**SLOW, "STEPS": 99_999}))
        update = Call(lambda: daemon.call("update"))
        flushing(daemon)
        daemon.write(job("count", tmp_path, **{**SLOW, "STEPS": 99_998}))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        update.result()

        daemon.until(lambda: len(updated(tmp_path)) == 1, "the signal's update is done")

        assert updated(tmp_path) == [["count: stopped", "count: updated"]]


def updated(folder: Path) -> list[object]:
    """What updates that signals asked for have done."""
    return [
        record["actions"] for record in records(folder / "daemon.log") if record["event"] == "configuration.updated"
    ]


@pytest.mark.parametrize("how", ["it can't save", "it is not named", "another order changes it"])
def test_a_job_gets_no_folder_in_which_another_one_goes_on(tmp_path: Path, how: str) -> None:
    keys, environment = "flush_timeout = 6", {"STEPS": 100_000, "EVERY": 10, "STEP_S": 0.02}
    old = job("old", tmp_path, keys, **environment | ({"FLUSH_S": 2, "EVERY": 100_000} if "order" in how else {}))
    with Daemon(tmp_path, old) as daemon:
        pid = int(daemon.until_step("old", 25)["pid"])
        daemon.write(old.replace("[program:old]", "[program:new]\nrestore_from_jobs = old"))
        names = None
        if how == "it can't save":
            os.kill(pid, signal.SIGSTOP)
        elif how == "it is not named":
            names = ["new"]
        else:
            daemon.call("reread")
            under_way = Call(lambda: daemon.call("update", names=["old"]))
            daemon.until(lambda: daemon.status("old")["state"] == "FLUSHING", "it flushes")

        answer = daemon.call("update", names=names) if names else daemon.call("update")

        refused = {action["name"]: action for action in answer["actions"]}["new"]
        assert refused["action"] == "refused"
        assert "cannot apply the section of new: old has its checkpoint_dir as long as " in refused["text"]
        if how == "it is not named":
            with pytest.raises(Refused, match="two jobs in one folder would restore and delete each other's"):
                daemon.call("add", name="new")
        assert [program["name"] for program in daemon.call("status")["programs"]] == ["old"]
        if how == "it can't save":
            os.kill(pid, signal.SIGCONT)
        if "order" in how:
            assert [action["action"] for action in under_way.result()["actions"]] == ["stopped", "removed"]
        daemon.call("update")
        begun = daemon.until_step("new", 26)["job"]
        (attempt,) = daemon.call("history", name="new")["attempts"]

    newest_of_old = max(name.step for name in selection.committed_checkpoints(tmp_path / "old") if name.attempt == 1)
    assert attempt["from_step"] == newest_of_old
    assert begun["older_because"] is None


def test_a_job_that_gets_another_name_with_the_next_daemon_waits_for_the_last_save_of_the_former_one(
    tmp_path: Path,
) -> None:
    """It has one retry, and a save takes longer than that."""
    environment = {"STEPS": 100_000, "EVERY": 50, "STEP_S": 0.01, "FLUSH_S": 4}
    old = job("old", tmp_path, "startretries = 1", **environment)
    with Daemon(tmp_path, old) as daemon:
        daemon.until(lambda: daemon.status("old")["job"]["newest"], "the first checkpoint")
        daemon.die()
        daemon.write(old.replace("[program:old]", "[program:new]\nrestore_from_jobs = old"))
        daemon.start()

        begun = daemon.until_step("new", 1)["job"]
        (attempt,) = daemon.call("history", name="new")["attempts"]

    newest_of_old = max(name.step for name in selection.committed_checkpoints(tmp_path / "old") if name.attempt == 1)
    assert attempt["from_step"] == newest_of_old
    assert begun["older_because"] is None


@pytest.mark.timeout(180)
def test_a_mirror_that_can_not_be_looked_at_is_said_and_what_it_has_is_safe_when_it_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, other, own = tmp_path / "store", tmp_path / "other", tmp_path / "own"
    other.mkdir()
    own.mkdir()
    with Daemon(other, mirrored("j", other, f"file://{store}", STEPS=500, EVERY=250)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"] == 500, "the last upload")
    store.rename(tmp_path / "away")
    uploaded = set((tmp_path / "away").rglob("MANIFEST.json"))
    with Daemon(own, job("j", own, STEPS=100_000, EVERY=20, STEP_S=0.02)) as daemon:
        daemon.until_step("j", 45)
        daemon.write(job("j", own, f"mirror = file://{store}", STEPS=100_000, EVERY=20, STEP_S=0.02))

        status, out, err = ctl(capsys, daemon, "update")

        assert (status, out.splitlines()[-1]) == (0, "j: updated process group")
        assert f"remark: j: its mirror file://{store} failed: " in err
        assert "nothing is uploaded until the store answers" in err
        step = daemon.until_step("j", 60)["job"]["newest"]["step"]
        (tmp_path / "away").rename(store)
        daemon.until(
            lambda: "of step 500" in (daemon.status("j")["job"]["mirror"]["error"] or ""), "status says so", 120.0
        )
        stays(lambda: daemon.status("j")["state"] == "RUNNING", "nobody has taken its run over", WATCH_S + 2.0)
        trained = daemon.until_step("j", step + 100)["job"]
        daemon.call("stop", name="j")
        with pytest.raises(Refused, match=r"nothing says that it is of the same training"):
            daemon.call("start", name="j")

    assert trained["restored"] is not None
    assert uploaded == {tmp_path / "away" / path.relative_to(store) for path in store.rglob("MANIFEST.json")}
