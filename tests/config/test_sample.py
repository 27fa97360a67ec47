"""echo_supervisord_conf: a file that loads, and names every key with its default."""

import re
from pathlib import Path

import pytest

from supervisor.config.load import check_config
from supervisor.config.reference import TABLES
from supervisor.config.sample import main, sample


def test_the_file_can_be_used_as_it_is(tmp_path: Path):
    path = tmp_path / "supervisord.conf"
    path.write_text(sample())

    checked = check_config(path, {})

    assert (checked.problems, checked.warnings) == ((), ())
    assert checked.config is not None
    assert [server.file for server in checked.config.unix_http_servers] == [tmp_path / "supervisor.sock"]


EXPECTED = "for training jobs|has no '|no effect without healthcheck_command|no effect without notify"
"""What is right to say of keys that stand without those that they need."""


@pytest.mark.parametrize("heading", [heading for heading, _ in TABLES])
def test_defaults_that_are_written_can_be_set(tmp_path: Path, heading: str):
    """Every line that has a value, without its semicolon."""
    header = heading.partition(",")[0].replace("NAME", "name")
    lines = sample().split(f"{header}\n", 1)[1].split("\n\n")[0].splitlines()
    written = [line[1:] for line in lines if line.startswith(";") and line[1] != " " and not line.endswith("=")]
    needed = {"program": "command = /bin/cat", "eventlistener": "command = /bin/cat\nevents = EVENT"}
    text = "\n".join([header, *written, needed.get(header[1:].partition(":")[0], "")])
    path = tmp_path / "supervisord.conf"
    path.write_text(text if header == "[supervisord]" else f"[supervisord]\n{text}")

    problems = [problem.text for problem in check_config(path, {}).problems]

    assert written or header == "[inet_http_server]"
    assert [problem for problem in problems if not re.search(EXPECTED, problem)] == []


def test_it_takes_no_arguments(capsys: pytest.CaptureFixture[str]):
    assert (main(["--help"]), main(["x"]), main([])) == (0, 2, 0)
    assert capsys.readouterr().out.endswith(sample())
