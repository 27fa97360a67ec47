"""The daemon as a process: background, signals, reload, what it leaves behind, what it costs."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.reading import alive, content, records
from tests.system.disks import mount, umount
from tests.system.harness import Daemon, Refused, job

SUPERVISORD = (sys.executable, "-m", "supervisor.daemon", "-c")


def test_in_the_background_the_command_returns_once_the_daemon_answers(tmp_path: Path):
    daemon = Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n")

    started = subprocess.run(
        [sys.executable, "-m", "supervisor.daemon", "-c", str(daemon.conf)], timeout=60, check=False
    )

    assert started.returncode == 0
    pid = daemon.call("pid")["pid"]
    assert int((tmp_path / "state" / "supervisord.pid").read_text()) == pid
    assert os.getsid(pid) != os.getsid(0)
    daemon.call("reload")  # the same process: a signal to it is not lost, and what it holds in memory neither
    daemon.until(lambda: (tmp_path / "daemon.log").read_text().count('"daemon.ready"') == 2, "it is back")
    assert daemon.call("pid")["pid"] == pid
    daemon.call("shutdown")
    daemon.until(lambda: not alive(pid), "it is gone")
    assert not daemon.socket.exists()
    assert not (tmp_path / "state" / "supervisord.pid").exists()


def test_the_log_says_that_a_job_which_is_done_ended_as_it_should_and_one_that_was_killed_not(tmp_path: Path):
    with Daemon(tmp_path, job("t", tmp_path, STEPS=200)) as daemon:
        os.kill(daemon.until_step("t", 5)["pid"], signal.SIGKILL)
        daemon.until_state("t", "SUCCEEDED")

    ends = [record for record in records(tmp_path / "daemon.log") if record["event"] == "worker.exited"]
    assert [(each["how"], each["expected"]) for each in ends] == [
        ("terminated by SIGKILL", False),
        ("exit status 0", True),
    ]


@pytest.mark.parametrize("mode", [[], ["-n"]], ids=["background", "foreground"])
def test_started_with_standard_descriptors_closed_it_keeps_its_lock_and_its_log(tmp_path: Path, mode: list[str]):
    daemon = Daemon(tmp_path, "")
    command = [*SUPERVISORD, str(daemon.conf), *mode]

    def pid() -> int | None:
        try:
            return int(daemon.call("pid")["pid"])
        except OSError:
            return None

    with subprocess.Popen(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], stderr=subprocess.DEVNULL):
        first = daemon.until(pid, "it answers")
        second = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
        daemon.call("shutdown")
        daemon.until(lambda: not alive(first), "it leaves")

    assert (second.returncode, "uses the state folder" in second.stderr) == (75, True)
    assert b"daemon.ready" in content(tmp_path / "daemon.log")


def test_in_the_background_a_failed_start_is_told_by_the_exit_status(tmp_path: Path):
    daemon = Daemon(tmp_path, "")
    daemon.conf.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n[unix_http_server]\nfile=/proc/no/s.sock\n")

    started = subprocess.run(
        [sys.executable, "-m", "supervisor.daemon", "-c", str(daemon.conf)],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )

    assert started.returncode == 71
    assert "cannot listen on /proc/no/s.sock" in started.stderr


def test_a_place_it_cannot_use_is_named_with_what_to_do(tmp_path: Path):
    daemon = Daemon(tmp_path, "", f"pidfile={tmp_path}/no/supervisord.pid")

    with pytest.raises(AssertionError, match="exited with 71"):
        daemon.start()

    place = f"{tmp_path}/no/supervisord.pid: No such file or directory"
    assert (
        f"cannot start supervisord: cannot use {place}; make it writable for this user, or configure another path in"
        in daemon.errors()
    )


def test_a_full_disk_is_named_when_it_keeps_the_daemon_from_starting(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    daemon = Daemon(tmp_path, "", f"pidfile={disk}/supervisord.pid")
    mount("tmpfs", disk, "-o", "size=64k")
    try:
        with contextlib.suppress(OSError):
            (disk / "filling").write_bytes(bytes(1 << 20))

        with pytest.raises(AssertionError, match="exited with 71"):
            daemon.start()
    finally:
        umount(disk)

    refusal = f"cannot use {disk}/supervisord.pid: No space left on device; free space there"
    assert f"cannot start supervisord: {refusal}" in daemon.errors()


def test_beside_supervisor_in_one_environment_it_refuses_and_says_what_to_do(tmp_path: Path):
    daemon = Daemon(tmp_path, "")
    installed = tmp_path / "site" / "supervisor-4.3.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.3.0\n")
    environment = {**os.environ, "PYTHONPATH": str(installed.parent)}

    started = subprocess.run(
        [*SUPERVISORD, str(daemon.conf)], env=environment, timeout=60, capture_output=True, text=True, check=False
    )

    assert started.returncode == 78
    assert "Supervisor 4.3.0 is installed in the same Python environment" in started.stderr
    assert "environment of its own" in started.stderr


def test_reload_reads_the_configuration_again_and_ends_what_is_not_in_it(tmp_path: Path):
    with Daemon(tmp_path, "[program:old]\ncommand=/bin/sleep 100000\n") as daemon:
        old = daemon.until_state("old", "RUNNING")["pid"]
        daemon.write("[program:new]\ncommand=/bin/sleep 100000\n")

        daemon.call("reload")

        def renewed() -> bool:
            try:
                return [program["name"] for program in daemon.call("status")["programs"]] == ["new"]
            except OSError:
                return False

        daemon.until(renewed, "the new configuration is in force")
        daemon.until(lambda: not alive(old), "what is not configured any more is ended")


def inet(host: str, port: int) -> str:
    return f"[inet_http_server]\nport={host}:{port}\nusername=ann\npassword=secret\n"


def test_reload_is_refused_where_another_program_has_a_new_address(tmp_path: Path):
    sleeper, taken = "[program:sleeper]\ncommand=/bin/sleep 100000\n", str(tmp_path / "taken.sock")
    with (
        Daemon(tmp_path, sleeper) as daemon,
        socket.create_server(("127.0.0.1", 0)) as of_others,
        socket.socket(socket.AF_UNIX) as file_of_others,
    ):
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        file_of_others.bind(taken)
        file_of_others.listen()
        port = of_others.getsockname()[1]
        sections = {
            f"127.0.0.1:{port}: Address already in use": inet("127.0.0.1", port),
            f"{taken}: another program listens there": f"[unix_http_server:more]\nfile={taken}\n",
        }
        for why, section in sections.items():
            daemon.write(sleeper + section)

            with pytest.raises(Refused, match=f"the next daemon would not start: cannot listen on {why}"):
                daemon.call("reload")

            assert daemon.until_state("sleeper", "RUNNING")["pid"] == pid
        assert daemon.events("daemon.leaving") == []


def test_daemon_that_does_not_start_after_a_reload_says_so_in_the_log(tmp_path: Path):
    with Daemon(tmp_path, "") as daemon, socket.create_server(("127.0.0.2", 0)) as of_others:
        port = of_others.getsockname()[1]
        daemon.write(inet("127.0.0.1", port))
        daemon.call("reload")
        daemon.until(lambda: daemon.events("daemon.ready")[1:], "it is back")
        daemon.write(inet("*", port))  # whether it is free, only a daemon finds that has left the one before
        daemon.call("reload")

        assert daemon.process is not None
        assert daemon.process.wait(60) == 71

    (record,) = [record for record in records(tmp_path / "daemon.log") if record["event"] == "daemon.not_started"]
    assert record["reason"].startswith(f"cannot listen on *:{port}: Address already in use; stop the program")


def test_daemon_in_the_background_that_fails_before_it_has_a_log_says_so_in_that_of_the_one_before(tmp_path: Path):
    installed = tmp_path / "site" / "supervisor-4.3.0.dist-info"
    sections = "[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n"
    daemon = Daemon(tmp_path, sections, environment={"PYTHONPATH": f"{installed.parent}:{ROOT}"})
    subprocess.run([*SUPERVISORD, str(daemon.conf)], env=daemon.environment, timeout=60, check=True)
    pid, sleeper = daemon.call("pid")["pid"], daemon.until_state("sleeper", "RUNNING")["pid"]

    daemon.call("reload")
    installed.mkdir(parents=True)

    daemon.until(lambda: not alive(pid), "it has ended")
    assert b"Supervisor None is installed in the same Python environment" in content(tmp_path / "daemon.log")
    assert alive(sleeper)
    installed.rmdir()
    with daemon:
        assert daemon.until_state("sleeper", "RUNNING")["pid"] == sleeper


@pytest.mark.slow
def test_inherited_ignored_sigchld_hides_no_exit(tmp_path: Path):
    keys = "healthcheck_command=/bin/false\nhealthcheck_interval=0.2\nhealthcheck_retries=1\n"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exec keeps that
    try:
        with Daemon(tmp_path, f"[program:sick]\ncommand=/bin/sleep 100000\n{keys}") as daemon:
            signal.signal(signal.SIGCHLD, before)

            attempts = daemon.until(
                lambda: (found := daemon.call("history", name="sick")["attempts"])[1:] and found, "it is restarted"
            )
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert attempts[0]["cause"] == "unhealthy"


def test_output_is_captured_and_the_log_survives_its_removal(tmp_path: Path):
    script = "while :; do echo tick; sleep 0.05; done"
    with Daemon(tmp_path, f'[program:ticker]\ncommand=/bin/sh -c "{script}"\n') as daemon:
        log = Path(daemon.status("ticker")["stdout_logfile"])
        daemon.until(lambda: content(log), "something was captured")
        log.unlink()

        daemon.until(lambda: b"tick" in content(log), "it is written again")


@pytest.mark.slow
def test_idle_daemon_sleeps(tmp_path: Path):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.until_state("sleeper", "RUNNING")
        assert daemon.process is not None
        pid = daemon.process.pid

        # what polls wakes up in every window; what is seldom (the logger's heartbeat) spares one of them
        assert min(wakeups(pid) for _ in range(3)) <= 1


def wakeups(pid: int) -> int:
    """How often it woke up in two seconds in which nobody asks anything."""
    before = switches(pid)
    signal.sigtimedwait([], 2)
    return switches(pid) - before


def switches(pid: int) -> int:
    """Voluntary context switches of all threads: how often it woke up."""
    lines = [
        line
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for line in content(thread / "status").decode().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    ]
    return sum(int(line.split()[1]) for line in lines)


@pytest.mark.slow
def test_systemd_hears_when_it_is_ready_and_is_asked_for_time_while_a_flush_goes_on(tmp_path: Path):
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    section = job("slow", tmp_path, STEPS=100_000, EVERY=100_000, FLUSH_S=6)
    with manager(tmp_path / "notify") as heard, Daemon(tmp_path, section, environment=environment) as daemon:
        daemon.until_step("slow", 5)

        assert daemon.stop() == 0

    stopping = heard.index("STOPPING=1\nSTATUS=flushing and stopping all programs")
    ready = next(place for place, said in enumerate(heard) if said.startswith("READY=1\nSTATUS=1 program: 1 "))
    assert ready < stopping
    assert "EXTEND_TIMEOUT_USEC=10000000" in heard[stopping:]
    assert heard.count("WATCHDOG=1") >= 6


@contextlib.contextmanager
def manager(path: Path) -> Iterator[list[str]]:
    """What a service manager that listens at `path` hears."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))

        def listen() -> None:
            while text := listener.recv(4096).decode():
                heard.append(text)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", str(path))
            thread.join()
