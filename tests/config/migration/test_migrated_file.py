"""supervisord --migrate FILE --output NEW: a file that can be used, with all that could stay."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.load import check_config
from supervisor.config.migration.migrated_file import CannotMigrate, write_migrated
from supervisor.ini.problems import ConfigError
from tests.config.migration.test_outcomes import OLD
from tests.fuzzing import cases


def test_what_is_refused_becomes_a_comment_with_the_reason(tmp_path: Path) -> None:
    source, target = tmp_path / "old.conf", tmp_path / "new.conf"
    source.write_text(OLD.replace("[rpc", "process_name = %(program_name)s\n[rpc"))

    left_out = write_migrated(source, target, {})

    assert len(left_out) == 1
    assert left_out[0].startswith("[fcgi-program:f]: ")
    lines = target.read_text().splitlines()
    at = lines.index("; [fcgi-program:f]")
    assert lines[at - 1].startswith("; left out: ")
    assert lines[at + 1 : at + 3] == ["; command = x", "; process_name = %(program_name)s"]
    assert [line for line in OLD.splitlines() if line not in lines] == ["[fcgi-program:f]", "command = x"]
    assert not check_config(target, {}).problems


def test_a_value_over_several_lines_is_left_out_as_one(tmp_path: Path) -> None:
    source, target = tmp_path / "old.conf", tmp_path / "new.conf"
    source.write_text("[supervisord]\n[program:x]\ncommand = /bin/true\nstartsecs = soon\n  or later\npriority = 1\n")

    write_migrated(source, target, {})

    assert target.read_text().endswith("; startsecs = soon\n;   or later\npriority = 1\n")


def test_relative_paths_mean_the_same_in_another_folder(tmp_path: Path) -> None:
    source, target = tmp_path / "old" / "a.conf", tmp_path / "new" / "a.conf"
    source.parent.mkdir()
    target.parent.mkdir()
    (source.parent / "more.ini").write_text("[program:y]\ncommand = /bin/true\n")
    source.write_text(
        "[supervisord]\n[program:x]\ncommand = /bin/true\nstdout_logfile = log/x\n[include]\nfiles = *.ini\n"
    )

    write_migrated(source, target, {})

    config = check_config(target, {}).config
    assert sorted(config.programs) == ["x", "y"]
    assert config.programs["x"].stdout_logfile == source.parent / "log/x"


def test_a_mistake_in_an_included_file_leaves_no_new_file(tmp_path: Path) -> None:
    source, target = tmp_path / "a.conf", tmp_path / "b.conf"
    (tmp_path / "more.ini").write_text("[program:y]\ncommand = /bin/true\nstartsecs = soon\n")
    source.write_text("[supervisord]\n[include]\nfiles = more.ini\n")

    with pytest.raises(CannotMigrate, match=r"more\.ini:3"):
        write_migrated(source, target, {})

    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[program:x]\ncommand = /bin/true\nuser = nobody-of-this-name\n",
        "[supervisord]\nUser: nobody-of-this-name\n",
        "[inet_http_server]\nport = 9001\nusername = ann\npassword = %(ENV_UNSET)s\n",
    ],
)
def test_no_line_is_left_out_that_would_give_rights_away(tmp_path: Path, text: str) -> None:
    source, target = tmp_path / "a.conf", tmp_path / "b.conf"
    source.write_text(f"[supervisord]\n{text}")

    with pytest.raises(CannotMigrate, match=r"leaving out (user|password) would give rights away"):
        write_migrated(source, target, {})

    assert not target.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source, target = tmp_path / "a.conf", tmp_path / "b.conf"
    source.write_text("[supervisord]\n[program:x]\ncommand = /bin/true\n")
    target.write_text("mine")

    with pytest.raises(FileExistsError):
        write_migrated(source, target, {})

    assert target.read_text() == "mine"


LINES = st.sampled_from([
    *OLD.splitlines(), "startsecs = soon", "[program:y", "[program:x]", "  continued", "numprocs = 3", "[group:g]",
    "programs = x,y", "[inet_http_server]", "port = *:9001", "; a comment", "command = %(nothing)s", "key", "= value",
    "[eventlistener:e]", "events = TICK_5", "depends_on = f", "[supervisorctl]", "[unix_http_server]", "file = s",
])  # fmt: skip


@cases(200)
@given(st.lists(LINES, max_size=25))
def test_what_is_written_can_be_used(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("migrated")
    source, target = folder / "old.conf", folder / "new.conf"
    source.write_text("\n".join(["[supervisord]", *lines]))

    try:
        write_migrated(source, target, {})
    except (ConfigError, CannotMigrate):
        assert not target.exists()
        return

    assert not check_config(target, {}).problems
