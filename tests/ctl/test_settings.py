"""Where supervisorctl finds the daemon."""

import base64
import os
import pty
import signal
import socket
import sys
from pathlib import Path

import pytest

from supervisor.ctl.main import main
from supervisor.ctl.settings import DEFAULT_URL, Options, SettingsError, settings


def written(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "supervisord.conf"
    path.write_text(text)
    return Options(configuration=path)


def test_the_file_says_url_prompt_and_history(tmp_path):
    text = "[supervisorctl]\nserverurl = unix://%(here)s/%(ENV_X)s.sock ; here\nprompt = gpu1\nhistory_file = h\n"

    own = settings(written(tmp_path, text), {"X": "ctl"})

    assert (own.url, own.prompt) == (f"unix://{tmp_path}/ctl.sock", "gpu1")
    assert own.history_file == tmp_path / "h"


def test_the_socket_of_the_daemon_is_the_default(tmp_path):
    own = settings(written(tmp_path, "[unix_http_server]\nfile = run/ctl.sock\n"), {})

    assert own.url == f"unix://{tmp_path}/run/ctl.sock"


def test_a_mistake_in_a_program_does_not_matter_here(tmp_path):
    own = settings(written(tmp_path, "[program:x]\nnonsense = %(ENV_NONE)s\n[supervisorctl]\n"), {})

    assert own.url == DEFAULT_URL


def test_a_byte_that_is_not_utf8_does_not_matter_here(tmp_path):
    path = tmp_path / "supervisord.conf"
    path.write_bytes("; größe\n[unix_http_server]\nfile = run/ctl.sock\n".encode("latin-1"))

    assert settings(Options(configuration=path), {}).url == f"unix://{tmp_path}/run/ctl.sock"


def test_included_files_are_not_looked_at(tmp_path):
    (tmp_path / "more.ini").write_text("[supervisorctl]\nprompt = other\n")

    own = settings(written(tmp_path, "[include]\nfiles = more.ini\n[supervisorctl]\n"), {})

    assert own.prompt == "supervisor"


def test_options_win_over_the_file(tmp_path):
    options = written(tmp_path, "[supervisorctl]\nserverurl = http://a:1\nusername = u\n")

    own = settings(Options(options.configuration, url="http://b:2", username="v"), {})

    assert (own.url, own.username) == ("http://b:2", "v")


@pytest.mark.parametrize("url", ["x", "unix://", "unix://a/b", "http://", "https://a", "http://a:b", "file:///x"])
def test_server_url_must_be_a_url(url):
    with pytest.raises(SettingsError, match="is not a URL"):
        settings(Options(url=url), {})


def test_a_mistake_of_the_files_is_not_said_to_be_an_options(tmp_path):
    with pytest.raises(SettingsError, match=r"invalid value for \[supervisorctl\] serverurl 'gpu1:9001'"):
        settings(written(tmp_path, "[supervisorctl]\nserverurl = gpu1:9001\n"), {})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nope", "status"], "option --nope not recognized"),
        (["-c", "/none", "status"], "could not find config file /none"),
        (["-s", "x", "status"], "invalid value for -s 'x': value 'x' is not a URL"),
        (["completion", "tcsh"], "completion requires one of bash, zsh, fish"),
    ],
)
def test_bad_options_end_with_2_and_say_where_help_is(capsys, arguments, text):
    try:
        status = main(arguments)
    except SystemExit as leaving:
        status = leaving.code

    error = capsys.readouterr().err
    assert error.startswith(f"Error: {text}")
    assert "For help, use" in error
    assert status == 2


def test_a_file_without_the_section_is_refused(tmp_path, capsys):
    options = written(tmp_path, "[supervisord]\n")

    assert main(["-c", str(options.configuration), "status"]) == 2
    assert ".ini file does not include supervisorctl section" in capsys.readouterr().err


def test_password_may_be_the_first_line_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "word").write_text(" let: me in \nsomething else\n")

    own = settings(Options(url="http://a:1", username="u", password_file=tmp_path / "word"), {})

    assert own.password == " let: me in "


def test_password_file_that_gives_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for name, reason in (("missing", "No such file or directory"), ("empty", "its first line is empty")):
        with pytest.raises(SettingsError, match=rf"cannot read the password from .*{name}: {reason}; "):
            settings(Options(url="http://a:1", password_file=tmp_path / name), {})
    with pytest.raises(SettingsError, match="exclude each other"):
        settings(Options(url="http://a:1", password="x", password_file=tmp_path / "empty"), {})


@pytest.mark.integration
def test_password_is_asked_for_on_a_terminal(tmp_path: Path) -> None:
    """With a user name and no password; the server is one that tells what it was given."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        child, terminal = pty.fork()
        if child == 0:  # pragma: no cover - another process
            os.execv(sys.executable, [sys.executable, "-m", "supervisor.ctl.main", "-s", url, "-u", "ann", "status"])
        try:
            asked = b""
            while b"Password of ann:" not in asked:
                asked += os.read(terminal, 1000)
            os.write(terminal, b"let me in\n")
            server.settimeout(30.0)
            connection, _ = server.accept()
            with connection:
                request = connection.recv(10_000)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)

    assert base64.b64encode(b"ann:let me in") in request


def test_without_a_daemon_the_origin_of_the_address_is_said(tmp_path, capsys, monkeypatch):
    path = tmp_path / "supervisord.conf"
    path.write_text("[unix_http_server]\nfile = run/ctl.sock\n")

    assert main(["-c", str(path), "status"]) == 4
    assert f"supervisord is not running there; the address is that of {path}" in capsys.readouterr().err

    path.write_text("[supervisorctl]\n")
    assert main(["-c", str(path), "pid"]) == 4
    assert f"{path} names no address, so it is Supervisor's default" in capsys.readouterr().err
