"""%(here)s and its like, and what the environment keys feed."""

import platform

from tests.config.conftest import DAEMON


def test_placeholders_are_filled(program, tmp_path):
    config = program(
        "command = run %(program_name)s %(group_name)s %(process_num)02d %(here)s %(host_node_name)s 100%% %(ENV_X)s",
        environment={"X": "y z"},
    )

    assert config.command == ("run", "x", "x", "00", str(tmp_path), platform.node(), "100%", "y", "z")


def test_daemon_section_environment_expands_everywhere(read):
    text = "[program:x]\ncommand = run %(ENV_A)s\n[supervisord]\nenvironment = A=%(ENV_B)s\n"

    assert read(text, {"B": "b"}).programs["x"].command == ("run", "b")


def test_program_environment_expands_in_its_own_section_only(complaints):
    text = f"{DAEMON}[program:a]\ncommand = run %(ENV_A)s\nenvironment = A=1\n[program:b]\ncommand = run %(ENV_A)s\n"

    (problem,) = complaints(text)

    assert problem.startswith(
        "train.conf:6: [program:b] command uses %(ENV_A)s, but there is no environment variable 'A'"
    )


def test_in_an_included_file_here_is_its_own_folder(read, tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/web.conf").write_text("[program:web]\ncommand = %(here)s/web\ndirectory = sub\n")

    config = read(f"{DAEMON}[include]\nfiles = conf.d/*.conf\n").programs["web"]

    assert config.command == (f"{tmp_path}/conf.d/web",)
    assert config.directory == tmp_path / "conf.d/sub"


def test_a_share_needs_no_second_percent_sign(read):
    job = "[program:a]\nentrypoint = a:b\ncheckpoint_dir = c\ndeterministic = true\n"

    assert read(f"{DAEMON}{job}replay = 1%\n").programs["a"].job.replay == 0.01
    assert read(f"{DAEMON}{job}replay = 0.5%%\n").programs["a"].job.replay == 0.005
