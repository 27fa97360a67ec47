"""The host goes away: whole daemons and real processes, told by drills."""

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.reading import alive
from tests.system.harness import PATIENCE_S, Daemon, Refused, job
from tests.waiting import wait_until

ENDLESS = {"STEPS": 1_000_000, "EVERY": 1_000_000}
AT_ONCE = "notice_margin = 3000"
"""With a drill of as many seconds the last safe moment has passed when the notice comes."""


def checkpoints(daemon: Daemon, name: str, attempt: int = 1) -> list[dict[str, Any]]:
    """Those of an attempt, oldest first."""
    found = daemon.call("checkpoints", name=name, verify=False)["checkpoints"]
    return [each for each in reversed(found) if each["attempt"] == attempt]


def attempts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    return list(daemon.call("history", name=name)["attempts"])


def notice_of(daemon: Daemon, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = daemon.status(name)["notice"]
    return found


def until_held(daemon: Daemon, name: str) -> None:
    daemon.until(lambda: (notice_of(daemon, name) or {}).get("waits"), f"{name} waits for the host's fate")


def until_over(daemon: Daemon, name: str) -> None:
    daemon.until(lambda: notice_of(daemon, name) is None, "the notice is over")


def until_saved(daemon: Daemon, name: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.until(
        lambda: found if len(found := checkpoints(daemon, name)) >= count else None, f"{name} saved {count} times"
    )
    return found


@pytest.mark.slow
def test_eight_jobs_are_all_durable_before_the_deadline_having_trained_on(tmp_path: Path):
    names = [f"job{number}" for number in range(8)]
    keys = "notice_margin = 5.5"  # what a machine busy with other tests may stand still
    jobs = [job(name, tmp_path, keys, FLUSH_S=0.1, STEP_S=0.02, **ENDLESS) for name in names]
    with Daemon(tmp_path, "".join(jobs)) as daemon:
        for name in names:
            daemon.until_step(name, 2, patience_s=60)
        told_at = time.time()

        daemon.call("drill", name="all", in_s=8)

        daemon.until(lambda: all(attempts(daemon, name)[0]["ended_wall_at"] for name in names), "all have left", 60)
        for name in names:
            first, last = checkpoints(daemon, name)
            assert last["step"] > first["step"]
            assert told_at + 1 < last["created_wall_at"] < told_at + 8, "late, but before the deadline"
            ended = attempts(daemon, name)[0]
            assert (ended["cause"], ended["to_step"]) == ("preemption", last["step"])
            daemon.until_step(name, last["step"] + 1, patience_s=60)
            assert attempts(daemon, name)[0]["lost_steps"] == 0


def test_a_withdrawal_lets_the_same_process_train_on(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, **ENDLESS)) as daemon:
        pid = daemon.until_step("count", 5)["pid"]
        daemon.call("drill", name="count", in_s=3000)
        until_saved(daemon, "count", 1)
        assert "host goes away in" in daemon.status("count")["description"]

        assert daemon.call("drill", name="count", withdraw=True)["withdrawn"] == 1

        step = daemon.status("count")["job"]["step"]
        now = daemon.until_step("count", step + 20)
        assert (now["pid"], now["notice"], now["state"]) == (pid, None, "RUNNING")
        assert daemon.call("notices")["notices"] == []


def test_job_that_left_resumes_once_the_notice_is_withdrawn(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS)) as daemon:
        first = daemon.until_step("count", 5)["pid"]
        daemon.call("drill", name="all", in_s=3000)
        until_held(daemon, "count")
        assert not alive(first)
        saved = checkpoints(daemon, "count")[-1]["step"]

        daemon.call("drill", name="all", withdraw=True)

        daemon.until_step("count", saved + 1)
        one, two = attempts(daemon, "count")
        assert (one["cause"], one["lost_steps"], two["from_step"]) == ("preemption", 0, saved)


def test_a_host_that_outlives_its_deadline_trains_on(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "notice_margin = 0", **ENDLESS)) as daemon:
        daemon.until_step("count", 5)

        daemon.call("drill", name="count", in_s=1)

        until_over(daemon, "count")
        until_saved(daemon, "count", 1)
        step = daemon.status("count")["job"]["step"] or checkpoints(daemon, "count")[-1]["step"]
        daemon.until_step("count", step + 20)


def test_job_that_trains_on_saves_once_more_and_trains_until_killed(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, f"{AT_ONCE}\non_notice = train", **ENDLESS)) as daemon:
        pid = daemon.until_step("count", 5)["pid"]

        daemon.call("drill", name="count", in_s=3000)

        until_saved(daemon, "count", 2)
        daemon.until(lambda: "until it is killed" in daemon.status("count")["description"], "its last flush is done")
        step = daemon.status("count")["job"]["step"]
        assert daemon.until_step("count", step + 20)["pid"] == pid


def test_a_possible_notice_makes_one_checkpoint_and_no_more(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS)) as daemon:
        pid = daemon.until_step("count", 5)["pid"]

        daemon.call("drill", name="count", in_s=3000, certainty="possible", kind="rebalance")

        (saved,) = until_saved(daemon, "count", 1)
        assert daemon.until_step("count", saved["step"] + 50)["pid"] == pid
        assert len(checkpoints(daemon, "count")) == 1


def test_a_drill_for_one_program_is_none_of_the_others_business(tmp_path: Path):
    with Daemon(tmp_path, "".join(job(name, tmp_path, AT_ONCE, **ENDLESS) for name in ("one", "other"))) as daemon:
        daemon.until_step("one", 5)
        pid = daemon.until_step("other", 5)["pid"]

        daemon.call("drill", name="one", in_s=3000)

        until_held(daemon, "one")
        other = daemon.status("other")
        assert (other["pid"], other["notice"], checkpoints(daemon, "other")) == (pid, None, [])


def test_nothing_is_started_shortly_before_the_host_goes_and_it_starts_once_the_host_stays(tmp_path: Path):
    plain = "[program:plain]\ncommand = /bin/sleep 100000\n"
    with Daemon(tmp_path, job("count", tmp_path, f"{AT_ONCE}\nautostart = false", **ENDLESS) + plain) as daemon:
        daemon.until_state("plain", "RUNNING")
        daemon.call("drill", name="all", in_s=3000)

        with pytest.raises(Refused) as refused:
            daemon.call("start", name="count")
        daemon.call("drill", name="all", withdraw=True)

        assert "waiting because the host is going away (drill" in refused.value.message
        daemon.until_step("count", 5)


def test_there_is_nothing_to_drill_in_a_job_that_is_done(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=3)) as daemon:
        daemon.until_state("count", "SUCCEEDED")

        for name in ("count", "all"):
            with pytest.raises(Refused) as refused:
                daemon.call("drill", name=name, in_s=3000)
            assert refused.value.code == "NOT_RUNNING"
            assert "nothing to drill" in refused.value.message
        assert daemon.call("notices")["notices"] == []


def test_job_stopped_during_a_notice_stays_stopped(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS)) as daemon:
        daemon.until_step("count", 5)
        daemon.call("drill", name="all", in_s=3000)
        until_held(daemon, "count")

        daemon.call("stop", name="count")
        daemon.call("drill", name="all", withdraw=True)

        assert (daemon.status("count")["state"], daemon.status("count")["wanted"]) == ("STOPPED", False)


def test_after_a_reboot_what_ran_runs_and_what_was_stopped_stays_so(tmp_path: Path):
    programs = "".join(job(name, tmp_path, STEPS=1_000_000, EVERY=5) for name in ("runs", "stopped"))
    with Daemon(tmp_path, programs) as daemon:
        daemon.until_step("stopped", 1)
        daemon.call("stop", name="stopped")
        daemon.until_step("runs", 10)
        worker = daemon.status("runs")["pid"]
        assert attempts(daemon, "runs")  # the ledger has all that happened
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)  # or it would see the worker end
        signal_and_wait(worker)
        daemon.stop(signal.SIGKILL)
        with sqlite3.connect(tmp_path / "state" / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE attempts SET boot_id = 'before the reboot'")

        daemon.start()

        daemon.until_step("runs", 11)
        assert attempts(daemon, "runs")[0]["cause"] == "preemption"
        assert daemon.status("stopped")["state"] == "STOPPED"


def signal_and_wait(pid: int) -> None:
    """Kills a process, and returns when it does not run any more."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "it is gone", PATIENCE_S)


def test_when_power_fails_everything_is_saved_and_the_daemon_leaves(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, **ENDLESS), "power_timeout=15") as daemon:
        daemon.until_step("count", 5)

        assert daemon.stop(signal.SIGPWR) == 0

        daemon.start()
        daemon.until(lambda: len(attempts(daemon, "count")) == 2, "it runs again")
        daemon.until_step("count", 6)
        first, _ = attempts(daemon, "count")
        assert (first["cause"], first["lost_steps"]) == ("preemption", 0)


def test_a_notice_file_that_is_there_at_the_start_is_seen_and_its_removal_withdraws_it(tmp_path: Path):
    folder = tmp_path / "state" / "notices"
    folder.mkdir(parents=True)
    notice = folder / "rack-7.json"
    notice.write_text('{"version": 1, "kind": "maintenance", "in_s": 3000, "reason": "rack 7 is moved"}')
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS), "notices=file") as daemon:
        until_held(daemon, "count")
        told = daemon.call("notices")
        assert [(each["source"], each["kind"]) for each in told["notices"]] == [("file", "maintenance")]
        assert [(source["name"], source["trouble"]) for source in told["sources"]] == [("file", None)]

        notice.unlink()

        daemon.until_step("count", 5)
        assert daemon.call("notices")["notices"] == []


def tell(folder: Path, in_s: float) -> Path:
    """Writes a notice file of maintenance in so many seconds."""
    notice = folder / "state" / "notices" / "rack-7.json"
    notice.parent.mkdir(parents=True, exist_ok=True)
    notice.write_text(json.dumps({"version": 1, "kind": "maintenance", "in_s": in_s, "reason": "rack 7 is moved"}))
    return notice


def until_asked(daemon: Daemon) -> None:
    """Waits until this daemon has looked into the folder of notices, and has told the programs what is there."""
    daemon.until(lambda: (daemon.folder / "daemon.log").read_text().count('"notices.recalled"'), "it recalls them")
    assert daemon.call("notices")["sources"][0]["trouble"] is None


def test_a_notice_that_still_holds_after_a_crash_of_the_daemon_is_not_saved_for_again(tmp_path: Path):
    notice = tell(tmp_path, 3000)
    with Daemon(tmp_path, job("count", tmp_path, **ENDLESS), "notices=file") as daemon:
        until_saved(daemon, "count", 1)
        pid = daemon.until_step("count", 5)["pid"]
        daemon.die()

        daemon.start()

        now = daemon.until_step("count", 5)
        assert now["pid"] == pid
        until_asked(daemon)
        daemon.until_step("count", now["job"]["step"] + 100)
        assert notice_of(daemon, "count") is not None
        assert len(checkpoints(daemon, "count")) == 1
        notice.unlink()
        until_over(daemon, "count")


def test_job_that_left_for_a_notice_waits_under_a_new_daemon_too(tmp_path: Path):
    notice = tell(tmp_path, 3000)
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS), "notices=file") as daemon:
        until_held(daemon, "count")
        before = len(attempts(daemon, "count"))
        daemon.stop()

        daemon.start()

        until_held(daemon, "count")
        until_asked(daemon)
        assert len(attempts(daemon, "count")) == before
        notice.unlink()
        daemon.until(lambda: len(attempts(daemon, "count")) == before + 1, "it starts once the host stays")


@pytest.mark.slow
def test_a_notice_that_went_while_no_daemon_was_there_holds_nobody(tmp_path: Path):
    notice = tell(tmp_path, 3000)
    with Daemon(tmp_path, job("count", tmp_path, AT_ONCE, **ENDLESS), "notices=file") as daemon:
        until_held(daemon, "count")
        before = len(attempts(daemon, "count"))
        daemon.stop()
        notice.unlink()

        daemon.start()

        daemon.until(lambda: len(attempts(daemon, "count")) > before, "it trains again", 60)
        assert daemon.call("notices")["notices"] == []


def test_an_expired_notice_that_is_still_told_costs_a_new_daemon_nothing(tmp_path: Path):
    tell(tmp_path, 0)
    settings = "notices=file\nnotice_grace=0.1"
    with Daemon(tmp_path, job("count", tmp_path, **ENDLESS), settings) as daemon:
        until_over(daemon, "count")
        daemon.until_step("count", 5)
        daemon.stop()

        daemon.start()

        until_asked(daemon)
        step = daemon.until_step("count", 6)["job"]["step"]
        daemon.until_step("count", step + 100)
        assert daemon.events("notice.received") == ["notice.received"], "the first daemon's"
        assert [attempt["cause"] for attempt in attempts(daemon, "count")] == ["stopped", None], "by this test"


def test_a_damaged_memory_of_notices_is_an_error_in_the_log_and_nothing_worse(tmp_path: Path):
    memory = tmp_path / "state" / "run" / "notices.json"
    memory.parent.mkdir(parents=True)
    memory.write_bytes(b'{"version": 1, "boot')
    tell(tmp_path, 3000)
    with Daemon(tmp_path, job("count", tmp_path, **ENDLESS), "notices=file") as daemon:
        until_saved(daemon, "count", 1)

        assert daemon.events("notices.not_recalled", "notice.received") == ["notices.not_recalled", "notice.received"]
        assert json.loads(memory.read_text())["notices"][0]["notice"]["id"] == "rack-7.json"


def test_a_source_that_does_not_exist_is_refused_at_the_start(tmp_path: Path):
    with pytest.raises(AssertionError, match="exited with 78") as refused:
        Daemon(tmp_path, "", "notices=awz").start()

    assert "did you mean 'aws'?" in str(refused.value)


NONSENSE = (
    {},
    {"in_s": 0},
    {"in_s": True},
    {"in_s": 5, "kind": "flood"},
    {"in_s": 5, "certainty": "sure"},
    {"in_s": 5, "kind": "freeze", "certainty": "certain"},
)


def test_a_drill_that_makes_no_sense_is_refused(tmp_path: Path):
    with Daemon(tmp_path, "") as daemon:
        for arguments in NONSENSE:
            with pytest.raises(Refused) as refused:
                daemon.call("drill", name="all", **arguments)

            assert refused.value.code == "BAD_ARGUMENTS"
