"""What --check-config says of the host, and that the daemon's start says the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import Config, load_config
from supervisor.daemon import main
from supervisor.preflight import daemon_obstacles, program_remarks


def loaded(folder: Path, text: str) -> Config:
    path = folder / "test.conf"
    path.write_text(text)
    return load_config(path, {})


def remarks(folder: Path, *lines: str) -> list[str]:
    """What is said of the one program with these lines, without the place."""
    config = loaded(folder, "\n".join(["[supervisord]", "[program:x]", *lines]))
    return [each.partition("[program:x] ")[2] for each in program_remarks(config, os.environ)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["command=no-such-command"], "there is no command 'no-such-command' in PATH"),
        (["command=/bin/cat", "directory=gone"], "its directory {0}/gone does not exist"),
        (["command=/etc/passwd"], "/etc/passwd is not executable"),
        (["command=/usr/bin/env python3 x.py"], None),
        (["command=python3 -u gone.py", "directory=."], "there is no {0}/gone.py"),
        (["command=python3 -m http.server"], None),
        (["command=/bin/cat", "stdout_logfile=/no/such/folder/x.log"], "cannot write /no/such/folder/x.log"),
        (["command=/bin/cat", "stdout_logfile=/dev/stdout", "stdout_logfile_maxbytes=0"], None),
        (["command=/bin/cat", "checkpoint_dir=test.conf/x"], "cannot use {0}/test.conf/x: Not a directory"),
        (["entrypoint=package.gone:train", "checkpoint_dir=c", "directory=."], "there is no {0}/package/gone.py"),
        (["entrypoint=package.there:train", "checkpoint_dir=c", "directory=."], None),
        (["entrypoint=elsewhere:train", "checkpoint_dir=c", "directory=."], None),
    ],
)
def test_what_a_program_lacks_is_a_remark(tmp_path: Path, lines: list[str], says: str | None):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "there.py").touch()

    found = [each for each in remarks(tmp_path, *lines) if "is in memory" not in each]

    assert len(found) == (says is not None)
    assert says is None or says.format(tmp_path) in found[0]


@pytest.mark.integration
@pytest.mark.parametrize(
    "key", ["logfile=/no/such/d.log", "pidfile=/no/such/d.pid", "childlogdir=/proc/x", "state_dir=/proc/x"]
)
def test_what_would_end_the_start_is_said_in_its_words(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]):
    config = loaded(tmp_path, f"[supervisord]\nnodaemon=true\n{key}\n")

    assert main(["-c", str(config.path), "--check-config"]) == 71
    checked = capsys.readouterr()
    assert "valid" not in checked.out
    assert checked.err.splitlines() == daemon_obstacles(config)
    assert not (tmp_path / ".stepkeeper").exists()
    start = [sys.executable, "-m", "supervisor.daemon", "-c", str(config.path)]
    started = subprocess.run(start, capture_output=True, text=True, timeout=60, check=False)
    assert started.returncode == 71
    assert started.stderr.splitlines() == daemon_obstacles(config)[:1]


def test_a_socket_in_no_folder_is_an_obstacle(tmp_path: Path):
    config = loaded(tmp_path, "[supervisord]\n[unix_http_server]\nfile=gone/s.sock\n")

    assert [each.partition(":")[0] for each in daemon_obstacles(config)] == [f"cannot listen on {tmp_path}/gone/s.sock"]


def test_folders_that_the_start_makes_are_none(tmp_path: Path):
    text = "[supervisord]\nstate_dir=new/state\nchildlogdir=new/log\n[unix_http_server]\nfile=new/s.sock\n"

    assert daemon_obstacles(loaded(tmp_path, text)) == []


PROGRESS = '{"programs": {}, "removed": [], "progress": {"x": {"newest": %s, "revision": 3}}}'
NEWEST = '{"step": 300, "name": "step-0000000300.a1", "directory": "/old"}'


@pytest.mark.parametrize(
    ("recorded", "is_said"),
    [
        (PROGRESS % NEWEST, True),
        (PROGRESS % "null", False),
        (PROGRESS % NEWEST.replace("/old", "HERE"), False),
        (PROGRESS % '{"step": "many"}', False),
        ("garbage", False),
        (None, False),
    ],
)
def test_a_directory_that_lacks_the_newest_checkpoint_is_named(tmp_path: Path, recorded: str | None, is_said: bool):
    state = tmp_path / "state"
    state.mkdir()
    if recorded is not None:
        (state / "wanted.json").write_text(recorded.replace("HERE", str(tmp_path / "c")))
    section = "[program:x]\ncommand=/bin/cat\ncheckpoint_dir=c\n"
    config = loaded(tmp_path, f"[supervisord]\nstate_dir={state}\n{section}")

    found = [each for each in program_remarks(config, os.environ) if "was committed in" in each]

    assert len(found) == is_said
    for each in found:
        assert "cannot go on with x: step 300 (step-0000000300.a1) was committed in /old" in each
        assert f"checkpoint_dir is now {tmp_path}/c, which holds no checkpoint; set checkpoint_dir back to /old" in each
