"""Listeners and clients that others wrote for Supervisor, unmodified from PyPI, do their work with this daemon."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import peer
from tests.reading import content
from tests.system.harness import Daemon
from tests.system.test_listeners import tell

pytestmark = pytest.mark.slow  # may have to install them first; ticks come every 5 s
TICK_PATIENCE_S = 40.0
MAIL = "To: ops@example.org"
SETTINGS = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"LC_ALL": "C.UTF-8"}
"""Our package is called as Supervisor's: these must not find ours."""


@pytest.fixture(scope="module")
def clients() -> Path:
    try:
        return peer.binaries(peer.CLIENTS)
    except peer.NotInstalled as error:
        pytest.skip(str(error))


@contextmanager
def daemon(folder: Path, programs: str) -> Iterator[Daemon]:
    """With the programs; they find PyPI's Supervisor, not ours."""
    settings = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Daemon(folder, programs, environment=settings) as running:
        yield running


def listener(name: str, command: str, events: str) -> str:
    return f'[eventlistener:{name}]\ncommand={command}\nevents={events}\nenvironment=PYTHONPATH=""\n'


def sendmail(folder: Path) -> tuple[Path, Path]:
    """A mailer that keeps what it is given, and where."""
    mailbox, mailer = folder / "mailbox", folder / "sendmail"
    mailer.write_text(f"#!/bin/sh\ncat >> {mailbox}\necho >> {mailbox}\n")
    mailer.chmod(0o755)
    return mailer, mailbox


def text(path: Path) -> str:
    return content(path).decode(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_crashmail_mails_an_unexpected_end_and_no_other(clients: Path, tmp_path: Path):
    mailer, mailbox = sendmail(tmp_path)
    programs = (
        '[program:crasher]\ncommand=/bin/sh -c "sleep 0.3; exit 3"\nstartsecs=0.1\nautorestart=false\n'
        '[program:leaver]\ncommand=/bin/sh -c "sleep 0.3"\nstartsecs=0.1\nautorestart=false\n'
        + listener("crashmail", f"{clients}/crashmail -a -s {mailer} -m ops@example.org", "PROCESS_STATE")
    )
    with daemon(tmp_path, programs) as running:
        running.until(lambda: "crasher" in text(mailbox), "the mail is there")
        running.until_state("leaver", "SUCCEEDED")

    mail = text(mailbox)
    assert mail.count(MAIL) == 1
    assert "Process crasher in group crasher exited unexpectedly (pid " in mail
    assert "from state RUNNING" in mail


def test_supervisor_logging_sends_what_programs_print(clients: Path, tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog, contextlib.ExitStack() as running:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(TICK_PATIENCE_S)
        settings = f"SYSLOG_SERVER=127.0.0.1,SYSLOG_PORT={syslog.getsockname()[1]},SYSLOG_PROTO=udp"
        programs = (
            '[program:talker]\ncommand=/bin/sh -c "while sleep 0.2; do echo a word; done"\nstdout_events_enabled=true\n'
            f'[eventlistener:syslog]\ncommand={clients}/supervisor_logging\nevents=PROCESS_LOG\nenvironment=PYTHONPATH="",'
            f"{settings}\n"
        )
        daemon_ = running.enter_context(daemon(tmp_path, programs))
        pid = daemon_.until_state("talker", "RUNNING")["pid"]

        assert f"talker[{pid}]: a word " in syslog.recv(4096).decode()


CHILDUTILS = """
import sys
from supervisor import childutils
while True:
    headers, payload = childutils.listener.wait(sys.stdin, sys.stdout)
    with open(sys.argv[1], "a", encoding=sys.stdin.encoding) as file:
        file.write(payload + "|")
    childutils.listener.ok(sys.stdout)
"""


def test_childutils_keeps_step_with_other_alphabets_where_a_character_is_a_byte(clients: Path, tmp_path: Path):
    script, heard = tmp_path / "ear.py", tmp_path / "heard"
    script.write_text(CHILDUTILS)
    ear = f"[eventlistener:ear]\ncommand={clients}/python {script} {heard}\nevents=REMOTE_COMMUNICATION\n"
    with daemon(tmp_path, ear + 'environment=PYTHONPATH="",PYTHONIOENCODING="latin-1"\n') as running:
        tell(running, "häß", "日本語", "end")

        running.until(lambda: "type:t\nend" in text(heard), "all of it is heard")

    assert heard.read_bytes().decode() == "type:t\nhäß|type:t\n日本語|type:t\nend|"


def test_memmon_restarts_what_takes_too_much(clients: Path, tmp_path: Path):
    mailer, mailbox = sendmail(tmp_path)
    memmon = f"{clients}/memmon -p big=100KB -p small=10GB -s {mailer} -m ops@example.org -n test"
    programs = "[program:big]\ncommand=/bin/sleep 100000\n[program:small]\ncommand=/bin/sleep 100000\n"
    with daemon(tmp_path, programs + listener("memmon", memmon, "TICK_5")) as running:
        running.until(lambda: "process big:big restarted" in text(mailbox), "memmon has mailed", TICK_PATIENCE_S)

        running.until_state("big", "RUNNING")
        starts = {name: len(running.call("history", name=name)["attempts"]) for name in ("big", "small")}
        assert starts["big"] > 1
        assert starts["small"] == 1
        running.until(lambda: running.status("memmon")["listener"]["accepted"] > 0, "memmon has answered")


def test_httpok_restarts_what_does_not_answer_as_it_should(clients: Path, tmp_path: Path):
    port = free_port()
    httpok = f"{clients}/httpok -p web -t 2 http://127.0.0.1:{port}/health"
    web = f"[program:web]\ncommand={sys.executable} -m http.server -b 127.0.0.1 {port}\ndirectory={tmp_path}\n"
    with daemon(tmp_path, web + listener("httpok", httpok, "TICK_5")) as running:
        first = running.until_state("web", "RUNNING")["pid"]

        def restarted() -> bool:  # there is no file `health`
            return bool(running.status("web")["pid"] not in (None, first))

        running.until(restarted, "httpok has restarted web", TICK_PATIENCE_S)
        (tmp_path / "health").write_text("fine\n")
        pid, asked = running.until_state("web", "RUNNING")["pid"], tmp_path / "state/log/web-stderr.log"
        running.until(lambda: '/health HTTP/1.1" 200' in text(asked), "httpok has asked again", TICK_PATIENCE_S)
        assert running.status("web")["pid"] == pid


def test_fatalmailbatch_mails_what_was_given_up(clients: Path, tmp_path: Path):
    port, received = free_port(), tmp_path / "received"
    with received.open("wb") as out:
        server = subprocess.Popen(
            [clients / "python", "-u", "-m", "aiosmtpd", "-n", "-l", f"127.0.0.1:{port}"],
            stdout=out,
            stderr=out,
            env=SETTINGS,
        )
    batch = (
        f"{clients}/fatalmailbatch --toEmail=ops@example.org --fromEmail=d@example.org --interval=0.01 "
        f"--tickEvent=TICK_5 --smtpHost=127.0.0.1:{port}"
    )
    broken = "[program:broken]\ncommand=/bin/false\nstartretries=0\nautostart=false\n"
    try:
        with daemon(tmp_path, broken + listener("batch", batch, "PROCESS_STATE,TICK_5")) as running:
            running.until(lambda: listens(port), "the mail server listens")
            running.call("start", name="broken", wait=False)
            running.until(lambda: "broken:broken failed to start" in text(received), "the mail came", TICK_PATIENCE_S)
    finally:
        server.kill()
        server.wait()


def test_supervisor_checks_restarts_what_does_not_listen(clients: Path, tmp_path: Path):
    check = f"{clients}/supervisor_tcp_check -n deaf_check -N deaf -p {free_port()} -r 1 -t 1"
    with daemon(
        tmp_path, "[program:deaf]\ncommand=/bin/sleep 100000\n" + listener("check", check, "TICK_5")
    ) as running:
        first = running.until_state("deaf", "RUNNING")["pid"]

        running.until(
            lambda: running.status("deaf")["pid"] not in (None, first), "the check has restarted it", TICK_PATIENCE_S
        )


def test_superfsmon_restarts_a_program_when_its_files_change(clients: Path, tmp_path: Path):
    watched = tmp_path / "code"
    watched.mkdir()
    programs = (
        "[program:app]\ncommand=/bin/sleep 100000\n[program:other]\ncommand=/bin/sleep 100000\n"
        f'[program:fsmon]\ncommand={clients}/superfsmon -r "*.py" {watched} app\nenvironment=PYTHONPATH=""\n'
    )
    with daemon(tmp_path, programs) as running:
        before = {name: running.until_state(name, "RUNNING")["pid"] for name in ("app", "other")}
        running.until_state("fsmon", "RUNNING")
        running.until(lambda: "watching" in text(tmp_path / "state/log/fsmon-stdout.log"), "superfsmon watches")

        def restarted() -> bool:  # it says so a moment before it watches: one change may be too early
            (watched / "app.py").write_text("print()\n")
            return bool(running.status("app")["pid"] not in (None, before["app"]))

        running.until(restarted, "app is restarted")
        assert running.status("other")["pid"] == before["other"]


def test_dependent_startup_starts_programs_in_the_order_of_its_own_file(clients: Path, tmp_path: Path):
    wishes = tmp_path / "wishes.conf"
    wishes.write_text(
        "[program:db]\ncommand=x\nautostart=false\ndependent_startup=true\n"
        "[program:web]\ncommand=x\nautostart=false\ndependent_startup=true\ndependent_startup_wait_for=db:running\n"
    )
    programs = "".join(f"[program:{name}]\ncommand=/bin/sleep 100000\nautostart=false\n" for name in ("web", "db"))
    command = f"{clients}/supervisord-dependent-startup -c {wishes}"
    with daemon(tmp_path, programs + listener("order", command, "PROCESS_STATE")) as running:
        web = running.until_state("web", "RUNNING")

        assert running.status("db")["started_wall_at"] + 1.0 <= web["started_wall_at"]  # its startsecs


def test_the_stock_client_s_wildcards_plugin_stops_and_starts_what_matches(clients: Path, tmp_path: Path):
    programs = "".join(f"[program:{name}]\ncommand=/bin/sleep 100000\n" for name in ("web1", "web2", "db"))
    with daemon(tmp_path, programs) as running:
        conf = tmp_path / "client.conf"
        conf.write_text(
            f"[supervisorctl]\nserverurl=unix://{running.socket}\n[ctlplugin:wildcards]\n"
            "supervisor.ctl_factory=supervisorwildcards.controllerplugin:make_wildcards_controllerplugin\n"
        )
        for name in ("web1", "web2", "db"):
            running.until_state(name, "RUNNING")

        said = _run(clients / "supervisorctl", "-c", str(conf), "mstop", "web*")

        assert sorted(said.split()[:4]) == ["stopped", "stopped", "web1:", "web2:"]
        assert {name: running.status(name)["state"] for name in ("web1", "web2", "db")} == {
            "web1": "STOPPED",
            "web2": "STOPPED",
            "db": "RUNNING",
        }


def test_mr_laforge_starts_what_is_down(clients: Path, tmp_path: Path):
    with daemon(tmp_path, "[program:web]\ncommand=/bin/sleep 100000\nautostart=false\n") as running:
        conf = tmp_path / "client.conf"
        conf.write_text(f"[supervisorctl]\nserverurl=unix://{running.socket}\n")
        settings = {"MR_LAFORGE_SUPERVISOR_ARGS": f"-c {conf}"}

        said = _run(clients / "supervisorup", "web", **settings)

        assert said == "Starting web\n"
        assert running.status("web")["state"] == "RUNNING"


def _run(command: Path, *arguments: str, **settings: str) -> str:
    done = subprocess.run(
        [command, *arguments],
        env={**SETTINGS, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
