"""What is sent to a program's standard input arrives, whoever's death comes between, and nothing waits for it."""

import os
import time
import xmlrpc.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.fuzzing import cases
from tests.reading import alive, content
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, Refused, job, let_others_in
from tests.system.test_adoption import reload

PROGRAMS = """[program:cat]
command=/bin/cat
[program:reopens]
command=/bin/cat /dev/stdin
[program:shut]
command=/bin/sh -c "exec 0<&-; exec sleep 1000"
[program:deaf]
command=/bin/sleep 100000
[program:off]
command=/bin/cat
autostart=false
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, PROGRAMS + job("train", tmp_path, STEPS=100000)) as daemon:
        for name in ("cat", "shut", "deaf", "reopens"):
            daemon.until_state(name, "RUNNING")
        yield daemon


def printed(daemon: Daemon, name: str) -> bytes:
    return content(Path(daemon.status(name)["stdout_logfile"]))


def until_printed(daemon: Daemon, name: str, text: bytes) -> None:
    daemon.until(lambda: text in printed(daemon, name), f"{name} prints {text!r}; it printed {printed(daemon, name)!r}")


def server(daemon: Daemon) -> xmlrpc.client.ServerProxy:
    return xmlrpc.client.ServerProxy("http://localhost", UnixTransport(daemon.socket))


def test_a_killed_daemon_is_no_end_of_the_input_and_the_next_one_writes_on(daemon: Daemon):
    pid = daemon.status("cat")["pid"]
    daemon.call("send_stdin", name="cat", chars="before\n")
    until_printed(daemon, "cat", b"before\n")
    descriptors = daemon.descriptors()

    daemon.die()
    daemon.start()
    daemon.until_state("cat", "RUNNING")
    daemon.call("send_stdin", name="cat", chars="after\n")

    until_printed(daemon, "cat", b"before\nafter\n")
    assert daemon.status("cat")["pid"] == pid and alive(pid)
    daemon.call("send_stdin", name="cat", chars="more\n")
    daemon.until(lambda: daemon.descriptors() <= descriptors + 2, "the daemon keeps nothing open to write there")


def test_unread_standard_input_survives_the_daemon(daemon: Daemon):
    pid = daemon.status("cat")["pid"]
    os.kill(pid, 19)
    daemon.call("send_stdin", name="cat", chars="kept\n")

    daemon.die()
    os.kill(pid, 18)
    daemon.start()

    daemon.until_state("cat", "RUNNING")
    until_printed(daemon, "cat", b"kept\n")


def test_a_reload_changes_nothing_for_who_writes(daemon: Daemon):
    pid = daemon.status("cat")["pid"]
    reload(daemon)
    daemon.until(lambda: _sent(daemon, "again\n"), "it takes input again")

    until_printed(daemon, "cat", b"again\n")
    assert daemon.status("cat")["pid"] == pid


def _sent(daemon: Daemon, chars: str) -> bool:
    try:
        daemon.call("send_stdin", name="cat", chars=chars)
    except (OSError, ValueError, Refused):
        return False
    return True


@pytest.mark.slow
def test_a_program_that_does_not_read_holds_nobody_up(daemon: Daemon):
    began_at = time.monotonic()
    with pytest.raises(Refused, match=r"FAILED.*65536 of 70000 bytes sent"):
        daemon.call("send_stdin", name="deaf", chars="x" * 70_000)
    assert time.monotonic() - began_at < 15

    daemon.call("send_stdin", name="cat", chars="others\n")

    until_printed(daemon, "cat", b"others\n")


def test_more_than_a_pipe_holds_arrives_whole_from_several_senders(daemon: Daemon):
    pieces = [bytes([letter]) * 150_000 + b"\n" for letter in b"abc"]
    with ThreadPoolExecutor(3) as senders:
        list(senders.map(lambda piece: daemon.call("send_stdin", name="cat", chars=piece.decode()), pieces))

    daemon.until(lambda: len(printed(daemon, "cat")) == 3 * 150_001, "all of it is printed")
    assert sorted(printed(daemon, "cat").splitlines(keepends=True)) == pieces


@pytest.mark.parametrize(
    ("name", "code"), [("nope", "BAD_NAME"), ("off", "NOT_RUNNING"), ("shut", "NO_FILE"), ("train", "NO_FILE")]
)
def test_standard_input_that_can_not_be_written_says_why(daemon: Daemon, name: str, code: str):
    daemon.until(lambda: daemon.status("train")["pid"], "the job is there")
    with pytest.raises(Refused) as refused:
        daemon.call("send_stdin", name=name, chars="x")
    assert refused.value.code == code

    with pytest.raises(xmlrpc.client.Fault, match=f"^<Fault [0-9]+: '{code}"):
        server(daemon).supervisor.sendProcessStdin(name, "x")


def test_supervisors_clients_send_text_and_bytes(daemon: Daemon):
    proxy = server(daemon)

    assert proxy.supervisor.sendProcessStdin("cat", "héllo ") is True
    assert proxy.supervisor.sendProcessStdin("cat:cat", xmlrpc.client.Binary(b"\x00\xff\n")) is True

    until_printed(daemon, "cat", "héllo ".encode() + b"\x00\xff\n")


def test_a_program_may_open_its_standard_input_by_name(daemon: Daemon):
    daemon.call("send_stdin", name="reopens", chars="by name\n")

    until_printed(daemon, "reopens", b"by name\n")


def test_nothing_is_left_of_an_input_whose_program_ended(daemon: Daemon):
    daemon.call("send_stdin", name="cat", chars="x\n")
    daemon.call("stop", name="cat")

    pipes = daemon.folder / "state" / "run" / "cat"
    daemon.until(lambda: not list(pipes.iterdir()), "its pipes are removed")
    daemon.call("start", name="cat")
    daemon.call("send_stdin", name="cat", chars="second\n")
    until_printed(daemon, "cat", b"second\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")
def test_another_users_program_reads_and_may_open_its_input(tmp_path: Path):
    let_others_in(tmp_path)
    with Daemon(tmp_path, "[program:cat]\ncommand=/bin/cat /dev/stdin\nuser=nobody\ndirectory=/\n") as daemon:
        daemon.until_state("cat", "RUNNING")
        daemon.call("send_stdin", name="cat", chars="hello nobody\n")

        until_printed(daemon, "cat", b"hello nobody\n")


ANYTHING = st.none() | st.booleans() | st.integers() | st.text() | st.binary().map(lambda each: each.decode("latin-1"))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("stdin"), "[program:sink]\ncommand=/bin/sh -c 'cat >/dev/null'\n") as daemon:
        daemon.until_state("sink", "RUNNING")
        yield daemon


@pytest.mark.fuzz
@cases(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["name", "chars", "base64"]), ANYTHING | st.just("sink")))
def test_anything_sent_is_taken_or_refused_by_name(lasting: Daemon, arguments: dict[str, object]):
    pid = lasting.status("sink")["pid"]

    try:
        lasting.call("send_stdin", **arguments)
    except Refused as refused:
        assert refused.code in {"BAD_ARGUMENTS", "BAD_NAME"}

    assert lasting.status("sink")["pid"] == pid
