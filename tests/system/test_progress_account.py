"""No start begins behind the newest checkpoint that was ever reported, unless the reason is said. Real daemons."""

import json
import os
import shutil
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.system.harness import Daemon, Refused, job

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
