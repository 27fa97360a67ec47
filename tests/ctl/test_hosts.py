"""One action on the daemons of several hosts, some of which don't answer as daemons do."""

import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ctl import many
from supervisor.ctl.actions.table import TABLE
from supervisor.ctl.client import Client
from supervisor.ctl.hosts import Host, limit_hosts, read_hosts
from supervisor.ctl.main import main
from supervisor.ctl.settings import SettingsError
from supervisor.ctl.terminal import Terminal
from tests.ctl.conftest import Result
from tests.ctl.daemon_end import DaemonEnd, Fault, down, program

GARBAGE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[dict[str, DaemonEnd]]:
    """Two daemons; `hosts` is their file."""
    with DaemonEnd(tmp_path / "a.sock") as first, DaemonEnd(tmp_path / "b.sock") as second:
        (tmp_path / "hosts").write_text(f"# the fleet\nfirst {first.url}\n\nsecond  {second.url}  # new\n")
        first.answers["status"] = {"programs": [program("web"), down("old")]}
        second.answers["status"] = {"programs": [program("job"), program("bad", wire_state="FATAL", wire_code=200)]}
        yield {"first": first, "second": second}


@pytest.fixture
def ctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        status = main(["--hosts", str(tmp_path / "hosts"), *arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return call


def add(folder: Path, line: str) -> None:
    with (folder / "hosts").open("a") as hosts:
        hosts.write(f"{line}\n")


def listening(answer: bytes | None) -> Iterator[str]:
    """The address of what accepts connections, and says this or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                kept.append(client)
                if answer is not None:
                    client.sendall(answer)
                    client.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in kept:
            client.close()


@pytest.fixture
def silent() -> Iterator[str]:
    yield from listening(None)


@pytest.fixture
def babbling() -> Iterator[str]:
    yield from listening(GARBAGE + b'{"result": {"programs": [{"no": "name"}, 7]}}')


def test_status_begins_with_what_is_wrong_whichever_host_has_it(two, ctl):
    shown = ctl("status")

    assert [line.split()[:3] for line in shown.out.splitlines()] == [
        ["second", "bad", "FATAL"], ["first", "old", "STOPPED"],
        ["first", "web", "RUNNING"], ["second", "job", "RUNNING"],
    ]  # fmt: skip
    assert (shown.status, shown.err) == (
        3, "remark: 2 hosts, 0 of them without an answer; 4 programs, 2 of them down\n"
    )  # fmt: skip


def test_without_an_action_it_is_the_status(two, ctl):
    assert ctl().out == ctl("status").out


def test_a_name_that_one_host_has_is_known_and_one_that_none_has_is_not(two, ctl):
    shown = ctl("status", "web", "nope")

    assert shown.out.splitlines()[0] == "nope: ERROR (no such process)"
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["first", "web"]]


def test_dead_hosts_come_first_with_their_reason_and_hold_up_nobody(two, tmp_path, silent, babbling):
    add(tmp_path, f"gone unix://{tmp_path}/none.sock\nsilent {silent}\nbabbling {babbling}")
    out, err = io.StringIO(), io.StringIO()
    began = time.monotonic()

    def connect(host: Host, out: TextIO, err: TextIO) -> Terminal:
        return Terminal(Client(host.url), out, err)

    answers = many.run_on_all(read_hosts(tmp_path / "hosts"), connect, "status", [], within_s=1.0)

    assert time.monotonic() - began < 5.0
    status = many.print_answers(Terminal(Client(""), out, err), "status", answers)
    lines = [line.split(maxsplit=2) for line in out.getvalue().splitlines()]
    reasons = {name: text for name, state, text in lines if state == "UNKNOWN"}
    assert {*reasons} == {"gone", "silent", "babbling"} == {name for name, *_ in lines[:3]}
    assert "no such file" in reasons["gone"] and "no answer within 1 s" in reasons["silent"]
    assert "can't be understood" in reasons["babbling"]
    assert status == 4 and "5 hosts, 3 of them without an answer" in err.getvalue()


def test_json_has_an_object_for_each_host_with_its_result_or_its_error(two, ctl, tmp_path):
    add(tmp_path, f"gone unix://{tmp_path}/none.sock")

    first, second, gone = json.loads(ctl("--json", "status").out)["hosts"]

    assert (first["host"], first["error"], first["exit_status"]) == ("first", None, 3)
    assert [row["name"] for row in second["result"]["programs"]] == ["job", "bad"]
    assert gone["result"] is None and "no such file" in gone["error"]


def test_another_action_has_its_lines_with_their_host(two, ctl):
    for number, end in enumerate(two.values()):
        end.answers["pid"] = {"pid": 100 + number}

    assert ctl("pid").out.splitlines() == ["first   100", "second  101"]


def test_what_changes_something_needs_to_be_told_where(two, ctl):
    refused = ctl("stop", "web")
    assert refused.status == 2 and "--limit all" in refused.err
    assert all(not end.asked for end in two.values())


def test_what_holds_the_terminal_is_for_one_host(two, ctl):
    for arguments in (["top"], ["status", "--watch"], ["tail", "-f", "web"], ["-i"], ["-i", "status"]):
        refused = ctl(*arguments)
        assert refused.status == 2 and "--limit" in refused.err, arguments


def test_one_host_alone_is_as_with_its_address(two, ctl):
    shown = ctl("--limit", "first", "status")

    assert [line.split()[0] for line in shown.out.splitlines()] == ["web", "old"] and shown.err == ""


def test_a_refusal_of_one_host_is_its_own(two, ctl):
    two["first"].answers["pid"] = {"pid": 7}
    two["second"].answers["pid"] = Fault("SHUTDOWN_STATE", "it ends")

    shown = ctl("pid")

    assert sorted(shown.out.splitlines()) == ["first   7", "second  ERROR: supervisor shutting down"]
    assert shown.status == 1


def test_every_action_reads_follows_or_needs_a_limit():
    """A new action is not taken for one that reads."""
    assert TABLE.keys() >= many.READS and TABLE.keys() >= many.FOLLOWS and not many.READS & many.FOLLOWS
    acts = {name for name in TABLE if many.refusal(name, [], is_limited=True) is None} - many.READS - many.TOGETHER
    assert acts == {
        "add", "checkpoint", "clear", "completion", "drill", "export", "help", "reload", "remove", "reread", "restart",
        "rotate", "shutdown", "signal", "start", "stop", "update",
    }  # fmt: skip
    for arguments in (["--return", "GPU-a"], ["--return=GPU-a"]):
        assert many.refusal("gpus", arguments, is_limited=False) is not None


# --- the file ---


def test_names_addresses_and_comments_are_read(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("gpu-1\n  gpu-2 http://10.0.0.2:9100 # rack 2\nhttp://gpu-3:9001\nunix:///run/s.sock\n#gpu-4\n")

    assert read_hosts(path) == (
        Host("gpu-1", "http://gpu-1:9001"),
        Host("gpu-2", "http://10.0.0.2:9100"),
        Host("gpu-3", "http://gpu-3:9001"),
        Host("/run/s.sock", "unix:///run/s.sock"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("a http://a:1 b", "too many words"),
        ("a ftp://a", "is no address"),
        ("a a:9001", "is no address"),
        ("a http://me:secret@a:1", "-u and --password-file"),
        ("a\nb\na", "named in line 1 already"),
        ("all", "can't name a host"),
        ("a,b", "can't name a host"),
        ("a http://a:0", "is no address"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, words: str):
    (tmp_path / "hosts").write_text(text)

    with pytest.raises(SettingsError, match=words):
        read_hosts(tmp_path / "hosts")


def test_a_file_that_others_may_change_is_refused(tmp_path: Path):
    (tmp_path / "hosts").write_text("a\n")
    (tmp_path / "hosts").chmod(0o666)

    with pytest.raises(SettingsError, match="hosts"):
        read_hosts(tmp_path / "hosts")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"cannot read the hosts from .*none"):
        read_hosts(tmp_path / "none")


@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(content)
    try:
        hosts = read_hosts(path)
    except SettingsError:
        return
    assert hosts and len({host.name for host in hosts}) == len(hosts)


HOSTS = (Host("a", "http://a:1"), Host("b", "http://b:1"))


def test_the_limit_chooses_in_its_order_once_each():
    assert limit_hosts(HOSTS, None) == limit_hosts(HOSTS, "all") == HOSTS
    assert limit_hosts(HOSTS, "b,a,b") == HOSTS[::-1]


@pytest.mark.parametrize("limit", ["c", "a,c", "", ","])
def test_a_limit_that_names_nobody_is_refused(limit: str):
    with pytest.raises(SettingsError, match="it has a, b"):
        limit_hosts(HOSTS, limit)
