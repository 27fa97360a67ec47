"""What is applied of a file in which sections of programs can't be loaded."""

from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load_config
from supervisor.config.broken_sections import BrokenSection, keep_commands, leave_out_broken
from supervisor.config.load import SectionsBroken

GOOD = "[program:{}]\ncommand=/bin/true\n{}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "test.conf"
    path.write_text(f"[supervisord]\n{text}")
    return path


def applied(folder: Path, before: str, after: str) -> tuple[Config, tuple[BrokenSection, ...]]:
    old = load_config(write(folder, before), {})
    with pytest.raises(SectionsBroken) as refused:
        load_config(write(folder, after), {})
    return leave_out_broken(refused.value, old.programs)


def test_program_of_a_broken_section_keeps_its_configuration_and_others_change(tmp_path: Path):
    before = GOOD.format("a", "priority=1") + GOOD.format("b", "priority=2")
    after = GOOD.format("a", "priority=soon") + GOOD.format("b", "priority=3") + GOOD.format("c", "")

    config, (broken,) = applied(tmp_path, before, after)

    assert {name: program.priority for name, program in config.programs.items()} == {"a": 1, "b": 3, "c": 999}
    assert (broken.section, broken.kept) == ("program:a", ("a",))
    assert "priority" in broken.problems[0]


def test_an_empty_command_keeps_that_of_a_program_in_use_and_of_no_other(tmp_path: Path):
    old = load_config(write(tmp_path, GOOD.format("a", "")), {})
    new = load_config(write(tmp_path, "[program:a]\ncommand=\npriority=5\n[program:b]\ncommand=\n"), {})

    config, problems, (broken,) = keep_commands(new, old.programs)

    assert config.programs["a"] == old.programs["a"] and config.programs["b"].command == ("",)
    assert (broken.section, broken.kept) == ("program:a", ("a",))
    assert [f"{tmp_path}/test.conf:3: [program:a] command is empty" in str(problem) for problem in problems] == [True]


def test_new_section_that_is_broken_adds_nothing(tmp_path: Path):
    config, (broken,) = applied(tmp_path, GOOD.format("a", ""), GOOD.format("a", "") + "[program:b]\n")

    assert list(config.programs) == ["a"]
    assert (broken.section, broken.kept) == ("program:b", ())


def test_program_whose_section_is_gone_stays_while_another_is_broken(tmp_path: Path):
    """Its header may be what was damaged."""
    before = GOOD.format("a", "") + GOOD.format("b", "")

    config, _ = applied(tmp_path, before, GOOD.format("a", "startsecs=soon"))

    assert sorted(config.programs) == ["a", "b"]


def test_all_processes_of_a_section_are_kept(tmp_path: Path):
    before = "[program:w]\ncommand=/bin/true\nnumprocs=2\nprocess_name=w%(process_num)d\n"

    config, (broken,) = applied(tmp_path, before, before.replace("numprocs=2", "numprocs=two"))

    assert sorted(config.programs) == ["w:w0", "w:w1"]
    assert broken.kept == ("w:w0", "w:w1")


def test_new_job_in_the_folder_of_a_kept_one_is_left_out_too(tmp_path: Path):
    job = "[program:{}]\ncommand=/bin/true\ncheckpoint_dir={}/ckpt\n{}\n"
    before = job.format("a", tmp_path, "")

    config, broken = applied(tmp_path, before, job.format("a", tmp_path, "replicas=x") + job.format("b", tmp_path, ""))

    assert list(config.programs) == ["a"]
    assert {section.section for section in broken} == {"program:a", "program:b"}


def test_what_depends_on_a_program_that_can_not_be_loaded_is_left_out_too(tmp_path: Path):
    after = GOOD.format("a", "startsecs=soon") + GOOD.format("b", "depends_on=a")

    config, broken = applied(tmp_path, GOOD.format("x", ""), after + GOOD.format("x", ""))

    assert list(config.programs) == ["x"]
    assert {section.section for section in broken} == {"program:a", "program:b"}


def test_mistake_elsewhere_refuses_the_file(tmp_path: Path):
    text = "[unix_http_server]\nfile=/run/x.sock\nchmod=9\n" + GOOD.format("a", "startsecs=soon")

    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path, text), {})

    assert not isinstance(refused.value, SectionsBroken)
