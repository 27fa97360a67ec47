"""[program-defaults]: whom its keys reach, and which it can't have."""

from pathlib import Path

import pytest

from supervisor.daemon import main

TWO = "[program:a]\ncommand=/bin/cat\n[program:b]\ncommand=/bin/cat\nstopwaitsecs=7\n"


def test_a_default_holds_where_the_program_says_nothing(read, tmp_path: Path):
    text = 'stopwaitsecs=60\nstopasgroup=true\nstdout_logfile=%(program_name)s.log\nenvironment=A="1",B="1"\n'

    programs = read(f"[supervisord]\n[program-defaults]\n{text}{TWO}environment=B=2\n").programs

    assert [programs[name].stopwaitsecs for name in "ab"] == [60.0, 7.0]
    assert programs["a"].stdout_logfile == tmp_path / "a.log"
    assert programs["a"].killasgroup
    assert [programs[name].environment for name in "ab"] == [{"A": "1", "B": "1"}, {"A": "1", "B": "2"}]


def test_a_default_holds_only_where_it_means_something(read):
    text = "checkpoint_interval=5 minutes\nnotify=true\nhealthcheck_interval=5\nstdout_logfile=AUTO\n"
    job = "[program:j]\ncommand=/bin/cat\ncheckpoint_dir=c\n[eventlistener:l]\ncommand=/bin/cat\nevents=EVENT\n"

    config = read(f"[supervisord]\n[program-defaults]\n{text}{TWO}{job}")

    assert config.programs["j"].job.checkpoint_interval.seconds == 300.0
    assert [config.programs[name].notify for name in "abjl"] == [True, True, False, False]
    assert config.inherited["program:a"] == {"notify": "true", "stdout_logfile": "AUTO"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("command=/bin/cat", "command can't be a default"),
        ("checkpoint_dir=/c", "checkpoint_dir can't be a default"),
        ("process_name=x", "process_name can't be a default"),
        ("numprocs=2", "numprocs can't be a default"),
        ("stopwaitsec=2", "has no key 'stopwaitsec'; did you mean 'stopwaitsecs'?"),
        ("stopwaitsecs=soon", "stopwaitsecs is 'soon', not a length of time"),
    ],
)
def test_a_bad_default_is_said_once_and_at_its_line(complaints, line: str, says: str):
    (why,) = complaints(f"[supervisord]\n[program-defaults]\n{line}\n{TWO}")

    assert why.startswith(f"train.conf:3: [program-defaults] {says}")


def test_check_config_shows_what_each_program_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\n[program-defaults]\nstopwaitsecs=9\nenvironment=PASSWORD=x\n{TWO}")

    assert main(["-c", str(path), "--check-config"]) == 0

    assert "[program:a] takes from [program-defaults]: stopwaitsecs = 9, environment\n" in capsys.readouterr().out
