"""`fg` on a terminal, against a whole daemon: a program is talked to, left, and found as it was."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from bench import peer
from tests.reading import alive
from tests.system.both import PEER_ENVIRONMENT
from tests.system.harness import Daemon

TIME_S = 60.0
TALK = (
    "import sys\\n"
    "print('ready', flush=True)\\n"
    "for line in sys.stdin:\\n"
    "    print('heard', line.strip(), flush=True)\\n"
    "    if line.strip() == 'die': sys.exit(3)\\n"
    "    print('complaint', line.strip(), file=sys.stderr, flush=True)\\n"
)
PROGRAMS = """[program:talker]
command={python} {folder}/talk.py
autorestart=false
[program:off]
command=/bin/cat
autostart=false
[program:silent]
command=/bin/cat
stdout_logfile=NONE
stderr_logfile=NONE
[program:thinker]
command=/bin/sh -c "echo ready; while read line; do sleep 2; echo thought of $line; done"
[program:mortal]
command=/bin/sh -c "read line; sleep 2"
autorestart=false
[program:deaf]
command=/bin/sh -c "exec 0<&-; exec sleep 1000"
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("fg")
    (folder / "talk.py").write_text(TALK.replace("\\n", "\n"))
    with Daemon(folder, PROGRAMS.format(python=sys.executable, folder=folder)) as daemon:
        for name in ("talker", "silent", "thinker", "mortal", "deaf"):
            daemon.until_state(name, "RUNNING")
        yield daemon


def ctl(daemon: Daemon, *arguments: str) -> pexpect.spawn:
    command = ["-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    return pexpect.spawn(sys.executable, command, env=dict(os.environ), encoding="utf-8", timeout=TIME_S)


def shows(terminal: pexpect.spawn, *texts: str) -> None:
    """Waits for all of them, in any order: standard output and error are two streams."""
    left = set(texts)
    while left:
        left.discard(sorted(left)[terminal.expect_exact(sorted(left))])


def test_a_program_is_talked_to_and_runs_on_after_ctrl_c(daemon: Daemon):
    pid = daemon.status("talker")["pid"]

    terminal = ctl(daemon, "fg", "talker")
    terminal.expect_exact("==> Press Ctrl-C to exit <==")
    terminal.expect_exact("ready")
    terminal.sendline("hé 1")
    shows(terminal, "heard hé 1", "complaint hé 1")
    terminal.sendintr()
    terminal.expect_exact("Exiting foreground")
    terminal.expect(pexpect.EOF)
    terminal.close()

    assert terminal.exitstatus == 0
    assert daemon.status("talker")["pid"] == pid and alive(pid)


def test_the_shell_goes_on_after_fg_and_shows_no_more_of_the_program(daemon: Daemon):
    connections = daemon.descriptors()
    terminal = ctl(daemon)
    terminal.expect_exact("supervisor> ")
    for word in ("one", "two"):
        terminal.sendline("fg talker")
        terminal.expect_exact("==> Press Ctrl-C to exit <==")
        terminal.expect_exact("ready")
        terminal.sendline(word)
        shows(terminal, f"heard {word}", f"complaint {word}")
        terminal.sendintr()
        terminal.expect_exact("Exiting foreground")
        terminal.expect_exact("supervisor> ")
    daemon.call("send_stdin", name="talker", chars="unseen\n")
    terminal.sendline("pid talker")
    terminal.expect_exact(f"{daemon.status('talker')['pid']}\r\n")

    assert "unseen" not in terminal.before
    terminal.expect_exact("supervisor> ")
    daemon.until(lambda: daemon.descriptors() <= connections, "its streams are closed")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)


def test_the_end_of_the_program_ends_fg_though_nothing_is_typed(daemon: Daemon):
    terminal = ctl(daemon, "fg", "talker")
    terminal.expect_exact("ready")
    terminal.sendline("die")
    terminal.expect_exact("heard die")
    terminal.expect_exact("Process got killed")
    terminal.expect_exact("Exiting foreground")
    terminal.expect(pexpect.EOF)

    daemon.until_state("talker", "EXITED")
    daemon.call("start", name="talker")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "ERROR: no process name supplied"),
        (("talker", "off"), "ERROR: too many process names supplied"),
        (("nope",), "ERROR: bad process name supplied"),
        (("off",), "ERROR: process not running"),
    ],
)
def test_fg_refuses_with_supervisors_messages(daemon: Daemon, arguments: tuple[str, ...], said: str):
    terminal = ctl(daemon, "fg", *arguments)
    terminal.expect_exact(said)
    terminal.expect(pexpect.EOF)
    terminal.close()

    assert terminal.exitstatus == 1


def test_a_program_that_closed_its_input_is_told(daemon: Daemon):
    terminal = ctl(daemon, "fg", "deaf")
    terminal.expect_exact("<==")
    terminal.sendline("hello")
    terminal.expect_exact("ERROR: NO_FILE: cannot write to deaf: the program has closed its standard input")
    terminal.expect_exact("Exiting foreground")
    terminal.expect(pexpect.EOF)


def test_lines_from_a_pipe_are_answered_before_fg_leaves(daemon: Daemon):
    command = f"printf 'piped\\nlast' | {sys.executable} -m supervisor.ctl.main -c {daemon.conf} fg talker"
    said, status = pexpect.run(f"/bin/sh -c {shlex.quote(command)}", withexitstatus=True, timeout=TIME_S)

    assert status == 0
    assert b"heard piped" in said and b"heard last" in said


def test_an_answer_that_takes_its_time_is_waited_for(daemon: Daemon):
    command = f"echo piped | {sys.executable} -m supervisor.ctl.main -c {daemon.conf} fg thinker"
    said, status = pexpect.run(f"/bin/sh -c {shlex.quote(command)}", withexitstatus=True, timeout=TIME_S)

    assert status == 0
    assert b"thought of piped" in said


def test_a_program_that_ends_by_what_a_pipe_sent_is_said_to(daemon: Daemon):
    command = f"echo die | {sys.executable} -m supervisor.ctl.main -c {daemon.conf} fg mortal"
    said, status = pexpect.run(f"/bin/sh -c {shlex.quote(command)}", withexitstatus=True, timeout=TIME_S)

    assert status == 0
    assert b"Process got killed" in said


def test_without_a_log_fg_says_so_and_still_sends(daemon: Daemon):
    terminal = ctl(daemon, "fg", "silent")
    terminal.expect_exact("it has no log files")
    terminal.sendline("hello")
    terminal.sendeof()
    terminal.expect_exact("Exiting foreground")
    terminal.expect(pexpect.EOF)


@pytest.mark.slow  # installs Supervisor, where that is not done yet
def test_supervisors_own_client_talks_to_a_program_too(daemon: Daemon):
    client = peer.binaries() / "supervisorctl"
    terminal = pexpect.spawn(
        str(client), ["-c", str(daemon.conf), "fg", "talker"], env=PEER_ENVIRONMENT, encoding="utf-8", timeout=TIME_S
    )
    shows(terminal, "==> Press Ctrl-C to exit <==", "ready")
    terminal.sendline("from afar")
    shows(terminal, "heard from afar", "complaint from afar")
    terminal.sendintr()
    terminal.expect_exact("Exiting foreground")
    terminal.close()

    assert daemon.status("talker")["state"] == "RUNNING"
