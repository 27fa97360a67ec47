"""The command line of supervisord: every option of Supervisor 4.3.0 is taken with its meaning, or refused by name."""

import re
from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load_config
from supervisor.config.options import overridden_keys, parse_arguments

STOCK = {
    "-c": "--configuration", "-n": "--nodaemon", "-s": "--silent", "-h": "--help", "-v": "--version", "-u": "--user",
    "-m": "--umask", "-d": "--directory", "-l": "--logfile", "-y": "--logfile_maxbytes", "-z": "--logfile_backups",
    "-e": "--loglevel", "-j": "--pidfile", "-i": "--identifier", "-q": "--childlogdir", "-k": "--nocleanup",
    "-a": "--minfds", "-t": "--strip_ansi", "-?": "--help",
}  # fmt: skip
"""Of `supervisord --help`, 4.3.0; two more have a long form only."""


def loaded(folder: Path, *options: str, text: str = "[supervisord]\n") -> Config:
    path = folder / "test.conf"
    path.write_text(text)
    return load_config(path, {}, overridden_keys(parse_arguments(options)))


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as left:
        parse_arguments(options)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["-n"], "nodaemon", True),
        (["-s"], "silent", True),
        (["-u", "root"], "user", "root"),
        (["-m", "027"], "umask", 0o027),
        (["-m", "0"], "umask", 0),
        (["-d", "/tmp"], "directory", Path("/tmp")),
        (["-l", "/tmp/d.log"], "logfile", Path("/tmp/d.log")),
        (["-l", "100%.log"], "logfile", Path.cwd() / "100%.log"),
        (["-y", "1MB"], "logfile_maxbytes", 1 << 20),
        (["-z", "3"], "logfile_backups", 3),
        (["-e", "WARN"], "loglevel", "warn"),
        (["-j", "d.pid"], "pidfile", Path.cwd() / "d.pid"),
        (["-i", "host7"], "identifier", "host7"),
        (["-q", "/tmp/logs"], "childlogdir", Path("/tmp/logs")),
        (["-a", "4096"], "minfds", 4096),
        (["--minprocs", "300"], "minprocs", 300),
    ],
)
def test_an_option_wins_over_the_file(tmp_path: Path, options: list[str], key: str, value: object):
    other = {"umask": "022", "loglevel": "debug", "logfile_backups": "9"}.get(key)
    text = "[supervisord]\n" + (f"{key} = {other}\n" if other else "")

    short = loaded(tmp_path, *options, text=text).supervisord
    long = loaded(tmp_path, STOCK.get(options[0], options[0]), *options[1:], text=text).supervisord

    assert (getattr(short, key), getattr(long, key)) == (value, value)


def test_every_option_of_supervisors_is_known_by_both_names(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        parse_arguments(["-?"])
    shown = capsys.readouterr().out

    assert left.value.code == 0
    for short, long in STOCK.items():
        if short != "-t":  # refused, so it is not offered
            assert re.search(rf"{re.escape(short)}\b|\s{re.escape(short)},", shown) and long in shown


@pytest.mark.parametrize("option", ["-t", "--strip_ansi"])
def test_stripping_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str], option: str):
    said = refusal(capsys, option, "-c", "x.conf")

    assert f"stepkeeper has no {option}: " in said
    assert "logs are kept as programs print them; take it out, and strip them when reading" in said
    assert ("(to check the configuration and start nothing: --check-config)" in said) is (option == "-t")


def test_a_profiler_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]):
    assert "stepkeeper has no --profile_options: the daemon is not run under a profiler" in refusal(
        capsys, "--profile_options", "cumulative,calls"
    )


def test_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]):
    assert "unrecognized arguments: --nope" in refusal(capsys, "--nope")
    assert "unrecognized arguments: start" in refusal(capsys, "start")


def test_nocleanup_asks_for_what_is_always_so(tmp_path: Path):
    assert loaded(tmp_path, "-k") == loaded(tmp_path)


def test_logs_of_programs_move_with_childlogdir(tmp_path: Path):
    text = "[supervisord]\nchildlogdir = here\n[program:x]\ncommand = x\n"

    assert loaded(tmp_path, "-q", "/elsewhere", text=text).programs["x"].stdout_logfile == Path(
        "/elsewhere/x-stdout.log"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-e", "loud"], "command line: [supervisord] loglevel is 'loud'; it can be critical"),
        (["-u", "nobody-here"], "command line: [supervisord] user names the user 'nobody-here', who does not exist"),
        (["-z", "many"], "command line: [supervisord] logfile_backups is 'many', not a whole number"),
    ],
)
def test_a_wrong_value_is_refused_like_a_wrong_file(tmp_path: Path, options: list[str], text: str):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, *options)

    assert str(caught.value).startswith(text)


def test_another_user_is_held_against_the_programs(tmp_path: Path):
    with pytest.raises(ConfigError, match="user is root but the daemon runs as nobody"):
        loaded(tmp_path, "-u", "nobody", text="[supervisord]\n[program:x]\ncommand = x\nuser = root\n")
