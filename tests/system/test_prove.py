"""`supervisorctl prove`: real daemons prove a real job of FilesRun, and nothing of a proof is left, however it ends."""

import http.client
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.protocol.proof import EXIT_STATUS, Verdict
from tests.gpu_host import IN_ORDER, GpuDaemon, GpuHost
from tests.places import CHILDREN, ROOT
from tests.reading import command_of, records, words_of_processes
from tests.system.harness import Daemon, Refused, let_others_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = CHILDREN / "counting.py"
ENDLESS = {"STEPS": 1_000_000, "STEP_S": 0.02}


def job(folder: Path, name: str = "sum", keys: str = "", script: Path = SCRIPT, **environment: object) -> str:
    (folder / "jobs").mkdir(exist_ok=True)
    variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
    return (
        f"[program:{name}]\ncommand={sys.executable} {script}\ncheckpoint_dir={folder}/jobs/{name}\nautostart=false\n"
        f"standby=off\nenvironment={variables}\n{keys}\n"
    )


def ctl(daemon: Daemon, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def scratch_folders(folder: Path) -> list[Path]:
    places = (folder / "jobs", Path("/var/tmp"))
    return [path for place in places if place.is_dir() for path in place.glob(".prove-*")]


def processes_of(*scratch: Path) -> list[psutil.Process]:
    """Those that have one of the folders in their environment or their arguments."""
    found = list[psutil.Process]()
    for pid, words in words_of_processes().items():
        if any(os.fsencode(folder) in words for folder in scratch):
            with suppress(psutil.Error):
                found.append(psutil.Process(pid))
    return found


def begun(daemon: Daemon, name: str = "sum", **wish: object) -> Path:
    """Begins a proof that goes on for long; its scratch folder, once the job's script trains in it."""
    before = set(scratch_folders(daemon.folder))
    daemon.call("prove", name=name, **wish)
    (scratch,) = daemon.until(lambda: set(scratch_folders(daemon.folder)) - before, "there is a scratch folder")
    daemon.until(lambda: (daemon.call("proof", name=name)["step"] or 0) > 3, "it trains")
    assert len(processes_of(scratch)) >= 3, "a daemon, its logger, a worker"
    return Path(scratch)


def is_gone(scratch: Path) -> bool:
    return not scratch.exists() and not processes_of(scratch)


def test_an_exact_proof_is_shown_kept_and_called_old_once_the_script_changes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.read_text())
    with Daemon(tmp_path, job(tmp_path, script=script, SECRET="hush-hush")) as daemon:
        done = ctl(daemon, "prove", "sum")

        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert lines[:2] == ["sum: starts", "sum: undisturbed run"]
        assert any(line.startswith("exact: 3 kills, 30 steps, ") and "all bits equal" in line for line in lines)
        proof = daemon.status("sum")["job"]["proof"]
        assert (proof["verdict"], proof["steps"], len(proof["kills"])) == ("exact", 30, 3)
        assert proof["text"] == "proven exact just now (3 kills, 30 steps)"
        daemon.until(lambda: daemon.status("sum")["job"]["proof"]["has_changed"] is False, "its script was looked at")
        assert "remark: sum: proven exact just now" in ctl(daemon, "status", "sum").stderr
        assert not (tmp_path / "jobs" / "sum").exists(), "nothing of the job's own was touched"
        assert scratch_folders(tmp_path) == []
        events = [event for event in read_events(daemon) if event["event"] == "PROOF_ENDED"]
        assert [(event["program"], event["verdict"], event["kills"]) for event in events] == [("sum", "exact", 3)]
        (asked,) = [record for record in records(tmp_path / "daemon.log") if record.get("command") == "prove"]
        assert (asked["event"], asked["result"], asked["program"]) == ("change.asked", "OK", "sum")
        assert 'stepkeeper_proof_exact{program="sum"} 1.0' in metrics(daemon)
        assert "hush-hush" not in daemon.errors() + (tmp_path / "daemon.log").read_text()

    script.write_text(f"{SCRIPT.read_text()}\n# another one\n")
    with Daemon(tmp_path, job(tmp_path, script=script, SECRET="hush-hush")) as daemon:
        text = daemon.until(lambda: changed_text(daemon), "the change is seen")
        assert text.startswith("proven exact ")
        assert text.endswith("(3 kills, 30 steps); the script has changed since")


def changed_text(daemon: Daemon) -> str | None:
    proof = daemon.status("sum")["job"]["proof"]
    return proof["text"] if proof is not None and proof["has_changed"] else None


def read_events(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in get(daemon, "/api/v1/events?follow=0&since=start").splitlines()]


def metrics(daemon: Daemon) -> str:
    return get(daemon, "/metrics")


def get(daemon: Daemon, path: str) -> str:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.connect(str(daemon.socket))
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_difference_is_said_wherever_the_job_is_shown(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, FORGETS=1)) as daemon:
        done = ctl(daemon, "prove", "--json", "sum")

        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"]) == (EXIT_STATUS[Verdict.DIFFERENT], "different")
        first = answer["report"]["differences"][0]
        assert first["name"] == "metric loss"
        words = f"found a difference: metric loss at step {first['step']}"
        assert words in daemon.status("sum")["description"]
        assert words in daemon.status("sum")["job"]["proof"]["text"]
        assert 'stepkeeper_proof_exact{program="sum"} 0.0' in metrics(daemon)


def test_a_job_that_trains_is_refused_unless_there_is_room_for_both(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, **ENDLESS)) as daemon:
        daemon.call("start", name="sum")

        refused = ctl(daemon, "prove", "sum")
        assert refused.returncode == 4, "no verdict's status"
        assert refused.stdout == "sum: ERROR (not proven)\n"
        assert "supervisorctl stop sum" in refused.stderr
        assert daemon.status("sum")["job"]["proof"] is None

        done = ctl(daemon, "prove", "--anyway", "--steps=25", "--kills", "2", "sum")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "exact: 2 kills, 25 steps" in done.stdout
        assert daemon.status("sum")["state"] == "RUNNING"


def test_without_a_free_gpu_a_job_is_refused(tmp_path: Path) -> None:
    with GpuHost(tmp_path) as host, GpuDaemon(host, tmp_path, job(tmp_path)) as daemon:
        host.are(f"{IN_ORDER} pids={os.getpid()}", count=1)
        with pytest.raises(Refused, match=f"no GPU of sum is free .GPU 0 by pid {os.getpid()}.*--anyway"):
            daemon.call("prove", name="sum")

        host.are(f"{IN_ORDER} pids={os.getpid()}", IN_ORDER)
        daemon.call("prove", name="sum")
        daemon.call("prove_cancel", name="sum")


def test_one_proof_at_a_time_and_cancelled_it_leaves_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, **ENDLESS) + job(tmp_path, "other")) as daemon:
        scratch = begun(daemon)
        for name in ("sum", "other"):
            with pytest.raises(Refused, match="sum is being proven, one at a time"):
                daemon.call("prove", name=name, anyway=True)

        done = ctl(daemon, "prove", "--cancel", "sum")

        assert (done.returncode, done.stdout) == (0, "sum: its proof was cancelled; nothing of it is left\n")
        assert is_gone(scratch)
        assert daemon.call("proof", name="sum")["failure"] == "it was cancelled"
        assert daemon.status("sum")["job"]["proof"] is None
        with pytest.raises(Refused, match="is not being proven"):
            daemon.call("prove_cancel", name="sum")


def test_control_c_cancels_it(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path, **ENDLESS)) as daemon:
        command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), "prove", "sum"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        (scratch,) = daemon.until(lambda: scratch_folders(tmp_path), "it has begun")
        daemon.until(lambda: (daemon.call("proof", name="sum")["step"] or 0) > 3, "it trains")

        client.send_signal(signal.SIGINT)
        out, _ = client.communicate(timeout=30)

        assert client.returncode == 4
        assert out.endswith("sum: cancelled; nothing of the proof is left\n")
        assert is_gone(scratch)


@pytest.mark.parametrize("how", ["removed", "changed", "started"])
def test_it_ends_with_its_job_and_when_its_job_is_started(tmp_path: Path, how: str) -> None:
    with Daemon(tmp_path, job(tmp_path, **ENDLESS)) as daemon:
        scratch = begun(daemon)

        if how == "started":
            daemon.call("start", name="sum")
        elif how == "removed":
            daemon.call("remove", name="sum")
        else:
            daemon.write(job(tmp_path, **ENDLESS, MORE=1))
            daemon.call("reread")
            daemon.call("update")

        daemon.until(lambda: is_gone(scratch), "nothing is left", 20.0)
        if how == "started":
            assert "training comes first" in daemon.until(lambda: ended(daemon), "it is over")["failure"]
            assert daemon.status("sum")["state"] == "RUNNING"


@pytest.mark.parametrize("how", ["shutdown", "reload", "killed", "killed-with-its-prover"])
def test_a_daemon_that_ends_in_the_middle_leaves_nothing_behind(tmp_path: Path, how: str) -> None:
    daemon = Daemon(tmp_path, job(tmp_path, **ENDLESS)).start()
    try:
        scratch = begun(daemon)
        assert daemon.process is not None
        pid = daemon.process.pid
        if how == "shutdown":
            assert daemon.stop() == 0
            assert is_gone(scratch), "it waits for that"
        elif how == "reload":
            daemon.call("reload")
            daemon.until(lambda: is_gone(scratch), "nothing is left", 20.0)
        else:
            prover = prover_of(pid)
            if how == "killed-with-its-prover":
                daemon.process.send_signal(signal.SIGSTOP)
                prover.kill()
            daemon.process.kill()
            daemon.process.wait()
            if how == "killed":
                wait_until(lambda: is_gone(scratch), "the prover cleans up by itself", 20.0)
            else:
                assert not is_gone(scratch), "nobody is there who could"
                daemon.start()
                daemon.until(lambda: is_gone(scratch), "the next daemon cleans up", 20.0)
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.stop()


def prover_of(daemon: int) -> psutil.Process:
    return next(child for child in psutil.Process(daemon).children() if "supervisor.proof_child" in command_of(child))


def test_who_may_not_start_a_job_may_not_prove_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can ask as another user")
    let_others_in(tmp_path)
    with Daemon(tmp_path, job(tmp_path, **ENDLESS)) as daemon:
        daemon.socket.chmod(0o777)
        child = os.fork()
        if child == 0:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            refused = 0
            for command in ("prove", "prove_cancel"):
                try:
                    daemon.call(command, name="sum")
                except Refused as error:
                    refused += error.code == "FORBIDDEN"
            os._exit(0 if refused == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert scratch_folders(tmp_path) == []


# --- another user's jobs ----------------------------------------------------------------------------------------------


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A Python with stepkeeper and what it needs that other users can execute."""
    python, packages = Path("/usr/bin/python3"), Path(sysconfig.get_path("purelib"))
    if os.geteuid() != 0:
        pytest.skip("only root can start programs of other users")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    if (
        not python.exists()
        or subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip() != version
    ):
        pytest.skip(f"{python} is not Python {version}")
    let_others_in(tmp_path)
    environment = tmp_path / "installation"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    (environment / f"lib/python{version}/site-packages/all.pth").write_text(f"{ROOT}\n{packages}\n")
    interpreter = environment / "bin" / "python"
    if not can_run([str(interpreter), "-c", "import supervisor.daemon, numpy"]):
        pytest.skip("another user can't read this source tree and its packages")
    return interpreter


def can_run(command: list[str]) -> bool:
    """Whether the user nobody can run a command."""
    nobody = pwd.getpwnam("nobody")
    try:
        done = subprocess.run(
            command, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


class InstalledDaemon(Daemon):
    """A daemon that another interpreter runs."""

    def __init__(self, folder: Path, programs: str, python: Path) -> None:
        super().__init__(folder, programs)
        self.python = python

    def launch(self) -> None:
        command = [str(self.python), "-m", "supervisor.daemon", "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=errors, stderr=errors
            )


def of_nobody(folder: Path, python: Path, **environment: object) -> str:
    home = folder / "jobs"
    home.mkdir(exist_ok=True)
    os.chown(home, pwd.getpwnam("nobody").pw_uid, -1)
    text = job(folder, keys="user=nobody\ndirectory=/", **environment)
    return text.replace(sys.executable, str(python), 1)


def test_another_users_job_is_proven_as_that_user(tmp_path: Path, installation: Path) -> None:
    with InstalledDaemon(
        tmp_path, of_nobody(tmp_path, installation, STEP_S=0.05, SECRET="hush-hush"), installation
    ) as daemon:
        daemon.call("prove", name="sum")
        daemon.until(lambda: (daemon.call("proof", name="sum")["step"] or 0) > 3, "it trains")
        assert daemon.process is not None
        everything = psutil.Process(daemon.process.pid).children(recursive=True)
        provers = [each for each in everything if "proof_child" in command_of(each)]
        (scratch,) = scratch_folders(tmp_path)
        uids = {child.uids().effective for prover in provers for child in (prover, *prover.children(recursive=True))}
        commands = [path.read_bytes() for path in Path("/proc").glob("[1-9]*/cmdline")]

        assert uids == {pwd.getpwnam("nobody").pw_uid}
        assert scratch.stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert scratch.stat().st_mode & 0o777 == 0o700
        assert not any(b"hush-hush" in command for command in commands)
        answer = daemon.until(lambda: ended(daemon), "it ends", 120.0)
        assert (answer["verdict"], answer["failure"]) == ("exact", None), answer["text"]
        assert scratch_folders(tmp_path) == []


@pytest.mark.hostile
def test_a_job_that_root_proves_by_hand_is_proven_as_its_user(tmp_path: Path, installation: Path) -> None:
    (tmp_path / "p.conf").write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n{of_nobody(tmp_path, installation, STEP_S=0.05)}"
    )
    command = [installation, "-m", "supervisor.daemon", "--prove", tmp_path / "p.conf", "sum", "--json"]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True) as prover:
        assert prover.stdout is not None
        lines = [prover.stdout.readline()]
        root = psutil.Process(prover.pid)
        uids = {process.uids().effective for process in (root, *root.children(recursive=True))}
        lines += prover.stdout.readlines()

    assert uids == {pwd.getpwnam("nobody").pw_uid}
    assert json.loads(lines[-1])["verdict"] == "exact", lines[-1]


def ended(daemon: Daemon) -> dict[str, Any] | None:
    answer = daemon.call("proof", name="sum")
    return answer if answer["is_over"] else None


@pytest.mark.hostile
def test_another_users_proof_is_cancelled_with_all_that_it_started(tmp_path: Path, installation: Path) -> None:
    with InstalledDaemon(tmp_path, of_nobody(tmp_path, installation, **ENDLESS, CHILD=1), installation) as daemon:
        scratch = begun(daemon)

        daemon.call("prove_cancel", name="sum")

        assert is_gone(scratch)


@pytest.mark.hostile
def test_a_user_who_kills_the_prover_gets_no_verdict_and_leaves_nothing(tmp_path: Path, installation: Path) -> None:
    with InstalledDaemon(tmp_path, of_nobody(tmp_path, installation, **ENDLESS, CHILD=1), installation) as daemon:
        scratch = begun(daemon)
        assert daemon.process is not None
        prover_of(daemon.process.pid).kill()

        answer = daemon.until(lambda: ended(daemon), "it ends", 30.0)

        assert answer["verdict"] is None
        assert "ended without a report" in answer["failure"]
        assert is_gone(scratch)


def test_a_user_who_can_t_read_the_installation_is_told(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start programs of other users")
    if can_run([sys.executable, "-c", ""]):
        pytest.skip("every user can execute this interpreter")
    let_others_in(tmp_path)
    with Daemon(tmp_path, of_nobody(tmp_path, Path(sys.executable))) as daemon:
        daemon.call("prove", name="sum")
        answer = daemon.until(lambda: ended(daemon), "it ends", 30.0)

        assert answer["verdict"] == "not provable"
        assert f"can't execute {sys.executable}" in answer["text"]
        assert time.time() - daemon.status("sum")["job"]["proof"]["wall_at"] < 60
