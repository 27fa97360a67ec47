"""environment_file: what is read, what is refused, and that nothing of it is repeated."""

import os
from pathlib import Path

import pytest

from supervisor.config.environment_file import MAX_BYTES, parse_environment_file

PLACE = Path("/e")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("K=a b", "a b"),
        ("export K = v ", "v"),
        ("K=", ""),
        ("K=a#b", "a#b"),
        ("K=a #b", "a"),
        ("K=#b", ""),
        ("K=a=b;c", "a=b;c"),
        ('K="a #b"', "a #b"),
        (r'K="a\"b\\\n$HOME" # x', 'a"b\\\n$HOME'),
        (r"K='a\n' ", r"a\n"),
        ("K=it's", "it's"),
        ("# K=no\n;K=no\n\nK=1\r\nK=2", "2"),
    ],
)
def test_a_line_is_read_as_systemd_and_dotenv_do(line: str, value: str):
    assert parse_environment_file(line, PLACE) == {"K": value}


@pytest.mark.parametrize(
    "line", ['K="secret', "K='secret", 'K="secret"x', "secret", "1K=secret", "K-L=secret", "K=sec\0ret"]
)
def test_what_cannot_be_read_is_named_by_its_line_only(line: str):
    with pytest.raises(ValueError, match="whose line 2 can't be read") as refused:
        parse_environment_file(f"A=1\n{line}", PLACE)

    assert "secret" not in str(refused.value)


def test_the_programs_own_variables_win_and_can_be_used(program, tmp_path: Path):
    (tmp_path / "x.env").write_text("A=file\nB=file\nDIR=/srv\n")

    config = program("command=/bin/cat", "environment_file=x.env", 'environment=B="own"', "directory=%(ENV_DIR)s")

    assert config.environment == {"A": "file", "B": "own", "DIR": "/srv"}
    assert config.directory == Path("/srv")


def test_a_file_may_be_missing_if_that_is_said(program, complaints):
    assert program("command=/bin/cat", "environment_file=-gone.env").environment == {}

    (why,) = complaints("[supervisord]\n[program:x]\ncommand=/bin/cat\nenvironment_file=gone.env\n")
    assert why.startswith("train.conf:4: [program:x] environment_file cannot be read: ")
    assert "begin it with -" in why


def test_what_is_no_file_of_variables_is_refused(complaints, tmp_path: Path):
    (tmp_path / "big").write_text("#" * (MAX_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"A=\xff")
    os.mkfifo(tmp_path / "pipe")
    text = "".join(
        f"[program:{name}]\ncommand=/bin/cat\nenvironment_file={name}\n" for name in ("big", "bytes", "pipe")
    )

    problems = complaints(f"[supervisord]\n{text}")

    assert ["larger than" in problems[0], "not UTF-8" in problems[1], "not a regular file" in problems[2]] == [True] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon trusts nobody else")
def test_root_refuses_a_file_that_others_can_write(complaints, tmp_path: Path):
    (tmp_path / "x.env").write_text("LD_PRELOAD=/tmp/x.so\n")
    (tmp_path / "x.env").chmod(0o666)

    (why,) = complaints("[supervisord]\n[program:x]\ncommand=/bin/cat\nenvironment_file=x.env\n")

    assert "environment_file is refused: cannot run as root from" in why
