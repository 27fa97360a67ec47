"""What programs print reaches their logs whoever dies: the daemon, or the process that keeps the logs."""

import gzip
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.host.logs.capture import CLEAR_TIMEOUT_S
from tests.reading import alive, content
from tests.system.harness import TRAINER, Daemon, Refused
from tests.waiting import wait_until

COUNTER = TRAINER.with_name("counter.py")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with a program that prints without end; the program is ended too if the daemon was killed."""
    programs = (
        f"[program:counter]\ncommand={sys.executable} {COUNTER} {tmp_path}/stop\nautorestart=false\n"
        f"stdout_logfile={tmp_path}/out.log\nstdout_logfile_maxbytes=0\n"
    )
    with Daemon(tmp_path, programs) as made:
        pid = made.until_state("counter", "RUNNING")["pid"]
        made.until(lambda: len(lines(made)) > 100, "it prints")
        yield made
    if alive(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lines(daemon: Daemon) -> list[bytes]:
    return content(daemon.folder / "out.log").splitlines()


def logger_pid(daemon: Daemon) -> int | None:
    """The pid of the logger, None if it is dead or has just begun."""
    text = (daemon.folder / "state" / "log-keeper.lock").read_text()
    return int(text) if text and alive(int(text)) else None


def kill(daemon: Daemon) -> None:
    daemon.die()


def end_program(daemon: Daemon) -> int:
    """Has the program end by itself, and gives how many lines it says that it printed."""
    (daemon.folder / "stop").touch()
    said = daemon.folder / "stop.printed"
    daemon.until(lambda: content(said), "the program has ended by itself")
    return int(said.read_text())


def until_last(daemon: Daemon, number: int) -> list[bytes]:
    last = b"line %09d" % number
    daemon.until(lambda: lines(daemon)[-1] == last, f"line {number} is in the log")
    return lines(daemon)


def test_program_goes_on_and_no_line_is_lost_though_the_daemon_is_killed(daemon: Daemon):
    pid = daemon.status("counter")["pid"]

    kill(daemon)
    printed = len(lines(daemon))
    daemon.until(lambda: len(lines(daemon)) > printed + 1000, "it prints without a daemon")
    assert alive(pid)
    kept_by = logger_pid(daemon)
    count = end_program(daemon)

    assert until_last(daemon, count) == [b"line %09d" % (number + 1) for number in range(count)]
    daemon.until(lambda: logger_pid(daemon) is None, "the logger has ended with its last pipe")
    assert kept_by is not None


def test_the_next_daemon_goes_on_with_the_same_logger(daemon: Daemon):
    before = daemon.until(lambda: logger_pid(daemon), "there is a logger")

    kill(daemon)
    daemon.start()
    printed = len(lines(daemon))
    daemon.until(lambda: len(lines(daemon)) > printed + 100, "what it prints is in the log")

    assert logger_pid(daemon) == before
    assert daemon.stop() == 0
    daemon.until(lambda: logger_pid(daemon) is None, "it has taken the logger along")


def test_program_goes_on_though_the_logger_is_killed_and_what_follows_is_in_the_log(daemon: Daemon):
    pid = daemon.status("counter")["pid"]
    before = daemon.until(lambda: logger_pid(daemon), "there is a logger")

    os.kill(before, signal.SIGKILL)
    after = daemon.until(lambda: {logger_pid(daemon)} - {None, before}, "there is another logger")
    printed = len(lines(daemon))
    daemon.until(lambda: len(lines(daemon)) > printed + 1000, "what it prints is in the log")
    assert daemon.status("counter")["pid"] == pid
    count = end_program(daemon)

    assert after
    numbers = [int(each[5:]) for each in until_last(daemon, count) if re.fullmatch(rb"line \d{9}", each)]
    gaps = [(one, two) for one, two in itertools.pairwise(numbers) if two != one + 1]
    assert len(gaps) <= 1, gaps  # what the dead one had read and not yet written


def test_a_reload_goes_on_with_the_same_logger_while_somebody_holds_a_pipe(tmp_path: Path):
    script, pids = tmp_path / "leaves-a-sleeper", tmp_path / "pids"
    script.write_text(f"#!/bin/sh\nsleep 300 &\necho $! >> {pids}\nexec sleep 300\n")
    script.chmod(0o755)
    pids.touch()
    try:
        with Daemon(tmp_path, f"[program:leaver]\ncommand={script}\n") as daemon:
            daemon.until_state("leaver", "RUNNING")
            before = daemon.until(lambda: logger_pid(daemon), "there is a logger")

            daemon.call("reload")
            daemon.until(lambda: "logger.found" in daemon.errors(), "the fresh daemon has found a logger")
            daemon.until(daemon._answers, "it answers")
            daemon.until_state("leaver", "RUNNING")

            assert logger_pid(daemon) == before
    finally:
        for pid in pids.read_text().split():  # nobody sweeps up after a program that is no job
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_output_of_an_earlier_attempt_is_shown_after_rotations_and_a_new_daemon(tmp_path: Path):
    script = tmp_path / "talker"
    script.write_text("#!/bin/sh\necho born $$\necho late $$ >&2\nexec sleep 1000\n")
    script.chmod(0o755)
    log = tmp_path / "talker.log"
    program = (
        f"[program:talker]\ncommand={script}\nstartsecs=0\nautorestart=true\nredirect_stderr=true\n"
        f"stdout_logfile={log}\nstdout_logfile_compress=true\nstdout_logfile_backups=2\n"
    )
    with Daemon(tmp_path, program) as daemon:
        for attempt in range(1, 4):
            daemon.until(lambda: content(log).count(b"late") == attempt, "it has printed")  # noqa: B023 - at once
            os.kill(daemon.status("talker")["pid"], signal.SIGKILL)
        daemon.until(lambda: content(log).count(b"late") == 4, "it has printed")
        daemon.call("rotate", name="talker")
        daemon.until(log.with_name("talker.log.1.gz").exists, "the backup is compressed")
        printed = gzip.decompress(log.with_name("talker.log.1.gz").read_bytes()).splitlines(keepends=True)

        daemon.die()
        daemon.start()
        os.kill(daemon.until_state("talker", "RUNNING")["pid"], signal.SIGKILL)
        daemon.until(lambda: b"late" in content(log), "the next one has printed")
        last = daemon.call("history", name="talker")["attempts"][-1]["attempt"]

        shown = [daemon.tail("talker", attempt=number) for number in range(1, 5)]
        assert shown == [b"".join(printed[start : start + 2]) for start in range(0, 8, 2)]
        assert daemon.tail("talker", attempt=last) == content(log)
        with pytest.raises(Refused, match="attempt 99"):
            daemon.tail("talker", attempt=99)


@pytest.mark.skipif(Path("/dev/log").exists(), reason="would write into this machine's log")
def test_logs_that_can_not_be_cleared_hold_up_nothing_else(tmp_path: Path):
    programs = "[program:w]\ncommand=/bin/sleep 1000\nnumprocs=40\nprocess_name=%(process_num)d\n"
    names = [f"w:{number}" for number in range(40)]
    with Daemon(tmp_path, programs) as daemon, ThreadPoolExecutor(len(names)) as pool:
        daemon.until_state("w:39", "RUNNING")
        pid = daemon.until(lambda: logger_pid(daemon), "there is a logger")
        os.kill(pid, signal.SIGSTOP)
        connections = daemon.descriptors()
        try:
            clearing = [pool.submit(daemon.call, "clear", name=name) for name in names]
            daemon.until(lambda: daemon.descriptors() >= connections + len(names) // 2, "many are asked for")
            began = time.monotonic()
            daemon.call("history", name="w:0")
            took_s = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        wait(clearing)

    assert took_s < CLEAR_TIMEOUT_S / 2


def test_a_missing_system_log_is_told_and_costs_the_program_nothing(tmp_path: Path) -> None:
    program = f"[program:talker]\ncommand={sys.executable} {COUNTER} {tmp_path}/stop\nstdout_syslog=true\n"
    with Daemon(tmp_path, program) as daemon:
        daemon.until(
            lambda: "nobody listens at /dev/log" in daemon.status("talker")["description"], "status says what is wrong"
        )
        log = Path(daemon.status("talker")["stdout_logfile"])
        size = len(content(log))
        daemon.until(lambda: len(content(log)) > size, "its file grows on")


def test_rotated_logs_are_compressed_while_the_program_prints(tmp_path: Path):
    program = (
        "[program:p]\ncommand=sh -c 'seq 1 40000; exec sleep 1000'\nstdout_logfile=%(here)s/p.log\n"
        "stdout_logfile_maxbytes=64KB\nstdout_logfile_backups=9\nstdout_logfile_compress=true\n"
    )
    with Daemon(tmp_path, program) as daemon:
        wait_until(lambda: (tmp_path / "p.log").exists() and b"40000\n" in (tmp_path / "p.log").read_bytes())
        daemon.call("rotate", name="p")
        wait_until(lambda: not [each for each in tmp_path.glob("p.log.*") if each.suffix != ".gz"])

        numbered = sorted(tmp_path.glob("p.log.*.gz"), key=lambda path: -int(path.suffixes[-2][1:]))
        assert b"".join(gzip.decompress(each.read_bytes()) for each in numbered).split() == [
            str(number).encode() for number in range(1, 40001)
        ]
