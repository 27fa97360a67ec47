"""supervisord as old start scripts call it: Supervisor's options, with a daemon behind them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import PATIENCE_S, Daemon

SUPERVISORD = [sys.executable, "-m", "supervisor.daemon"]
SLEEPER = "[program:sleeper]\ncommand=/bin/sleep 100000\n"


class Called(Daemon):
    """A daemon with options of its own, instead of the configuration's."""

    def __init__(self, folder: Path, programs: str, *options: str) -> None:
        super().__init__(folder, programs)
        self.options = options

    def launch(self) -> None:
        with (self.folder / "daemon.err").open("ab") as errors:
            command = [*SUPERVISORD, "-c", str(self.conf), *self.options]
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=errors, stderr=errors)


def test_options_hold_also_after_a_reload_from_another_folder(tmp_path: Path):
    for name in ("work", "logs"):
        (tmp_path / name).mkdir()
    options = ["-n", "-s", "-d", "work", "-q", "logs", "-j", "d.pid", "-l", "d.log", "-i", "host7"]

    with Called(tmp_path, SLEEPER, *options) as daemon:
        assert daemon.process is not None
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        began = (tmp_path / "d.log").read_text().count("daemon.ready")
        daemon.call("reload")
        daemon.until(lambda: (tmp_path / "d.log").read_text().count("daemon.ready") > began, "the next one is ready")
        daemon.until(daemon._answers, "it answers")

        assert Path(f"/proc/{daemon.process.pid}/cwd").readlink() == tmp_path / "work"
        assert (tmp_path / "d.pid").read_text().strip() == str(daemon.process.pid)
        assert daemon.until_state("sleeper", "RUNNING")["pid"] == pid
        assert (tmp_path / "logs" / "sleeper-stdout.log").exists()

    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == []
    assert daemon.errors() == ""  # silent


class Homeless(Daemon):
    """A daemon whose present folder is gone before it begins."""

    def launch(self) -> None:
        gone = self.folder / "gone"
        gone.mkdir()
        moved = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, sys.argv[1:])"
        command = [sys.executable, "-c", moved, *SUPERVISORD, "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen(command, cwd=gone, env=self.environment, stdout=errors, stderr=errors)


def test_the_folder_it_was_started_in_need_not_be_there(tmp_path: Path):
    relative = SLEEPER.replace("/bin/", "")

    with Homeless(tmp_path, relative) as daemon:
        assert daemon.process is not None
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]
        daemon.call("reload")
        daemon.until(lambda: daemon.folder.joinpath("daemon.log").read_text().count("daemon.ready") > 1, "it is new")

        assert daemon.until_state("sleeper", "RUNNING")["pid"] == pid
        assert daemon.process.poll() is None


@pytest.mark.parametrize("options", [["-c", "test.conf"], ["-c", "/nowhere.conf", "-l", "d.log"]])
def test_path_relative_to_a_deleted_folder_is_refused(tmp_path: Path, options: list[str]):
    gone = tmp_path / "gone"
    gone.mkdir()
    moved = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, sys.argv[1:])"

    ended = subprocess.run(
        [sys.executable, "-c", moved, *SUPERVISORD, "-n", *options],
        cwd=gone, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert ended.returncode == 78
    assert "the present folder was deleted" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_old_script_with_t_is_told_and_starts_nothing(tmp_path: Path):
    daemon = Daemon(tmp_path, SLEEPER)

    ended = subprocess.run(
        [*SUPERVISORD, "-t", "-c", str(daemon.conf)], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 2
    assert "stepkeeper has no -t: in Supervisor that is strip_ansi" in ended.stderr
    assert not (tmp_path / "state").exists()


def test_check_config_tells_remarks_and_starts_nothing(tmp_path: Path):
    daemon = Daemon(tmp_path, f"{SLEEPER}[ctlplugin:x]\nsupervisor.ctl_factory=a:b\n")

    ended = subprocess.run(
        [*SUPERVISORD, "--check-config", "-c", str(daemon.conf)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0
    assert "[ctlplugin:x] is ignored: Supervisor's own supervisorctl reads it" in ended.stdout
    assert ended.stdout.endswith(": valid, 1 program\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_check_config_names_file_systems_on_which_checkpoints_do_not_last(small_disk: Path, tmp_path: Path):
    daemon = Daemon(tmp_path, f"[program:j]\ncommand=/bin/true\ncheckpoint_dir={small_disk}/not/yet\n")

    ended = subprocess.run(
        [*SUPERVISORD, "--check-config", "-c", str(daemon.conf)], capture_output=True, text=True, timeout=60, check=True
    )

    remark = f"[program:j] checkpoint_dir: tmpfs at {small_disk}: it is in memory"
    assert remark in ended.stdout
    assert not (small_disk / "not").exists()


def test_a_remark_is_in_the_log_and_the_daemon_runs(tmp_path: Path):
    with Daemon(tmp_path, f"{SLEEPER}[ctlplugin:x]\nsupervisor.ctl_factory=a:b\n") as daemon:
        daemon.until_state("sleeper", "RUNNING")
        daemon.until(lambda: daemon.events("configuration.remark"), "it is remarked upon")


def test_several_sockets_lead_to_one_daemon(tmp_path: Path):
    second = tmp_path / "second.sock"
    with Daemon(tmp_path, f"{SLEEPER}[unix_http_server:b]\nfile={second}\n") as daemon:
        daemon.until_state("sleeper", "RUNNING")
        pid = daemon.call("pid")["pid"]
        daemon.socket = second

        assert daemon.call("pid")["pid"] == pid
        assert daemon.status("sleeper")["state"] == "RUNNING"
    assert not second.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_daemon_that_is_somebody_else_already_stays_so():
    text = (
        "from supervisor.daemon import _switch_user; import os\n"
        "_switch_user('nobody'); _switch_user('nobody')\nprint(os.geteuid())\n"
    )
    other = "_switch_user('daemon')"

    stays = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    turns = subprocess.run(
        [sys.executable, "-c", text + other], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert stays.stdout.strip() != "0"
    assert "only root can start processes of another user and this daemon runs as uid" in turns.stderr
