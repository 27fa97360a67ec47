"""The interactive shell, completion and status --watch, on a real terminal."""

import io
import os
import signal
import subprocess
import sys
import threading

import pexpect
import pytest
from rich.console import Console

from supervisor.ctl import watch
from tests.ctl.conftest import CTL
from tests.ctl.daemon_end import DaemonEnd, down, job, program

COLUMNS = 140


def spawn(daemon, *arguments: str) -> pexpect.spawn:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS)}
    words = [*CTL[1:], "-s", daemon.url, *arguments]
    return pexpect.spawn(CTL[0], words, env=environment, dimensions=(30, COLUMNS), timeout=60, encoding="utf-8")


def leave(shell: pexpect.spawn) -> None:
    """Ends the shell as a person does: an end of input that is typed before the prompt is lost to the terminal."""
    shell.expect("supervisor> ")
    shell.sendeof()
    shell.expect(pexpect.EOF)


@pytest.mark.integration
def test_the_shell_begins_with_the_status_and_does_what_is_typed(daemon, tmp_path):
    daemon.answers |= {"status": {"programs": [program("web")]}, "version": {"version": "9.9.9"}}
    history = tmp_path / "history"
    shell = spawn(daemon, "-r", str(history))

    shell.expect("web +RUNNING +pid 4242")
    shell.expect("supervisor> ")
    shell.sendline("version")
    shell.expect("9.9.9")
    shell.sendline("bogus")
    shell.expect("Unknown syntax: bogus")
    shell.sendline("?tail")
    shell.expect("tail .* NAME")
    shell.sendline("quit")
    shell.expect(pexpect.EOF)
    shell.close()

    assert shell.exitstatus == 0
    assert "version" in history.read_text()


@pytest.mark.integration
def test_the_end_of_the_input_leaves_no_prompt_in_the_last_line(daemon):
    daemon.answers["status"] = {"programs": []}
    shell = spawn(daemon)

    shell.expect("supervisor> ")
    shell.sendeof()
    shell.expect(pexpect.EOF)

    assert shell.before.endswith("\n")


@pytest.mark.integration
def test_the_shell_asks_before_it_shuts_down(daemon):
    daemon.answers |= {"status": {"programs": []}, "shutdown": {}}
    shell = spawn(daemon)

    shell.expect("supervisor> ")
    shell.sendline("shutdown")
    shell.expect("Really shut the remote supervisord process down y/N")
    shell.sendline("n")
    shell.expect("supervisor> ")
    asked = [command for command, _ in daemon.asked]
    shell.sendline("shutdown")
    shell.expect("y/N")
    shell.sendline("y")
    shell.expect("Shut down")
    leave(shell)

    assert "shutdown" not in asked


@pytest.mark.integration
def test_the_shell_asks_for_the_login_until_it_is_right(daemon):
    daemon.answers |= {"status": {"programs": [program("web")]}, "version": {"version": "9.9.9"}}
    daemon.login = "ann:let me in"
    shell = spawn(daemon)

    for password in ("wrong", "let me in"):
        shell.expect("Server requires authentication")
        shell.expect("Username:")
        shell.sendline("ann")
        shell.expect("Password:")
        shell.waitnoecho()
        shell.sendline(password)
    shell.expect("web +RUNNING +pid 4242")
    shell.sendline("version")
    shell.expect("9.9.9")
    shell.sendline("quit")
    shell.expect(pexpect.EOF)

    assert "let me in" not in shell.before


@pytest.mark.integration
def test_without_the_shell_nobody_is_asked_for_the_login(daemon, ctl):
    daemon.answers["status"] = {"programs": [program("web")]}
    daemon.login = "ann:let me in"

    for action in ("status", "pid", "version", "start", "events", "top"):
        result = ctl(action, *(["web"] if action == "start" else []))
        assert result.out.startswith("Server requires authentication; give user name and password")
        assert result.status == 1
    assert ctl("-u", "ann", "-p", "let me in", "status").status == 0


@pytest.mark.integration
def test_open_takes_the_shell_to_another_daemon(daemon, tmp_path):
    daemon.answers["status"] = {"programs": [program("here")]}
    with DaemonEnd(tmp_path / "other.sock") as other:
        other.answers |= {"status": {"programs": [program("there")]}, "version": {"version": "8.8.8"}}
        shell = spawn(daemon)

        shell.expect("here +RUNNING")
        shell.sendline("open ftp://x")
        shell.expect("ERROR: url must be http:// or unix://")
        shell.sendline(f"open {other.url}")
        shell.expect("there +RUNNING")
        shell.sendline("version")
        shell.expect("8.8.8")
        leave(shell)


@pytest.mark.integration
def test_an_action_of_the_interactive_client_is_asked_about(daemon):
    daemon.answers["shutdown"] = {}
    asked = spawn(daemon, "-i", "shutdown")

    asked.expect("y/N")
    asked.sendline("n")
    asked.expect(pexpect.EOF)

    assert daemon.asked == []


@pytest.mark.integration
@pytest.mark.parametrize("option", ["-h", "-?", "--help"])
def test_help_is_help_by_each_of_its_names(option):
    result = subprocess.run([*CTL, option], capture_output=True, text=True, timeout=60, check=True)

    assert "restart --rolling NAME" in result.stdout


@pytest.mark.integration
def test_tab_completes_actions_and_programs(daemon):
    daemon.answers |= {"status": {"programs": [program("digits")]}, "history": {"attempts": []}}
    shell = spawn(daemon)

    shell.expect("supervisor> ")
    shell.send("hist\tdig\t\n")
    shell.expect("no attempts yet")
    leave(shell)

    assert daemon.asked[-1] == ("history", {"name": "digits", "limit": 20})


@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("supervisorctl chec", {"checkpoint", "checkpoints"}),
        ("supervisorctl -s {url} stop ", {"digits", "web", "all"}),
        ("supervisorctl -s {url} start ", {"digits", "web", "all", "--from-scratch", "--from-step"}),
        ("supervisorctl -s {url} restart ", {"digits", "web", "all", "--rolling", "--discard"}),
        ("supervisorctl -s {url} start --from", {"--from-scratch", "--from-step"}),
        ("supervisorctl -s {url} start web --", {"--from-scratch", "--from-step"}),
        ("supervisorctl -s {url} restart --r", {"--rolling"}),
        ("supervisorctl --j", {"--json"}),
        ("supervisorctl completion ", {"bash", "zsh", "fish"}),
        ("supervisorctl -s {url} update ", {"digits", "web", "all", "--discard"}),
        ("supervisord --check", {"--check-config"}),
    ],
)
def test_the_shells_completion_knows_actions_and_programs(daemon, tmp_path, line, expected):
    daemon.answers["status"] = {"programs": [program("digits"), program("web")]}
    line, answers = line.format(url=daemon.url), tmp_path / "answers"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }

    command = CTL if line.startswith("supervisorctl") else [sys.executable, "-m", "supervisor.daemon"]
    subprocess.run(command, env=environment, timeout=60, check=False)

    assert {answer.strip() for answer in answers.read_text().split("\n")} == expected


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_reads(shell):
    result = subprocess.run(
        [*CTL, "--json", "completion", shell], capture_output=True, text=True, timeout=60, check=True
    )

    assert "supervisorctl" in result.stdout
    assert "supervisord" in result.stdout.replace("supervisorctl", "")


@pytest.mark.integration
def test_completion_into_a_pipe_that_nobody_reads_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [*CTL, "completion", "bash"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writing)

    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.integration
def test_watch_draws_bars_and_leaves_cleanly_on_ctrl_c(daemon):
    daemon.answers["status"] = {"programs": [program("digits", job=job())]}
    live = spawn(daemon, "status", "--watch")

    live.expect("digits.*RUNNING.*250/1000")
    live.sendintr()
    live.expect(pexpect.EOF)
    live.close()

    assert live.exitstatus == 0
    assert "Traceback" not in live.before


@pytest.mark.integration
def test_watch_without_a_terminal_prints_lines_when_they_change(daemon):
    looks = threading.Semaphore(0)

    def status(_):
        looks.release()
        return {"programs": [down("web")]}

    daemon.answers["status"] = status
    with subprocess.Popen([*CTL, "-s", daemon.url, "status", "--watch"], stdout=subprocess.PIPE, text=True) as process:
        looked = [looks.acquire(timeout=30) for _ in range(3)]
        daemon.answers["status"] = {"programs": [program("web")]}
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        status = process.wait(60)

    assert looked == [True] * 3
    assert lines[:2] == ["web                              STOPPED   Not started\n", "\n"]
    assert lines[2].startswith("web                              RUNNING")
    assert status == 0


@pytest.mark.integration
def test_watch_waits_for_a_daemon_that_is_away(tmp_path):
    end = DaemonEnd(tmp_path / "late.sock")
    end.answers["status"] = {"programs": [program("web")]}
    with subprocess.Popen([*CTL, "-s", end.url, "status", "-w"], stdout=subprocess.PIPE, text=True) as process:
        away = process.stdout.readline()
        with end:
            lines = [process.stdout.readline() for _ in range(2)]
            process.send_signal(signal.SIGINT)
            process.wait(60)

    assert away == f"{end.url} no such file\n"
    assert lines[1].startswith("web                              RUNNING")


def test_a_frame_tells_speed_time_left_and_the_age_of_the_checkpoint():
    drawn = io.StringIO()
    failed = program(
        "old", state="FAILED", wire_state="FATAL", wire_code=200, reason="out of memory", job=job(step=None)
    )

    Console(file=drawn, width=COLUMNS).print(watch.frame([program("digits", job=job()), failed], ["x: ERROR"], 1_000.0))

    first, second, third = drawn.getvalue().splitlines()[1:]
    assert "250/1000  2        0:06:15  200, 0:00:10 ago  loss=0.25" in first
    assert "out of memory" in second
    assert third.strip() == "x: ERROR"


def test_a_frame_names_the_newest_step_in_memory_beside_that_on_the_disk():
    drawn = io.StringIO()
    jobs = [program("a", job=job(memory_step=12_204)), program("b", job=job(memory_step=12_204, checkpoint=None))]

    Console(file=drawn, width=150).print(watch.frame(jobs, [], 1_000.0))

    first, second = drawn.getvalue().splitlines()[1:]
    assert "newest: step 12,204 in memory, 200 on disk; loss=0.25" in first
    assert "newest: step 12,204 in memory, none on disk; loss=0.25" in second


def test_a_frame_fits_80_columns_and_shows_the_stage_of_a_start():
    long = program("resnet50:resnet50_long_name_03", job=job(step=1_234_567, total_steps=9_999_999, step_s=0.05))
    begun = program(
        "digits", wire_state="STARTING", wire_code=10, description="pid 4242, restored step-7.a1, tracing", job=job()
    )
    drawn = io.StringIO()

    Console(file=drawn, width=80).print(watch.frame([long, begun], [], 1_000.0, 80))

    lines = drawn.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "1234k/9999k  20       5d 1h  0:00:10" in lines[1]
    assert "0:00:10" in lines[1]
    assert lines[-1] == "digits: restored step-7.a1, tracing"


@pytest.mark.integration
def test_watch_and_json_exclude_each_other(ctl):
    assert "use one of them" in ctl("status", "--watch", "--json").out


@pytest.mark.integration
def test_help_lists_every_action_and_explains_each(ctl):
    listed = ctl("help").out

    assert "checkpoints" in listed
    assert ctl("help", "history").out.startswith("history NAME")
    assert ctl("help", "completion").out.startswith("completion bash|zsh|fish")
    assert ctl("start", "--help").out.startswith("start NAME ...")
    assert ctl("help", "bogus").status == 1


@pytest.mark.integration
@pytest.mark.parametrize("word", ["exit", "quit"])
def test_words_that_leave_the_shell_are_known_outside_of_it(ctl, word: str):
    assert (ctl(word).status, ctl(word).out) == (0, "")
    assert ctl("help", word).out == f"{word}  Exit the supervisor shell.\n"
    assert word in ctl("help").out
