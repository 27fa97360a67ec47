"""tail and maintail."""

import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervisor.ctl.main import main
from tests.ctl.conftest import CTL


def test_tail_is_the_end_of_the_log(daemon, ctl):
    daemon.logs["web", "stdout"] = b"x" * 2000 + b"end\n"

    result = ctl("tail", "web")

    assert result.out.endswith("end\n\n")
    assert len(result.out) == 1600 + 1


def test_tail_takes_bytes_and_channel(daemon, ctl):
    daemon.logs["web", "stderr"] = b"0123456789"

    assert ctl("tail", "-4", "web", "stderr").out == "6789\n"


@pytest.mark.parametrize("words", [["--attempt", "3", "web"], ["web", "--attempt=3", "stdout"]])
def test_tail_shows_one_attempt(daemon, ctl, words):
    daemon.logs["web", "stdout"] = b"all of it\n"
    daemon.logs["web", "stdout", "3"] = b"of the third\n"

    assert ctl("tail", *words).out == "of the third\n\n"


def test_maintail_is_the_daemons_own(daemon, ctl):
    daemon.logs["supervisord", "stdout"] = b"started\n"

    assert ctl("maintail").out == "started\n\n"


def test_bytes_that_are_no_text_are_replaced(daemon, ctl):
    daemon.logs["web", "stdout"] = b"\xff ok \xc3"

    assert ctl("tail", "web").out == "\ufffd ok \ufffd\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tail", "nope"], "nope: ERROR (no such process name)"),
        (["tail", "-f", "nope"], "nope: ERROR (no such process name)"),
        (["tail", "web", "stderr"], "web: ERROR (no log file)"),
        (["tail", "web", "both"], "Error: bad channel 'both'"),
        (["tail", "-x", "web"], "Error: bad argument -x"),
        (["tail", "web", "--attempt"], "Error: --attempt needs the number of an attempt; `history` lists them"),
        (["tail", "--attempt=x", "web"], "Error: --attempt needs the number of an attempt; `history` lists them"),
        (["tail", "-f", "--attempt=1", "web"], "Error: -f shows what is printed from now on; leave out --attempt"),
        (["tail"], "Error: too few arguments"),
        (["tail", "a", "b", "c"], "Error: too many arguments"),
    ],
)
def test_log_that_can_not_be_shown_exits_with_1(daemon, ctl, words, line):
    daemon.logs["web", "stdout"] = b"x"

    result = ctl(*words)

    assert (result.out.splitlines()[0], result.status) == (line, 1)


@pytest.mark.integration
def test_following_shows_what_is_added_until_ctrl_c(daemon):
    daemon.logs["web", "stdout"] = b"so far\n"
    command = [*CTL, "-s", daemon.url, "tail", "-f", "web"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        seen = [process.stdout.readline() for _ in range(2)]
        daemon.grow.set()
        added = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        status = process.wait(60)

    assert seen == ["==> Press Ctrl-C to exit <==\n", "so far\n"]
    assert added == "one more line\n"
    assert status == 0


def test_as_json_a_log_is_a_text_and_following_has_no_such_form(daemon, ctl):
    daemon.logs["job", "stdout"] = b"loss 0.5\n\x1b[0m"

    log = json.loads(ctl("tail", "job", "--json").out)

    assert log == {"schema": 1, "name": "job", "channel": "stdout", "text": "loss 0.5\n\x1b[0m"}
    assert "has no JSON form" in json.loads(ctl("tail", "-f", "job", "--json").out)["error"]
    assert "has no JSON form" in json.loads(ctl("fg", "job", "--json").out)["error"]


@pytest.mark.parametrize("words", [["bogus"], ["tail", "nope"], ["start"], ["story", "a", "b"], ["status"]])
def test_as_json_whatever_goes_wrong_is_an_object_too(daemon, ctl, words):
    result = ctl("--json", *words)

    answer = json.loads(result.out)
    assert result.status != 0 and answer["error"]
    assert json.loads(ctl(*words, "--json").out) == answer


def test_as_json_help_is_a_text(ctl):
    assert "checkpoint" in json.loads(ctl("help", "--json").out)["text"]


def test_a_daemon_that_leaves_while_its_log_is_followed_is_said_to(tmp_path, capsys):
    path = tmp_path / "short.sock"

    def leave_in_the_midst(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nlast\n\r\n")

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
        listener.bind(str(path))
        listener.listen()
        pool.submit(leave_in_the_midst, listener)
        status = main(["-s", f"unix://{path}", "tail", "-f", "web"])

    assert status == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "last",
        f"unix://{path} closed the connection; supervisord may have exited",
    ]
