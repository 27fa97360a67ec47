"""What is claimed of stepkeeper as a service, each claim a function that takes the guest and fails if it is not so.

They run in this order on one machine, and each leaves the service running.
"""

import contextlib
import json
from collections.abc import Callable, Iterator

from tests.systemd.guest import PATIENCE_S, Guest, until
from tests.systemd.job import STATE, result

PYTHON = "/opt/stepkeeper/current/bin/python"
JOB = "/src/tests/systemd/job.py"
INSTALL = ("/src/deploy/install.sh", "--wheelhouse", "/wheelhouse")
CONF = "/etc/stepkeeper/conf.d"
CHECKPOINTS = "/srv/checkpoints"
LONG = 2000
"""Steps: a minute of them while they are slow, so that whatever happens to the job happens in their midst."""
BAD = "[program:bad]\ncommand = /bin/true\nautorestart = perhaps\n"

ORDER = ("notice.received", "checkpoint.committed", "daemon.signalled")

Scenario = Callable[[Guest], None]


def installs_and_starts(guest: Guest) -> None:
    said = guest.run(*INSTALL, "--wheel", _wheel(guest), "--checkpoints", CHECKPOINTS)

    assert "stepkeeper runs" in said, said
    assert guest.unit("ActiveState", "User") == {"ActiveState": "active", "User": "stepkeeper"}


def installing_again_changes_nothing(guest: Guest) -> None:
    pid = guest.unit("MainPID")

    said = guest.run(*INSTALL, "--wheel", _wheel(guest), "--checkpoints", CHECKPOINTS)

    assert "wrote" not in said and "making" not in said, said
    assert guest.unit("MainPID") == pid


def a_job_trains_and_status_says_where(guest: Guest) -> None:
    with _job(guest, "told", STEPS=400, STEP_S=0.05) as name:
        _until_step(guest, name, 5)

        until(lambda: f"{name} step" in guest.unit("StatusText")["StatusText"], "STATUS names the step")


def reload_takes_up_a_new_job_and_refuses_a_bad_one(guest: Guest) -> None:
    guest.write(f"{CONF}/bad.conf", BAD)
    refused = guest.try_run("systemctl", "reload", "stepkeeper")
    guest.path(f"{CONF}/bad.conf").unlink()
    guest.write(f"{CONF}/plain.conf", "[program:plain]\ncommand = /bin/sleep 100000\n")
    taken = guest.try_run("systemctl", "reload", "stepkeeper")

    assert refused.returncode != 0
    assert "autorestart" in str(guest.journal("-u", "stepkeeper", "-n", "20"))
    assert taken.returncode == 0
    until(lambda: guest.status("plain")["state"] == "RUNNING", "the new program runs")
    guest.path(f"{CONF}/plain.conf").unlink()
    guest.run("systemctl", "reload", "stepkeeper")


def the_journal_has_fields(guest: Guest) -> None:
    with _job(guest, "noted", STEPS=30, EVERY=10) as name:
        until(lambda: guest.status(name)["state"] == "SUCCEEDED", "it is done")
        entries = until(lambda: guest.journal(f"JOB={name}", "EVENT=checkpoint.committed"), "the journal has it")

    assert entries[0]["STEP"] == "10" and entries[0]["ATTEMPT"] == "1" and entries[0]["PRIORITY"] == "6", entries[0]
    assert entries[0]["_SYSTEMD_UNIT"] == "stepkeeper.service"
    assert entries[0]["MESSAGE"].startswith(f"{name}: checkpoint.committed"), entries[0]


def poweroff_and_boot_go_on_from_the_flushed_step(guest: Guest) -> None:
    with _job(guest, "mid", STEPS=LONG, STEP_S=0.03) as name, _job(guest, "halted", STEPS=LONG, STEP_S=0.03) as halted:
        _until_step(guest, halted, 1)
        guest.run("supervisorctl", "stop", halted)
        _until_step(guest, name, 20)
        guest.power_off()
        flushed = _newest(guest, name)
        guest.boot()

        _ends_equal(guest, name, LONG)
        assert 20 <= flushed < LONG
        assert _beginnings(guest, name) == [0, flushed]
        assert guest.status(halted)["state"] == "STOPPED", "what the operator stopped stays stopped"


def the_lock_is_held_and_poweroff_waits_for_the_checkpoint(guest: Guest) -> None:
    with _job(guest, "locked", STEPS=LONG, STEP_S=0.03, FLUSH_S=3) as name:
        _until_step(guest, name, 20)
        locks = guest.run("systemd-inhibit", "--list", "--no-legend")
        assert "stepkeeper" in locks and "delay" in locks, locks
        guest.power_off()
        guest.boot()

        told = [each["EVENT"] for each in guest.journal("-b", "-1", "-u", "stepkeeper") if each.get("EVENT") in ORDER]
        assert told[told.index("notice.received") :][: len(ORDER)] == list(ORDER), told
        assert _causes(guest, name)[0] == "preemption"
        _ends_equal(guest, name, LONG)


def a_shutdown_without_the_lock_is_no_stop_of_an_operators(guest: Guest) -> None:
    with _listening_to(guest, "file"), _job(guest, "unlocked", STEPS=LONG, STEP_S=0.03, SLOW_ATTEMPTS=2) as name:
        _until_step(guest, name, 20)
        guest.run("systemctl", "restart", "stepkeeper")
        _until_step(guest, name, 40)
        assert "stepkeeper" not in guest.run("systemd-inhibit", "--list", "--no-legend")
        guest.power_off()
        guest.boot()

        _ends_equal(guest, name, LONG)
        assert _causes(guest, name) == ["stopped", "preemption", "done"]


def a_notice_a_poweroff_and_a_boot_lose_no_step(guest: Guest) -> None:
    with _job(guest, "reclaimed", STEPS=LONG, STEP_S=0.03) as name:
        _until_step(guest, name, 20)
        notice = '{"version": 1, "kind": "preemption", "in_s": 8, "reason": "the provider wants it back"}'
        guest.run("sh", "-c", f"cd /run/stepkeeper/notices && echo '{notice}' >.new && mv .new spot.json")
        until(lambda: (guest.status(name).get("notice") or {}).get("waits"), "it has saved, left, and waits")
        first, *_, last = sorted(_saved(guest, name))
        guest.power_off()  # which takes away what is in /run, the notice too
        guest.boot()

        _ends_equal(guest, name, LONG)
        assert 20 <= first < last < LONG, "saved at once, and again at the last moment"
        assert _beginnings(guest, name) == [0, last]
        assert _causes(guest, name) == ["preemption", "done"]


def stop_waits_for_a_flush_longer_than_its_limit(guest: Guest) -> None:
    with _job(guest, "slow", STEPS=LONG, STEP_S=0.03, FLUSH_S=9) as name, _setting(guest, "TimeoutStopSec=3"):
        _until_step(guest, name, 20)
        guest.run("systemctl", "stop", "stepkeeper")

        assert guest.unit("Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
        flushed = _newest(guest, name)
        assert flushed >= 20
        guest.run("systemctl", "start", "stepkeeper")
        until(lambda: _beginnings(guest, name) == [0, flushed], "it goes on from there")


def restart_goes_on_from_the_flushed_step(guest: Guest) -> None:
    with _job(guest, "again", STEPS=LONG, STEP_S=0.03) as name:
        _until_step(guest, name, 20)
        guest.run("systemctl", "restart", "stepkeeper")
        flushed = _newest(guest, name)

        _ends_equal(guest, name, LONG)
        assert _beginnings(guest, name) == [0, flushed]


def workers_survive_a_killed_daemon(guest: Guest) -> None:
    with _job(guest, "orphan", STEPS=400, STEP_S=0.03) as name:
        pid = _until_step(guest, name, 20)
        before = guest.unit("MainPID")["MainPID"]
        guest.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "stepkeeper")
        until(lambda: guest.unit("MainPID")["MainPID"] not in ("0", before), "a new daemon runs")

        until(lambda: guest.status(name)["pid"] == pid, "the new daemon has the old worker")
        _ends_equal(guest, name, 400)
        assert _beginnings(guest, name) == [0], "not one step was made twice"


def the_watchdog_replaces_a_daemon_that_hangs(guest: Guest) -> None:
    with _setting(guest, "WatchdogSec=4"):
        guest.run("systemctl", "restart", "stepkeeper")
        with _job(guest, "watched", STEPS=400, STEP_S=0.03) as name:
            _until_step(guest, name, 20)
            before = guest.unit("MainPID")["MainPID"]
            guest.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "stepkeeper")

            until(lambda: guest.unit("MainPID")["MainPID"] not in ("0", before), "systemd starts another")
            _ends_equal(guest, name, 400)
            assert _beginnings(guest, name) == [0], "not one step was made twice"
    guest.run("systemctl", "restart", "stepkeeper")  # without the short limit: the next may be slow


def upgrade_does_not_stop_jobs(guest: Guest) -> None:
    with _job(guest, "kept", STEPS=1_000_000, STEP_S=0.03) as name:
        pid = _until_step(guest, name, 20)
        before = guest.path("/opt/stepkeeper/current").readlink()
        said = guest.run(*INSTALL, "--upgrade", "--wheel", _wheel(guest))

        assert "supervises now" in said, said
        assert guest.path("/opt/stepkeeper/current").readlink() != before
        assert guest.status(name)["pid"] == pid
        guest.run("supervisorctl", "stop", name)
        assert _newest_is_right(guest, name) and _beginnings(guest, name) == [0]


def a_hanging_daemon_is_stopped_and_its_workers_flush(guest: Guest) -> None:
    with _job(guest, "stuck", STEPS=6000, STEP_S=0.03, FLUSH_S=6) as name, _setting(guest, "TimeoutStopSec=5"):
        _until_step(guest, name, 20)
        guest.run("systemctl", "stop", "--no-block", "stepkeeper")
        until(lambda: guest.unit("SubState")["SubState"] == "stop-sigterm", "the daemon was told")
        guest.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "stepkeeper")
        until(lambda: guest.unit("ActiveState")["ActiveState"] == "failed", "systemd has ended it")

        assert guest.unit("Result")["Result"] == "timeout"
        assert _left(guest) == []
        assert _newest(guest, name) >= 20
        guest.run("systemctl", "start", "stepkeeper")


def a_stop_right_after_a_crash_leaves_nobody(guest: Guest) -> None:
    with _job(guest, "alone", STEPS=6000, STEP_S=0.03) as name:
        _until_step(guest, name, 20)
        guest.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "stepkeeper")
        guest.run("systemctl", "stop", "stepkeeper")

        assert _left(guest) == []
        assert _newest(guest, name) >= 20
        guest.run("systemctl", "start", "stepkeeper")


def a_bad_configuration_is_not_tried_again(guest: Guest) -> None:
    guest.write(f"{CONF}/bad.conf", BAD)
    try:
        started = guest.try_run("systemctl", "restart", "stepkeeper")

        assert started.returncode != 0
        said = guest.unit("ActiveState", "ExecMainStatus", "NRestarts")
        assert said == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}, said
    finally:
        guest.path(f"{CONF}/bad.conf").unlink()
        guest.run("systemctl", "start", "stepkeeper")


def uninstall_keeps_data(guest: Guest) -> None:
    said = guest.run(INSTALL[0], "--uninstall")

    assert "Kept" in said, said
    assert guest.try_run("systemctl", "cat", "stepkeeper").returncode != 0
    assert not guest.path("/opt/stepkeeper").exists()
    assert not guest.path("/usr/local/bin/supervisorctl").is_symlink()
    assert guest.path("/var/lib/stepkeeper/ledger.sqlite3").exists()
    assert list(guest.path(CHECKPOINTS).iterdir())


ALL: tuple[Scenario, ...] = (
    installs_and_starts,
    installing_again_changes_nothing,
    a_job_trains_and_status_says_where,
    reload_takes_up_a_new_job_and_refuses_a_bad_one,
    the_journal_has_fields,
    poweroff_and_boot_go_on_from_the_flushed_step,
    the_lock_is_held_and_poweroff_waits_for_the_checkpoint,
    a_shutdown_without_the_lock_is_no_stop_of_an_operators,
    a_notice_a_poweroff_and_a_boot_lose_no_step,
    stop_waits_for_a_flush_longer_than_its_limit,
    restart_goes_on_from_the_flushed_step,
    workers_survive_a_killed_daemon,
    the_watchdog_replaces_a_daemon_that_hangs,
    upgrade_does_not_stop_jobs,
    a_hanging_daemon_is_stopped_and_its_workers_flush,
    a_stop_right_after_a_crash_leaves_nobody,
    a_bad_configuration_is_not_tried_again,
    uninstall_keeps_data,
)


def _wheel(guest: Guest) -> str:
    names = guest.run("ls", "/wheelhouse").split()
    return "/wheelhouse/" + next(name for name in names if name.startswith("stepkeeper-"))


@contextlib.contextmanager
def _job(guest: Guest, name: str, **environment: object) -> Iterator[str]:
    """A job of that name, started by its operator; taken away again, its checkpoints stay."""
    variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
    guest.write(
        f"{CONF}/{name}.conf",
        f"[program:{name}]\ncommand = {PYTHON} {JOB}\ncheckpoint_dir = {CHECKPOINTS}/{name}\n"
        f"environment = {variables}\nautostart = false\nredirect_stderr = true\nstandby = off\n",
    )
    guest.run("supervisorctl", "update", name)
    guest.run("supervisorctl", "start", name)
    try:
        yield name
    finally:
        guest.path(f"{CONF}/{name}.conf").unlink()
        guest.try_run("supervisorctl", "reread")
        guest.try_run("supervisorctl", "update", name)


@contextlib.contextmanager
def _listening_to(guest: Guest, sources: str) -> Iterator[None]:
    """A daemon that hears of notices from these sources only, for the time of a scenario."""
    conf = guest.path("/etc/stepkeeper/supervisord.conf")
    before = conf.read_text()
    conf.write_text(before.replace("notices = auto", f"notices = {sources}"))
    guest.run("systemctl", "restart", "stepkeeper")
    try:
        yield
    finally:
        conf.write_text(before)
        guest.run("systemctl", "restart", "stepkeeper")


@contextlib.contextmanager
def _setting(guest: Guest, line: str) -> Iterator[None]:
    """A line of the unit that is otherwise for the time of a scenario."""
    place = "/etc/systemd/system/stepkeeper.service.d/zz-test.conf"
    guest.write(place, f"[Service]\n{line}\n")
    guest.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        guest.path(place).unlink()
        guest.run("systemctl", "daemon-reload")


def _until_step(guest: Guest, name: str, step: int) -> int:
    """Waits until the job is there; its worker's pid."""

    def look() -> int | None:
        found = guest.status(name)
        return found["pid"] if (found["job"]["step"] or 0) >= step else None

    return int(until(look, f"{name} reaches step {step}"))


def _ends_equal(guest: Guest, name: str, steps: int) -> None:
    """Waits until it is done, and compares its result with that of an undisturbed run."""
    until(lambda: guest.status(name)["state"] == "SUCCEEDED", f"{name} is done", PATIENCE_S * 2)
    until(lambda: f"result {result(steps)}" in _output(guest, name), f"{name} ends with the undisturbed result", 10)


def _output(guest: Guest, name: str) -> str:
    files = sorted(guest.path("/var/log/stepkeeper").glob(f"{name}-*"))
    return "".join(file.read_text() for file in files)


def _beginnings(guest: Guest, name: str) -> list[int]:
    """The step that each attempt began at."""
    return [int(line.split()[-1]) for line in _output(guest, name).splitlines() if "begins at" in line]


def _saved(guest: Guest, name: str) -> set[int]:
    """The steps of the committed checkpoints."""
    folders = guest.path(f"{CHECKPOINTS}/{name}").glob("step-*")
    return {int(folder.name.split("-")[1].split(".")[0]) for folder in folders if not folder.name.endswith(".partial")}


def _newest(guest: Guest, name: str) -> int:
    """The step of the newest committed checkpoint."""
    return max(_saved(guest, name))


def _newest_is_right(guest: Guest, name: str) -> bool:
    """Whether the newest checkpoint holds what an undisturbed run had after as many steps."""
    (folder,) = guest.path(f"{CHECKPOINTS}/{name}").glob(f"step-{_newest(guest, name):010d}.a*")
    step, state = (folder / STATE).read_text().split()
    return state == result(int(step))


def _causes(guest: Guest, name: str) -> list[str]:
    """How the attempts ended that have ended, oldest first."""
    told = json.loads(guest.run("supervisorctl", "--json", "history", name))
    return [attempt["cause"] for attempt in told["attempts"] if attempt["cause"] is not None]


def _left(guest: Guest) -> list[str]:
    """The processes in the service's control group."""
    told = guest.try_run("cat", "/sys/fs/cgroup/stepkeeper.slice/stepkeeper.service/cgroup.procs")
    return told.stdout.split()
