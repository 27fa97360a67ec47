"""supervisord --migrate: every line of Supervisor's files has a fate, and the right one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import peer
from supervisor.config import ConfigError, load
from supervisor.config.daemon_keys import SupervisordConfig
from supervisor.config.migrate import CHANGED, UNSET, Fate, judge
from supervisor.config.program_keys import ProgramConfig
from supervisor.config.server_keys import InetServerConfig, UnixServerConfig

OLD = """[supervisord]
logfile = /tmp/d.log
minfds = 1024
[program:x]
command = /bin/true ; comment
startretries = 5
serverurl = http://x
[fcgi-program:f]
command = x
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""


def test_every_line_has_its_fate(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text(OLD)

    fates = [(each.place.line, each.fate) for each in judge(path, {})]

    assert fates == [
        (1, Fate.CHANGED),
        (2, Fate.CHANGED),
        (3, Fate.NO_EFFECT),
        (4, Fate.KEPT),
        (5, Fate.KEPT),
        (6, Fate.CHANGED),
        (7, Fate.REFUSED),
        (8, Fate.REFUSED),
        (10, Fate.NO_EFFECT),
        (11, Fate.NO_EFFECT),
    ]


def test_the_command_prints_it_and_says_whether_the_file_can_be_used(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text(OLD)

    def migrate() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "supervisor.daemon", "--migrate", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    refused = migrate()
    path.write_text("[supervisord]\n[program:x]\ncommand = x\n")
    good = migrate()

    assert (refused.returncode, good.returncode) == (78, 0)
    assert f"{path}:7: refused   [program:x] serverurl = http://x: stepkeeper does not" in refused.stdout
    assert refused.stdout.endswith(f"{path}: 2 to change before stepkeeper can use it\n")
    assert good.stdout.endswith(f"{path}: can be used as it is\n")


def test_what_is_said_to_be_different_is_a_key_that_is_there():
    models = {
        "supervisord": SupervisordConfig,
        "program": ProgramConfig,
        "unix_http_server": UnixServerConfig,
        "inet_http_server": InetServerConfig,
    }

    assert all(key in models[kind].ini_keys() for kind, key in CHANGED)
    assert UNSET.keys() <= SupervisordConfig.ini_keys().keys()


@pytest.mark.slow  # may have to install Supervisor first
def test_supervisors_own_files_load_but_for_what_is_named():
    try:
        binaries = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    (package,) = binaries.parent.glob("lib/python*/site-packages/supervisor")
    files = sorted([*package.glob("tests/fixtures/*.conf"), package / "skel/sample.conf"])

    refused = {problem.text for path in files for problem in _problems(path)}

    assert len(files) > 20
    reasons = ("that stepkeeper does not support", "does not support this key")
    assert all(any(reason in text for reason in reasons) for text in refused)


def _problems(path: Path):
    try:
        load(path, os.environ)
    except ConfigError as error:
        return error.problems
    return ()
