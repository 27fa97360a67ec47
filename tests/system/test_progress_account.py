"""No start begins behind the newest checkpoint that was ever reported, unless the reason is said. Real daemons."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.reading import records
from tests.system.harness import Daemon, Refused, job
from tests.system.test_adoption import orphans
from tests.waiting import wait_until

__all__ = ["orphans"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SLOW = {"STEPS": 100_000, "STEP_S": 0.01, "EVERY": 10}


def until_waiting(daemon: Daemon, text: str) -> str:
    def look() -> str | None:
        found = daemon.status("j")
        return found["reason"] if found["state"] == "BACKOFF" and text in (found["reason"] or "") else None

    reason: str = daemon.until(look, f"j waits with {text!r}")
    return reason


def stopped_at(daemon: Daemon, step: int) -> int:
    """Trains to a step and stops; the step of the newest checkpoint then."""
    daemon.until_step("j", step)
    daemon.call("stop", name="j")
    newest = daemon.status("j")["job"]["newest"]
    assert newest["name"] == str(selection.committed_checkpoints(Path(newest["directory"]))[0])
    return int(newest["step"])


def test_a_changed_checkpoint_dir_waits_until_it_is_set_back(tmp_path: Path) -> None:
    section = job("j", tmp_path / "data", **SLOW)
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("j", 30)
        daemon.write(section.replace("data/j", "data/jj"))
        daemon.call("update", discard=True)

        reason = until_waiting(daemon, "checkpoint_dir is now")
        assert f"was committed in {tmp_path}/data/j (" in reason
        assert "which holds no checkpoint; set checkpoint_dir back" in reason
        newest = daemon.status("j")["job"]["newest"]
        daemon.write(section)
        daemon.call("update")

        assert daemon.until_step("j", newest["step"] + 1)["job"]["restored"] == newest["name"]


def test_checkpoints_that_were_moved_to_the_new_directory_are_gone_on_from(tmp_path: Path) -> None:
    section = job("j", tmp_path / "data", **SLOW)
    with Daemon(tmp_path, section) as daemon:
        step = stopped_at(daemon, 30)
        (tmp_path / "data" / "j").rename(tmp_path / "data" / "jj")
        daemon.write(section.replace("data/j", "data/jj"))
        daemon.call("update")

        daemon.call("start", name="j")

        found = daemon.status("j")["job"]
        assert found["restored"] is not None
        assert found["older_because"] is None
        assert daemon.until_step("j", step + 1)


@pytest.mark.parametrize("lost", ["ledger.sqlite3", "wanted.json"])
def test_one_lost_record_loses_nothing(tmp_path: Path, lost: str) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        step = stopped_at(daemon, 30)
        daemon.stop()
        (tmp_path / "state" / lost).write_bytes(os.urandom(5000))
        shutil.rmtree(tmp_path / "j")

        daemon.start()
        with pytest.raises(Refused, match=rf"step {step} \(step-.* was committed in"):
            daemon.call("start", name="j")


def test_the_record_is_in_both_files(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        step = stopped_at(daemon, 30)
        daemon.stop()

        account = json.loads((tmp_path / "state" / "wanted.json").read_text())["progress"]["j"]
        assert account["newest"]["step"] == step
        assert account["newest"]["wall_at"] > 1.7e9


def test_a_section_that_was_taken_out_and_comes_back_with_another_directory_waits(tmp_path: Path) -> None:
    section = job("j", tmp_path / "data", **SLOW)
    with Daemon(tmp_path, section) as daemon:
        stopped_at(daemon, 30)
        daemon.write("")
        daemon.call("update")
        daemon.write(section.replace("data/j", "data/jj") + "autostart=false\n")
        daemon.call("update")

        with pytest.raises(Refused, match="checkpoint_dir is now"):
            daemon.call("start", name="j")


def test_an_operator_begins_at_an_older_step_and_the_newer_ones_are_kept(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        stopped_at(daemon, 30)
        newest, older, *_ = selection.committed_checkpoints(tmp_path / "j")
        with pytest.raises(Refused, match="there is no whole checkpoint of that step; steps there: "):
            daemon.call("start", name="j", from_step=7)

        daemon.call("start", name="j", from_step=older.step)

        found = daemon.status("j")["job"]
        assert (found["restored"], found["older_because"]) == (str(older), "operator")
        assert [path.name for path in (tmp_path / "j" / layout.ABANDONED / "1").iterdir()] == [str(newest)]
        attempts = daemon.call("history", name="j")["attempts"]
        assert [attempt["older_because"] for attempt in attempts if attempt["from_step"] is not None] == [
            None,
            "operator",
        ]
        again = daemon.until_step("j", newest.step + 20)["job"]
        assert again["newest"]["step"] > newest.step


def test_a_damaged_newest_checkpoint_is_said_with_its_reason_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        stopped_at(daemon, 30)
        newest, older, *_ = selection.committed_checkpoints(tmp_path / "j")
        (tmp_path / "j" / str(newest) / "count").write_bytes(b"garbage")

        daemon.call("start", name="j")

        found = daemon.status("j")
        assert (found["job"]["restored"], found["job"]["older_because"]) == (str(older), "damaged")
        assert f"behind step {newest.step} ({newest}), which is damaged: " in found["description"]
        daemon.call("stop", name="j")
        daemon.call("start", name="j")
        assert daemon.status("j")["job"]["older_because"] is None


def test_from_scratch_is_not_done_again_if_the_daemon_died_before_training_began(tmp_path: Path) -> None:
    """The worker trained on alone, and died before the next daemon came: what it saved was moved away."""
    with Daemon(tmp_path, job("j", tmp_path, LOAD_S=1, **SLOW)) as daemon:
        stopped_at(daemon, 30)
        daemon.call("start", name="j", from_scratch=True, wait=False)
        daemon.until(lambda: daemon.events("checkpoint.older"), "the worker is told to begin")
        pid = daemon.until(lambda: daemon.status("j")["pid"], "there is a worker")
        daemon.call("history", name="j")  # all that was decided so far is in the ledger
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)  # so that the worker has its pipes open when the daemon is gone
        saved = wait_until(lambda: [*(tmp_path / "j").glob("step-*.a2")], "it trains without a daemon")
        os.kill(pid, signal.SIGKILL)
        daemon.stop(signal.SIGKILL)
        daemon.start()

        found = daemon.until_step("j", 10)["job"]

    assert saved
    assert found["restored"] is not None
    assert found["restored"].endswith(".a2")
    assert not (tmp_path / "j" / layout.ABANDONED / "2").exists()


def test_a_state_folder_from_a_copy_gives_up_nothing_that_was_trained_since(tmp_path: Path) -> None:
    """When the copy was made, the job waited to begin anew."""
    section = job("j", tmp_path, **SLOW)
    with Daemon(tmp_path, section) as daemon:
        stopped_at(daemon, 30)
        daemon.write(job("j", tmp_path, FAIL="import", **SLOW))
        daemon.call("update")
        with pytest.raises(Refused):
            daemon.call("start", name="j", from_scratch=True)
        daemon.stop()
        shutil.copytree(tmp_path / "state", tmp_path / "copy", symlinks=True, ignore_dangling_symlinks=True)
        daemon.write(section)
        daemon.start()
        step = stopped_at(daemon, 50)
        daemon.stop()
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "copy").rename(tmp_path / "state")

        daemon.start()

        assert daemon.until_step("j", step + 1)["job"]["newest"]["step"] >= step
    assert "decision.outdated" in {record["event"] for record in records(tmp_path / "daemon.log")}


def test_a_lost_folder_is_not_replaced_by_a_later_step_of_initial_checkpoint(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("base", tmp_path, STEPS=30, EVERY=10)) as daemon:
        daemon.until_state("base", "SUCCEEDED")
        second = job("j", tmp_path, f"initial_checkpoint = {tmp_path}/base", **SLOW)
        daemon.write(job("base", tmp_path, STEPS=30, EVERY=10) + second)
        daemon.call("update")
        step = stopped_at(daemon, 50)
        daemon.write(job("base", tmp_path, STEPS=2 * step, EVERY=10) + second)
        daemon.call("update")
        daemon.call("start", name="base")
        daemon.until_state("base", "SUCCEEDED")
        (tmp_path / "j").rename(tmp_path / "away")

        with pytest.raises(Refused, match=rf"step {step} \(step-.* was committed in"):
            daemon.call("start", name="j")

        (tmp_path / "away").rename(tmp_path / "j")
        assert daemon.until_step("j", step + 1)["job"]["older_because"] is None


@pytest.mark.parametrize("worker", ["lives", "is dead"])
def test_what_was_saved_in_the_directory_before_is_not_taken_for_lost_in_the_new_one(
    tmp_path: Path, orphans: Callable[[int], int], worker: str
) -> None:
    """The daemon dies while the job moves to another disk, and the next one reads the new section."""
    section, data = job("j", tmp_path / "data", **SLOW), tmp_path / "data"
    with Daemon(tmp_path, section) as daemon:
        pid = int(daemon.until_step("j", 30)["pid"])
        daemon.die()
        shutil.copytree(data / "j", data / "jj", ignore=shutil.ignore_patterns("*.partial", ".*"))
        copied = selection.committed_checkpoints(data / "jj")[0].step
        wait_until(lambda: selection.committed_checkpoints(data / "j")[0].step > copied + 20, "it trains on alone")
        if worker == "is dead":
            os.kill(pid, signal.SIGKILL)
            orphans(pid)
        daemon.write(section.replace("data/j", "data/jj"))
        daemon.start()

        reason = until_waiting(daemon, "checkpoint_dir is now")

        newest = selection.committed_checkpoints(data / "j")[0]
        assert f"step {newest.step} ({newest}) was committed in {data}/j (" in reason
        assert f"which has step {copied} as its newest; set checkpoint_dir back" in reason


def test_a_renamed_job_waits_for_the_checkpoints_of_its_former_name(tmp_path: Path) -> None:
    section = job("j", tmp_path / "data", **SLOW)
    with Daemon(tmp_path, section) as daemon:
        step = stopped_at(daemon, 30)
        (tmp_path / "data" / "j").rename(tmp_path / "away")  # as a disk that is not mounted
        daemon.write(section.replace("[program:j]", "[program:k]\nrestore_from_jobs=j"))
        daemon.call("update")

        def look() -> str | None:
            found = daemon.status("k")
            return found["reason"] if found["state"] == "BACKOFF" else None

        reason = daemon.until(look, "k waits", 20.0)
        assert f"cannot train k: step {step} (step-" in reason
        (tmp_path / "away").rename(tmp_path / "data" / "j")
        assert daemon.until_step("k", step + 1)["job"]["older_because"] is None


def test_a_job_that_gets_another_name_while_it_trains_inherits_what_it_saves_last(tmp_path: Path) -> None:
    section, renamed = job("j", tmp_path / "data", **SLOW), "[program:k]\nrestore_from_jobs=j"
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("j", 10)
        daemon.write(section.replace("[program:j]", renamed))
        stopped, *_ = daemon.call("update")["actions"]
        begun = daemon.until_step("k", 11)["job"]
        (inherited,) = [line for line in records(tmp_path / "daemon.log") if line["event"] == "account.inherited"]

    assert stopped["text"] == f"stopped at step {inherited['step']}, saved in {inherited['checkpoint']}"
    assert begun["restored"] == inherited["checkpoint"]


def test_a_job_that_gets_its_former_name_back_misses_what_the_other_name_has_committed(tmp_path: Path) -> None:
    section, data = job("j", tmp_path / "data", **SLOW), tmp_path / "data" / "j"
    with Daemon(tmp_path, section) as daemon:
        stopped_at(daemon, 30)
        daemon.write(section.replace("[program:j]", "[program:k]\nrestore_from_jobs=j"))
        daemon.call("update")
        daemon.until_step("k", 100)
        daemon.call("stop", name="k")
        shutil.copytree(data, tmp_path / "copy")
        daemon.call("start", name="k")
        daemon.until_step("k", 200)
        daemon.call("stop", name="k")
        shutil.rmtree(data)
        (tmp_path / "copy").rename(data)
        step = selection.committed_checkpoints(data)[0].step

        daemon.write(section.replace("[program:j]", "[program:j]\nrestore_from_jobs=k"))
        daemon.call("update")

        begun = daemon.until_step("j", step + 1)["job"]
        assert begun["older_because"] == "deleted"
        daemon.die()  # what was lost is said once
        daemon.start()
        daemon.call("stop", name="j")
        daemon.call("start", name="j")
        assert daemon.until_step("j", step + 1)["job"]["older_because"] is None
