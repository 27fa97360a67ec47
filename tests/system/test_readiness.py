"""depends_on waits for the word of a program, over a whole daemon and its death."""

import sys
from pathlib import Path

import pytest

from supervisor.config import ConfigError, load_config
from tests.system.harness import Daemon, Refused

SERVER = """
import os, socket, sys, time
def say(text):
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
    except OSError as error:
        print(error, flush=True)
say("STATUS=loading")
for line in sys.stdin:
    say(line.strip())
    print("said", line.strip(), flush=True)
"""
PROGRAMS = """[program:server]
command={python} {folder}/server.py
notify=true
startsecs=0
stopwaitsecs=5
{keys}
[program:client]
command=/bin/sleep 100000
depends_on=server
startsecs=0
"""


def daemon_with(folder: Path, keys: str = "") -> Daemon:
    (folder / "server.py").write_text(SERVER)
    return Daemon(folder, PROGRAMS.format(python=sys.executable, folder=folder, keys=keys))


def say(daemon: Daemon, text: str) -> None:
    daemon.call("send_stdin", name="server", chars=f"{text}\n")


def test_dependent_starts_after_the_readiness_message(tmp_path: Path):
    with daemon_with(tmp_path) as daemon:
        daemon.until(lambda: daemon.status("server")["says"] == "loading", "its status is heard")
        assert daemon.status("server")["state"] == "STARTING"
        assert "loading" in daemon.status("server")["description"]
        assert daemon.status("client")["pid"] is None

        say(daemon, "READY=1")

        daemon.until_state("server", "RUNNING")
        daemon.until_state("client", "RUNNING")
        say(daemon, "STATUS=serves 3 clients")
        daemon.until(lambda: "serves 3 clients" in daemon.status("server")["description"], "its status is shown")
        say(daemon, "complete nonsense")
        daemon.until(lambda: daemon.events("notification.refused"), "nonsense is reported")
        assert daemon.status("server")["state"] == "RUNNING"


def test_its_readiness_outlives_the_daemon_and_the_next_one_hears_it(tmp_path: Path):
    with daemon_with(tmp_path) as daemon:
        daemon.until(lambda: daemon.status("server")["says"], "it is there")
        say(daemon, "READY=1")
        pid = daemon.until_state("server", "RUNNING")["pid"]
        daemon.until(lambda: daemon.events("logger.started"), "somebody else reads what it prints")

        daemon.die()
        daemon.start()

        assert daemon.until_state("server", "RUNNING")["pid"] == pid
        say(daemon, "STATUS=still here")
        daemon.until(lambda: daemon.status("server")["says"] == "still here", "the next daemon hears it")


def test_readiness_message_reaches_the_next_daemon(tmp_path: Path):
    with daemon_with(tmp_path) as daemon:
        pid = daemon.until(lambda: daemon.status("server")["says"] and daemon.status("server")["pid"], "it is there")
        daemon.until(lambda: daemon.events("logger.started"), "somebody else reads what it prints")
        daemon.die()
        daemon.start()
        daemon.until(lambda: daemon.status("server")["pid"] == pid, "it is taken over")
        assert daemon.status("server")["state"] == "STARTING"

        say(daemon, "READY=1")

        daemon.until_state("server", "RUNNING")
        daemon.until_state("client", "RUNNING")


def test_without_its_word_the_start_fails_with_the_reason(tmp_path: Path):
    with (
        daemon_with(tmp_path, "notify_timeout=0.5\nstartretries=0\nautostart=false") as daemon,
        pytest.raises(Refused, match=r"did not send READY=1 within 0\.5 s"),
    ):
        daemon.call("start", name="server")


def test_program_that_reports_ready_and_exits_was_ready(tmp_path: Path):
    (tmp_path / "short.py").write_text(SERVER.replace('say("STATUS=loading")', 'say("READY=1"); sys.exit(0)'))
    program = f"[program:short]\ncommand={sys.executable} {tmp_path}/short.py\nnotify=true\n"
    with Daemon(tmp_path, program) as daemon:
        daemon.until_state("short", "SUCCEEDED")


@pytest.mark.parametrize(
    ("settings", "keys", "said"),
    [
        ("", "notify=true\ncheckpoint_dir=c", "a job is ready when it trains"),
        ("", "notify_timeout=5", "no effect without notify"),
        ("runtime_dir=/run/" + "x" * 90, "notify=true", "set a shorter runtime_dir"),
    ],
)
def test_impossible_readiness_settings_are_refused(tmp_path: Path, settings: str, keys: str, said: str):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\n{settings}\n[program:server]\ncommand=/bin/cat\n{keys}\n")

    with pytest.raises(ConfigError, match=said):
        load_config(path, {})
