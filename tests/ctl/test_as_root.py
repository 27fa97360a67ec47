"""As root, supervisorctl takes nothing from where others can write: no configuration, history or completion."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pexpect
import pytest

from supervisor.config.first_file import starter
from supervisor.ctl.client import Client, Unreachable
from supervisor.ctl.settings import Options, SettingsError, settings
from tests.places import ROOT

ALICE = 41001
pytestmark = [pytest.mark.hostile, pytest.mark.skipif(os.geteuid() != 0, reason="only root is asked for this")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, in which root is at present."""
    home = tmp_path / "alice"
    home.mkdir()
    (home / "supervisord.conf").write_text("[supervisorctl]\nserverurl=unix:///alice.sock\nhistory_file=/etc/x\n")
    for path in (home, home / "supervisord.conf"):
        os.chown(path, ALICE, ALICE)
    monkeypatch.chdir(home)
    return home


@pytest.mark.parametrize("is_named", [False, True])
def test_a_users_configuration_is_refused_in_the_daemons_words(home: Path, is_named: bool) -> None:
    named = home / "supervisord.conf" if is_named else None

    with pytest.raises(SettingsError, match=f"cannot run as root from its folder .*uid {ALICE}, may change it") as no:
        settings(Options(configuration=named), {})

    assert f"(chown root {home})" in str(no.value)


def test_it_is_not_read_at_all(home: Path) -> None:
    (home / "supervisord.conf").write_text("no configuration, and a secret: s3cr3t")

    with pytest.raises(SettingsError) as refused:
        settings(Options(), {})

    assert "s3cr3t" not in str(refused.value)


def test_whoever_became_root_with_sudo_may_use_their_own(home: Path) -> None:
    assert settings(Options(), {"SUDO_UID": str(ALICE)}).url == "unix:///alice.sock"


@pytest.mark.parametrize(("listens", "mode"), [(ALICE, 0o1777), (ALICE, 0o755), (0, 0o1777)])
def test_a_password_is_not_told_to_whoever_was_first_in_a_folder_of_everybody(
    tmp_path: Path, listens: int, mode: int
) -> None:
    """A folder in which only its owner makes sockets is taken to belong to the daemon."""
    tmp_path.chmod(mode)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        os.seteuid(listens)
        try:
            listening.listen()
        finally:
            os.seteuid(0)
        listening.settimeout(5.0)
        heard: list[bytes] = []

        def hear() -> None:
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(10_000))

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        with pytest.raises(Unreachable) as refused:
            Client(f"unix://{tmp_path}/s", "operator", "s3cr3t").call("status")
        thread.join()

    is_refused = (listens, mode) == (ALICE, 0o1777)
    assert ("the password is not sent" in str(refused.value)) is is_refused
    assert (heard == [b""]) is is_refused


@pytest.mark.integration
def test_completion_does_not_connect_to_a_users_socket(home: Path) -> None:
    code = (
        "import socket, sys\nsocket.socket.connect = lambda *_: open('connected', 'w')\n"
        "from supervisor.ctl.main import main\nmain([])"
    )
    line = "supervisorctl status "
    environment = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.dup2(1, 8)\n{code}"],
        env={**os.environ, **environment, "_ARGCOMPLETE_IFS": "\n"},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )

    assert b"all" in done.stdout
    assert not (home / "connected").exists()


@pytest.mark.integration
@pytest.mark.parametrize("is_there", [False, True])
def test_a_history_file_where_others_can_write_is_neither_read_nor_written(home: Path, is_there: bool) -> None:
    roots = home.parent / "roots"
    roots.write_text("root's")
    history = home / "history"
    if is_there:
        history.symlink_to(roots)
    command = ["-m", "supervisor.ctl.main", "-s", "unix:///nonexistent/socket", "-r", str(history)]
    shell = pexpect.spawn(sys.executable, command, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)

    shell.expect_exact(f"cannot keep the history in {history}")
    shell.expect_exact(f"its owner, uid {ALICE}, may change it")
    shell.expect("supervisor> ")
    shell.sendline("version")
    shell.expect("supervisor> ")
    shell.sendline("quit")
    shell.expect(pexpect.EOF)

    assert roots.read_text() == "root's"
    assert history.is_symlink() == history.exists() == is_there


def test_an_interpreter_of_a_users_is_not_run_as_root_by_init(home: Path) -> None:
    script, python = home / "train.py", home / ".venv" / "bin" / "python"
    script.write_text("import worker\nwith worker.Run() as run: pass\n")
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {home}/ran\n")
    python.chmod(0o755)

    said = starter.write_starter([str(script)], home.parent / "made.conf", {})

    assert not (home / "ran").exists()
    assert "is not run as root to see whether it has stepkeeper" in said
