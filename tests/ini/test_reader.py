"""INI files as Supervisor reads them, with every value's file and line."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ini.problems import ConfigError
from supervisor.ini.reader import MAX_FILE_BYTES, IniText, parse_ini, read_ini
from tests.fuzzing import cases


def sections(text: str) -> dict[str, dict[str, str]]:
    source = IniText(Path("a.conf"), Path("/"))
    parse_ini(text, Path("a.conf"), source)
    assert source.problems == []
    return {
        name: {key: entry.value for key, entry in section.entries.items()} for name, section in source.sections.items()
    }


def test_comments_are_cut_where_white_space_stands_before():
    text = "; one\n# two\n[a]\nx = 1 ; three\ny = a;b # four\nz = a#b\n"

    assert sections(text) == {"a": {"x": "1", "y": "a;b", "z": "a#b"}}


def test_keys_are_lower_case_and_values_begin_after_the_first_sign():
    assert sections("[A]\nKey : a=b\nother=c:d\n") == {"A": {"key": "a=b", "other": "c:d"}}


def test_indented_lines_go_on_with_the_value():
    text = "[a]\nx =\n  one\n\n  two ; remark\n; remark\n  three\ny = 1\n"

    assert sections(text) == {"a": {"x": "one\n\ntwo\nthree", "y": "1"}}


def test_a_section_that_comes_again_adds_to_the_first():
    assert sections("[a]\nx=1\ny=1\n[b]\n[a]\nx=2\n") == {"a": {"x": "2", "y": "1"}, "b": {}}


def test_every_value_knows_its_line():
    source = IniText(Path("a.conf"), Path("/"))
    parse_ini("[a]\r\n\r\nx = 1\r\ny =\r\n  2\r\n", Path("a.conf"), source)

    assert [str(entry.location) for entry in source.sections["a"].entries.values()] == ["a.conf:3", "a.conf:4"]


def test_lines_that_are_nothing_are_all_told():
    source = IniText(Path("a.conf"), Path("/"))
    parse_ini("x = 1\n[a]\njust words\n[open\n= 1\n[program:open\n", Path("a.conf"), source)

    assert [(problem.location.line, problem.text.split(";")[0]) for problem in source.problems] == [
        (1, "'x' stands before the first [section]"),
        (3, "'just words' is neither a [section] nor a 'key = value'"),
        (4, "'[open' begins like a [section] but has no ]"),
        (5, "'= 1' is neither a [section] nor a 'key = value'"),
        (6, "'[program:open' begins like a [section] but has no ]"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[a]\nx = \0", "a.conf:2: there is a NUL byte"),
        (b"[a]\n\n\xff", "a.conf:3: byte 0xff is not UTF-8"),
        (b"x" * (MAX_FILE_BYTES + 1), "larger than 1048576 bytes"),
    ],
)
def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path, content, text):
    path = tmp_path / "a.conf"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=text):
        read_ini(path, {})


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "a.conf"
    path.write_bytes(b"\xef\xbb\xbf[a]\n")

    assert list(read_ini(path, {}).sections) == ["a"]


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/none/a.conf", "a\0b", "n" * 5000])
def test_path_that_is_no_file_is_refused(path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        read_ini(Path(path), {})


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="not a regular file"):
        read_ini(tmp_path / "pipe", {})


def included(tmp_path: Path, files: str, **others: str) -> IniText:
    for name, text in others.items():
        (tmp_path / f"{name}.conf").write_text(text)
    main = tmp_path / "main.ini"
    main.write_text(f"[include]\nfiles = {files}\n[a]\nx = main\n")
    return read_ini(main, {"DIR": str(tmp_path)})


def test_included_files_come_in_order_and_win(tmp_path):
    source = included(tmp_path, "%(here)s/*.conf", b="[a]\nx = b\n", c="[a]\nx = c\ny = c\n")

    assert source.problems == []
    assert {key: entry.value for key, entry in source.sections["a"].entries.items()} == {"x": "c", "y": "c"}
    assert source.sections["a"].entries["x"].location.file == tmp_path / "c.conf"


def test_a_pattern_may_match_nothing_but_a_name_must_exist(tmp_path):
    source = included(tmp_path, "none*.conf %(ENV_DIR)s/none.conf")

    assert [problem.text for problem in source.problems] == [
        f"[include] files names '{tmp_path}/none.conf', which does not exist; correct the name or take it out"
    ]


def test_a_file_that_includes_itself_is_read_once(tmp_path):
    source = included(tmp_path, "main.ini main.ini b.conf b.conf", b="[b]\nx = 1\n")

    assert source.problems == []


def test_an_included_file_can_not_include(tmp_path):
    source = included(tmp_path, "b.conf c.conf", b="[include]\nfiles = c.conf\n", c="[c]\nx = 1\n")

    assert [problem.text.split(";")[0] for problem in source.problems] == ["an included file can't include others"]
    assert "c" in source.sections


def test_a_bad_included_file_is_a_problem_among_others(tmp_path):
    (tmp_path / "folder.conf").mkdir()

    source = included(tmp_path, "*.conf", b="[b]\nwords\n")

    assert len(source.problems) == 2


@pytest.mark.fuzz
@cases(100)
@given(st.text(alphabet=st.sampled_from("[]=:;#%(){}ab \t\n\r\"'\x0b\u2028"), max_size=200))
def test_no_text_makes_the_reader_fail(text):
    parse_ini(text, Path("a.conf"), IniText(Path("a.conf"), Path("/")))
