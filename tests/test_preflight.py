"""What --check-config says of the host, and that the daemon's start says the same."""

import os
import pwd
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.config import Config, load_config
from supervisor.daemon import main
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.schema import SCHEMA
from supervisor.preflight import daemon_obstacles, program_remarks
from tests.system.harness import let_others_in


def loaded(folder: Path, text: str) -> Config:
    path = folder / "test.conf"
    path.write_text(text)
    return load_config(path, {})


def remarks(folder: Path, *lines: str) -> list[str]:
    """What is said of the one program with these lines, without the place."""
    config = loaded(folder, "\n".join(["[supervisord]", "[program:x]", *lines]))
    return [remark.partition("[program:x] ")[2] for remark in program_remarks(config, os.environ)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["command=no-such-command"], "there is no command 'no-such-command' in PATH"),
        (["command=/bin/cat", "directory=gone"], "its directory {0}/gone does not exist"),
        (["command=/etc/passwd"], "/etc/passwd is not executable"),
        (["command=/usr/bin/env python3 x.py"], None),
        (["command={0}/whole"], None),
        (["command={0}/stale -x"], "there is no '/gone/venv/bin/python', which the first line of {0}/stale names"),
        (["command={0}/crlf"], r"there is no '/bin/sh\r', which the first line of {0}/crlf names"),
        (["command=python3 -u gone.py", "directory=."], "there is no {0}/gone.py"),
        (["command=python3 -m http.server"], None),
        (["command=/bin/cat", "healthcheck_command=gone x"], "healthcheck_command: there is no command 'gone'"),
        (["command=/bin/cat", "stop_command=/gone/x"], "stop_command: there is no command '/gone/x'"),
        (["command=/bin/cat", "hook_failed=./gone x"], "hook_failed: there is no command './gone'"),
        (["command=/bin/cat", "hook_done={0}/stale"], "hook_done: there is no '/gone/venv/bin/python', which the"),
        (["command=/bin/cat", "hook_done=sh -c gone"], None),
        (["command=/bin/cat", "stdout_logfile=/no/such/folder/x.log"], "cannot write /no/such/folder/x.log"),
        (["command=/bin/cat", "stdout_logfile=/dev/stdout", "stdout_logfile_maxbytes=0"], None),
        (["command=/bin/cat", "checkpoint_dir=test.conf/x"], "cannot use {0}/test.conf/x: Not a directory"),
        (["command=/bin/cat", "checkpoint_dir=c", "mirror=file://{0}/gone"], "{0}/gone is not there; mount its disk"),
        (["command=/bin/cat", "checkpoint_dir=c", "mirror=file://{0}/package"], None),
        (["command=/bin/cat", "checkpoint_dir=c", "mirror=file://{0}/empty"], "make the folder {0}/empty/x"),
        (["entrypoint=package.gone:train", "checkpoint_dir=c", "directory=."], "there is no {0}/package/gone.py"),
        (["entrypoint=package.there:train", "checkpoint_dir=c", "directory=."], None),
        (["entrypoint=elsewhere:train", "checkpoint_dir=c", "directory=."], None),
        (["command=python3 plain.py", "directory=."], None),
        (["command=python3 plain.py", "checkpoint_dir=c", "directory=."], "{0}/plain.py does not use worker, so the"),
        (["command=sh -c 'python plain.py'", "checkpoint_dir=c", "directory=."], "does not use worker itself; unless"),
        (["command=python3 uses.py", "checkpoint_dir=c", "directory=."], None),
        (["command=/bin/cat", "checkpoint_dir=c", "directory=."], None),
    ],
)
def test_what_a_program_lacks_is_a_remark(tmp_path: Path, lines: list[str], says: str | None):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "there.py").touch()
    (tmp_path / "plain.py").write_text("print(1)")
    (tmp_path / "uses.py").write_text("import worker\nworker.Run()")
    (tmp_path / "empty").mkdir()
    for name, interpreter in {"whole": "/bin/sh -e", "stale": "/gone/venv/bin/python -I", "crlf": "/bin/sh\r"}.items():
        (tmp_path / name).touch(0o755)
        (tmp_path / name).write_bytes(f"#! {interpreter}\nexit\n".encode())

    found = [
        remark
        for remark in remarks(tmp_path, *(line.format(tmp_path) for line in lines))
        if "is in memory" not in remark
    ]

    assert len(found) == (says is not None)
    assert says is None or says.format(tmp_path) in found[0]


def test_a_hook_of_all_programs_that_cannot_run_is_a_remark(tmp_path: Path):
    config = loaded(tmp_path, "[supervisord]\nhook_failed=stepkeeper-notify\n")

    (remark,) = program_remarks(config, os.environ)

    assert "test.conf: [supervisord] hook_failed: there is no command 'stepkeeper-notify' in PATH (/usr" in remark


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("[program:x]\ncommand=/bin/cat\nautostrat=größe\n[größe]\n", 0, rb"[gr\xf6\xdfe] is no section"),
        ("[program:x]\ncommand=/no/größe\n", 78, rb"/no/gr\xf6\xdfe': the encoding of this locale, ascii, lacks a"),
    ],
)
def test_what_the_locale_lacks_is_an_escape_or_named_where_it_is_a_path(
    tmp_path: Path, program: str, status: int, says: bytes
):
    config = loaded(tmp_path, f"[supervisord]\nnodaemon=true\n{program}")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}

    check = [sys.executable, "-m", "supervisor.daemon", "-c", str(config.path), "--check-config"]
    done = subprocess.run(check, env=ascii_only, capture_output=True, timeout=60, check=False)

    assert (done.returncode, b"Traceback" in done.stderr) == (status, False)
    assert says in done.stdout + done.stderr


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

    assert [obstacle.partition(":")[0] for obstacle in daemon_obstacles(config)] == [
        f"cannot listen on {tmp_path}/gone/s.sock"
    ]


def test_folders_that_the_start_makes_are_none(tmp_path: Path):
    text = "[supervisord]\nstate_dir=new/state\nchildlogdir=new/log\n[unix_http_server]\nfile=new/s.sock\n"

    assert daemon_obstacles(loaded(tmp_path, text)) == []


# --- paths that can't be looked at ------------------------------------------------------------------------------------

PATH_KEYS = {
    "daemon": ["logfile", "pidfile", "childlogdir", "state_dir", "runtime_dir", "directory"],
    "program": [
        "command",
        "directory",
        "stdout_logfile",
        "stderr_logfile",
        "checkpoint_dir",
        "environment_file",
        "export_dir",
    ],
    "server": ["file"],
    "include": ["files"],
}


def hostile_paths(folder: Path) -> dict[str, str]:
    """By what is the matter with it."""
    (folder / "secret").mkdir()
    (folder / "secret" / "there").mkdir()
    (folder / "secret" / "there" / "x").touch()
    (folder / "secret").chmod(0o700)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").touch()
    (folder / "into").symlink_to(folder / "secret" / "there" / "x")
    return {
        "unreadable": f"{folder}/secret/there/x",
        "in an unreadable folder": f"{folder}/secret/none/x",
        "a link into one": f"{folder}/into",
        "missing": f"{folder}/none/none/x",
        "looping": f"{folder}/loop",
        "below a loop": f"{folder}/loop/x",
        "below a file": f"{folder}/file/x",
        "too long": f"{folder}/{'n' * 300}",
        "far too long": f"{folder}" + "/n" * 3000,
        "of process 1": "/proc/1/fd/1",
        "below the root of process 1": "/proc/1/root/x",
        "of a process that is gone": "/proc/4000000/fd/1",
        "of the kernel": "/proc/sys/kernel/x",
        "vanishing": f"{folder}/vanishing/x",
    }


def configurations(folder: Path) -> dict[str, str]:
    """By name: a configuration with one key set to one such path."""
    found = {}
    for what, path in hostile_paths(folder).items():
        for section, keys in PATH_KEYS.items():
            for key in keys:
                lines = {each: [] for each in PATH_KEYS} | {section: [f"{key}={path}"]}
                command = [] if key == "command" else ["command=/bin/cat x.py"]
                found[f"{key} {what}"] = "\n".join(
                    [
                        *("[supervisord]", f"state_dir={folder}/s", *lines["daemon"]),
                        *("[unix_http_server]", *(lines["server"] or [f"file={folder}/sock"])),
                        *("[program:x]", *command, *lines["program"]),
                        *(["checkpoint_dir=c"] if key == "export_dir" else []),
                        *(["[include]", *lines["include"]] if section == "include" else []),
                    ]
                )
    return found


def run_as(uid: int, work: Callable[[], None]) -> str:
    """What went wrong with it in a fork that becomes this user; empty if nothing did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
        except BaseException:  # noqa: BLE001 - it is handed on
            os.write(writing, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, "rb") as answer:
        return answer.read().decode()


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_whatever_a_path_is_there_is_no_traceback(tmp_path: Path, user: str) -> None:
    let_others_in(tmp_path)
    for number, text in enumerate((texts := configurations(tmp_path)).values()):
        (tmp_path / f"{number}.conf").write_text(text)
    main(["-c", str(tmp_path / "0.conf"), "--check-config"])  # imports what a user may not be able to read

    def check_all() -> None:
        wrong = {}
        for number, name in enumerate(texts):
            try:
                status = main(["-c", str(tmp_path / f"{number}.conf"), "--check-config"])
            except BaseException:  # noqa: BLE001 - as above
                wrong[name] = traceback.format_exc()
            else:
                if status not in (0, 71, 78):
                    wrong[name] = f"status {status}"
        assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())

    is_over = threading.Event()

    def vanish() -> None:
        folder = tmp_path / "vanishing"
        while not is_over.is_set():
            folder.mkdir()
            (folder / "x").touch()
            (folder / "x").unlink()
            folder.rmdir()

    vanishing = threading.Thread(target=vanish)
    vanishing.start()
    try:
        assert run_as(pwd.getpwnam(user).pw_uid, check_all) == ""
    finally:
        is_over.set()
        vanishing.join()


@pytest.mark.hostile
@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_log_that_cannot_be_looked_at_is_a_remark(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    text = "[supervisord]\n[program:x]\ncommand=/bin/cat\nstdout_logfile=/proc/1/fd/1\nstdout_logfile_maxbytes=0\n"
    config = loaded(tmp_path, text)

    def check() -> None:
        (remark,) = program_remarks(config, {})
        assert "stdout_logfile: cannot write /proc/1/fd/1: Permission denied" in remark

    assert run_as(pwd.getpwnam("nobody").pw_uid, check) == ""


# --- what lets others in, or keeps them out ---------------------------------------------------------------------------


@pytest.mark.hostile
def test_a_port_without_a_password_is_remarked_on(tmp_path: Path) -> None:
    bare = loaded(tmp_path, "[supervisord]\n[inet_http_server]\nport=127.0.0.1:9001\n")
    guarded = loaded(tmp_path, "[supervisord]\n[inet_http_server]\nport=127.0.0.1:9001\nusername=a\npassword=b\n")

    (remark,) = bare.warnings
    assert "every user of this host, and every job, can do anything with this daemon through port" in remark.text
    assert guarded.warnings == ()


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs of other users")
@pytest.mark.parametrize(("mode", "is_said"), [(0o700, True), (0o750, True), (0o711, False)])
def test_a_state_folder_that_keeps_a_job_from_its_pipes_is_remarked_on(
    tmp_path: Path, mode: int, is_said: bool
) -> None:
    let_others_in(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    text = f"[supervisord]\nstate_dir=state\n[program:x]\ncommand=/bin/cat\nuser=nobody\ncheckpoint_dir={tmp_path}/c\n"

    found = [remark for remark in program_remarks(loaded(tmp_path, text), {}) if "may not enter" in remark]

    assert len(found) == is_said
    assert not is_said or f"nobody may not enter {tmp_path}/state; run chmod o+x {tmp_path}/state" in found[0]


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root believes what others must not write")
@pytest.mark.parametrize(("place", "key"), [("state", "state_dir"), ("", "state_dir"), ("state/run", "runtime_dir")])
def test_a_state_folder_that_another_user_can_write_is_remarked_on(tmp_path: Path, place: str, key: str) -> None:
    (tmp_path / "files" / "state/run").mkdir(parents=True)
    text = "[supervisord]\nstate_dir=files/state\n[program:x]\ncommand=/bin/cat\n"
    config = loaded(tmp_path, text)
    assert program_remarks(config, {}) == []
    owned = tmp_path / "files" / place
    os.chown(owned, pwd.getpwnam("nobody").pw_uid, -1)

    found = program_remarks(config, {})

    assert f"[supervisord] {key}: {owned} is not root's alone" in found[0]
    assert f"chown root {owned}" in found[0]
    assert not program_remarks(loaded(tmp_path, f"{text}[supervisord]\nuser=nobody\n"), {})


@pytest.mark.parametrize(
    ("file", "says"), [("ledger.sqlite3", "newer stepkeeper wrote it"), ("wanted.json", "format 99")]
)
def test_a_state_folder_of_a_newer_version_is_an_obstacle_and_stays_as_it_is(tmp_path: Path, file: str, says: str):
    state = tmp_path / "state"
    state.mkdir()
    Ledger(state / "ledger.sqlite3").close()
    config = loaded(tmp_path, f"[supervisord]\nstate_dir={state}\n[program:x]\ncommand=/bin/cat\n")
    assert daemon_obstacles(config) == []
    with closing(sqlite3.connect(state / "ledger.sqlite3")) as shell:
        shell.execute(f"PRAGMA user_version = {99 if file == 'ledger.sqlite3' else SCHEMA}")
    if file == "wanted.json":
        (state / file).write_text('{"format": 99}')
    before = {path.name: path.read_bytes() for path in state.iterdir()}

    (obstacle,) = daemon_obstacles(config)

    assert says in obstacle
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


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

    found = [remark for remark in program_remarks(config, os.environ) if "was committed in" in remark]

    assert len(found) == is_said
    for each in found:
        assert "cannot go on with x: step 300 (step-0000000300.a1) was committed in /old" in each
        assert f"checkpoint_dir is now {tmp_path}/c, which holds no checkpoint; set checkpoint_dir back to /old" in each
