"""supervisord --migrate: every line of Supervisor's files has a fate, and the right one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import peer
from supervisor.config import dependent_startup
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.groups import GroupConfig, ListenerConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.load import check_config
from supervisor.config.migration.outcomes import CHANGED, PATHS, UNSET, MigrationOutcome, explain_migration

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
[ctlplugin:y]
supervisor.ctl_factory = a:b
"""


def test_every_line_has_its_fate(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text(OLD)

    fates = list(
        dict.fromkeys((migration.location.line, migration.outcome) for migration in explain_migration(path, {}))
    )

    assert fates == [
        (1, MigrationOutcome.CHANGED),
        (2, MigrationOutcome.CHANGED),
        (3, MigrationOutcome.KEPT),
        (4, MigrationOutcome.CHANGED),
        (5, MigrationOutcome.KEPT),
        (6, MigrationOutcome.CHANGED),
        (7, MigrationOutcome.NO_EFFECT),
        (8, MigrationOutcome.REFUSED),
        (10, MigrationOutcome.NO_EFFECT),
        (11, MigrationOutcome.NO_EFFECT),
        (12, MigrationOutcome.NO_EFFECT),
    ]


RELATIVE = (
    "is {folder}/conf/{path}: relative paths start from the folder of their file, in Supervisor from the one that "
    "supervisord is started in"
)
CRASHES = (
    "a program that crashes after its start-up starts again at once three times in a row, then after 1, 2, 4 ... 60 s, "
    "until one has lasted a minute; in Supervisor once a second"
)
WANTED = (
    "holds until supervisorctl says otherwise: a program that was stopped stays stopped when the daemon or the host "
    "starts again, and one that was started is started"
)
ORDER = (
    "when the daemon leaves, groups of a higher number are told to stop first, but nobody waits until they are gone; "
    "depends_on does"
)
JSON_LINES = "the lines are JSON; log_format = supervisor makes them Supervisor's"
RETRIES = "the pause between failed starts is 1, 2, 4 ... 60 s, an eighth more or less, not 1, 2, 3 s"
HASHED = "compared in constant time; supervisord --hash-password makes a salted hash of it"
CUT = (
    "%s: the value goes on to the next comma; in Supervisor, without quotation marks, only to the first character "
    "other than ASCII letters, digits and _/.+-():"
)
LOOK = (
    "whom the mode lets in may look; changing things takes root, the daemon's user or the owner (chown), or a username "
    "and password"
)


@pytest.mark.parametrize(
    ("section", "line", "fate", "why"),
    [
        ("supervisord", "logfile = /var/log/d.log", MigrationOutcome.CHANGED, [JSON_LINES]),
        ("supervisord", "logfile = d.log", MigrationOutcome.CHANGED, [JSON_LINES, RELATIVE.format_map]),
        ("supervisord", "logfile = /dev/null", MigrationOutcome.CHANGED, [JSON_LINES, "the same as NONE"]),
        ("supervisord", "pidfile = d.log", MigrationOutcome.CHANGED, [RELATIVE.format_map]),
        ("supervisord", "pidfile = %(here)s/d.pid", MigrationOutcome.KEPT, []),
        ("supervisord", "pidfile = ~/d.pid", MigrationOutcome.KEPT, []),
        ("supervisord", "pidfile = /dev/null", MigrationOutcome.CHANGED, ["the same as NONE"]),
        ("supervisord", "childlogdir = /l", MigrationOutcome.CHANGED, [
            "logs are called NAME-stdout.log, and stay after a restart"
        ]),
        ("supervisord", "directory = d.log", MigrationOutcome.CHANGED, [RELATIVE.format_map]),
        ("supervisord", "minfds = 65536", MigrationOutcome.KEPT, []),
        ("supervisord", "minprocs = 500", MigrationOutcome.KEPT, []),
        ("supervisord", "silent = true", MigrationOutcome.KEPT, []),
        ("supervisord", "nocleanup = true", MigrationOutcome.NO_EFFECT, ["logs are never deleted at a start"]),
        ("supervisord", "strip_ansi = false", MigrationOutcome.NO_EFFECT, []),
        ("supervisord", "loglevel = trace", MigrationOutcome.CHANGED, ["is the same as debug"]),
        ("supervisord", "loglevel = warn", MigrationOutcome.KEPT, []),
        ("unix_http_server", "file = d.log", MigrationOutcome.CHANGED, [RELATIVE.format_map]),
        ("unix_http_server", "file = /s\nchmod = 0770", MigrationOutcome.CHANGED, [LOOK]),
        ("unix_http_server", "file = /s\nchmod = 0700", MigrationOutcome.KEPT, []),
        ("unix_http_server:b", "file = /s\nusername=a\npassword = b", MigrationOutcome.CHANGED, [HASHED]),
        ("inet_http_server:b", "port = 1\nusername=a\npassword = b", MigrationOutcome.CHANGED, [HASHED]),
        ("program:x", "command = bin/run", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\nautorestart = unexpected", MigrationOutcome.CHANGED, [CRASHES]),
        ("program:x", "command = a\nautorestart = true", MigrationOutcome.CHANGED, [CRASHES]),
        ("program:x", "command = a\nautorestart = false", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\nautostart = true", MigrationOutcome.CHANGED, [WANTED]),
        ("program:x", "command = a\nstartretries = 9", MigrationOutcome.CHANGED, [RETRIES]),
        ("program:x", "command = a\nstartsecs = 5", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\npriority = 5", MigrationOutcome.CHANGED, [ORDER]),
        ("program:x", "command = a\nstdout_logfile = AUTO", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\nstdout_logfile = d.log", MigrationOutcome.CHANGED, [RELATIVE.format_map]),
        ("program:x", "command = a\nstderr_logfile = /dev/null", MigrationOutcome.CHANGED, [
            "the same as NONE: supervisorctl tail says that there is no log"
        ]),
        ("program:x", "command = a\nstdout_logfile = off", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\ndirectory = ~root", MigrationOutcome.CHANGED, [
            f"is {Path('~root').expanduser()}; in Supervisor a folder of the name ~root"
        ]),
        ("program:x", "command = a\nenvironment = A=/x:/y,B='$C',D=\"1,2\",", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\nenvironment = A=http://h/?b=1,C=d", MigrationOutcome.CHANGED, [CUT % "A, b"]),
        ("program:x", "command = a\nenvironment = C=d,A=x#y", MigrationOutcome.CHANGED, [CUT % "A"]),
        ("program:x", "command = a\nenvironment = A=$HOME,B=1", MigrationOutcome.KEPT, []),
        ("program:x", "command = a\nserverurl = AUTO", MigrationOutcome.NO_EFFECT, []),
        ("eventlistener:x", "command = a\nevents = EVENT\nautorestart = true", MigrationOutcome.CHANGED, [CRASHES]),
        ("eventlistener:x", "command = a\nevents = EVENT\nstdout_logfile = AUTO", MigrationOutcome.CHANGED, [
            "AUTO is NONE: standard output is the protocol; a path gets a copy of it"
        ]),
        ("supervisorctl", "history_file = d.log", MigrationOutcome.CHANGED, [RELATIVE.format_map]),
        ("supervisorctl", "prompt = x", MigrationOutcome.KEPT, []),
    ],
)  # fmt: skip
def test_each_fate_has_its_text(tmp_path: Path, section: str, line: str, fate: MigrationOutcome, why: list[object]):
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf/old.conf"
    path.write_text(f"[supervisord]\n[{section}]\n{line}\n")
    last = path.read_text().count("\n")
    filled = [reason if isinstance(reason, str) else reason({"folder": tmp_path, "path": "d.log"}) for reason in why]

    judged = [migration for migration in explain_migration(path, {}) if migration.location.line == last]

    assert {migration.outcome for migration in judged} == {fate}
    assert [migration.reason for migration in judged if migration.reason] == filled


def test_migration_note_for_every_program_appears_once(tmp_path: Path):
    path = tmp_path / "old.conf"
    path.write_text("[supervisord]\n[program:x]\ncommand = x\n[program:y]\ncommand = y\n")

    headers = {
        name: [migration.reason for migration in explain_migration(path, {}) if migration.subject == f"[{name}]"]
        for name in ("supervisord", "program:x", "program:y")
    }

    assert headers == {
        "supervisord": [UNSET["supervisord", key] for key in ("state_dir", "logfile", "pidfile", "childlogdir")],
        "program:x": [RETRIES, CRASHES, f"autostart {WANTED}"],
        "program:y": [""],
    }


def test_an_included_file_s_paths_start_from_its_own_folder(tmp_path: Path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/x.conf").write_text("[program:x]\ncommand = x\ndirectory = work\n")
    path = tmp_path / "old.conf"
    path.write_text("[supervisord]\n[include]\nfiles = conf.d/*.conf\n")

    (directory,) = [
        migration for migration in explain_migration(path, {}) if migration.subject == "[program:x] directory"
    ]

    assert directory.location.file == tmp_path / "conf.d/x.conf"
    assert directory.reason.startswith(f"is {tmp_path}/conf.d/work: relative paths start from the folder of their file")


@pytest.mark.integration
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
    assert f"{path}:8: refused   [fcgi-program:f] is a Supervisor section" in refused.stdout
    assert refused.stdout.endswith(f"{path}: change 1 line before stepkeeper can use it\n")
    assert good.stdout.endswith(f"{path}: can be used as it is\n")


def test_migration_notes_name_existing_keys():
    models = {
        "supervisord": [SupervisordConfig],
        "program": [ProgramConfig],
        "group": [GroupConfig],
        "eventlistener": [ProgramConfig, ListenerConfig],
        "unix_http_server": [UnixServerConfig],
        "inet_http_server": [InetServerConfig],
        "supervisorctl": [CtlConfig],
    }

    for kind, key in [*CHANGED, *UNSET, *((kind, key) for kind, keys in PATHS.items() for key in keys)]:
        is_known = any(key in model.ini_keys() for model in models[kind])
        assert is_known or key in dependent_startup.KEYS, f"[{kind}] {key}"


@pytest.mark.integration  # may have to install Supervisor first
@pytest.mark.slow
def test_supervisors_own_files_load():
    try:
        binaries = peer.binaries()
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    (package,) = binaries.parent.glob("lib/python*/site-packages/supervisor")
    files = sorted([*package.glob("tests/fixtures/*.conf"), package / "skel/sample.conf"])

    refused = {f"{path.name}: {problem.text}" for path in files for problem in check_config(path, os.environ).problems}

    assert len(files) > 20
    assert refused == set()
