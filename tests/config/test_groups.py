"""Several processes of one section, and programs in groups."""

from tests.config.conftest import DAEMON

THREE = "[program:w]\ncommand = run %(process_num)d/%(numprocs)d\nnumprocs = 3\nnumprocs_start = 4\n"
NAMED = "process_name = %(program_name)s_%(process_num)02d\n"


def test_a_section_stands_for_several_processes(read):
    programs = read(DAEMON + THREE + NAMED).programs

    assert list(programs) == ["w:w_04", "w:w_05", "w:w_06"]
    assert programs["w:w_05"].command == ("run", "5/3")
    assert (programs["w:w_05"].group, programs["w:w_05"].process) == ("w", "w_05")
    assert programs["w:w_05"].stdout_logfile.name == "w.w_05-stdout.log"


def test_adding_a_process_leaves_the_others_unchanged(read):
    text = f"{DAEMON}[program:w]\ncommand = run\n{NAMED}"

    two, three = (read(f"{text}numprocs = {count}\n").programs for count in (2, 3))

    assert [name for name in three if three[name] != two.get(name)] == ["w:w_02"]


def test_several_processes_need_names_of_their_own(complaints):
    assert complaints(DAEMON + THREE) == [
        "train.conf:4: [program:w] numprocs is 3 but process_name is 'w' for more than one of them; write "
        "process_name = "
        "%(program_name)s_%(process_num)02d"
    ]


def test_problem_of_every_process_is_reported_once(complaints):
    (problem,) = complaints(DAEMON + THREE + NAMED + "umask = 999\n")

    assert "umask is '999'" in problem


def test_jobs_of_one_section_need_a_checkpoint_folder_each(complaints, read):
    text = f"{DAEMON}[program:w]\nentrypoint = a:b\nnumprocs = 2\n{NAMED}checkpoint_dir = c"

    (problem,) = complaints(text)

    assert "set a separate folder for each job, with %(process_num)s in it" in problem
    assert len(read(f"{text}/%(process_num)d").programs) == 2


def test_a_group_names_its_programs(read):
    text = (
        DAEMON + "[program:a]\ncommand=x\n[program:b]\ncommand=%(group_name)s\npriority=1\n[group:g]\nprograms=a, b\n"
    )

    programs = read(text).programs

    assert list(programs) == ["g:b", "g:a"]
    assert programs["g:b"].command == ("g",)


def test_groups_start_by_their_priority_and_then_by_their_programs(read):
    text = "".join(
        f"[program:{name}]\ncommand=x\npriority={number}\n" for name, number in [("a", 1), ("b", 9), ("c", 2), ("d", 5)]
    )

    programs = read(f"{DAEMON}{text}[group:g]\nprograms=b,c\npriority=3\n").programs

    assert list(programs) == ["a", "g:c", "g:b", "d"]


def test_a_program_is_in_one_group_at_most(complaints):
    text = DAEMON + "[program:a]\ncommand=x\n[group:g]\nprograms=a\n[group:h]\nprograms=a\n"

    assert complaints(text) == [
        "train.conf:7: [group:h] programs names 'a', which is already in [group:g]; delete it from one of them"
    ]


def test_a_group_that_has_a_programs_name_is_refused(complaints):
    (problem,) = complaints(DAEMON + "[program:a]\ncommand=x\n[program:b]\ncommand=x\n[group:a]\nprograms=b\n")

    assert "has the same name as [program:a], which makes a group of that name" in problem


def test_two_sections_can_not_have_one_process(complaints):
    text = (
        DAEMON
        + "[program:a]\ncommand=x\nprocess_name=p\n[program:b]\ncommand=x\nprocess_name=p\n[group:g]\nprograms=a,b\n"
    )

    (problem,) = complaints(text)

    assert "[program:b] has a process 'g:p', which [program:a] has too; set another process_name" in problem


def test_process_names_follow_the_rules_of_names(complaints):
    (problem,) = complaints(DAEMON + "[program:a]\ncommand=x\nprocess_name=a/b\n")

    assert problem.startswith("train.conf:4: [program:a] can't have the name 'a/b'")
