"""Lines that public projects have in their files for Supervisor: each loads, and what is different is remarked on."""

from collections.abc import Callable

import pytest

from supervisor.config import Config

REMARKED = {
    "stdout_logfile=/dev/stdout": "stdout_logfile is /dev/stdout, which is never rotated",
    "stdout_logfile=/dev/fd/1": "stdout_logfile is /dev/fd/1, which is never rotated",
    "stdout_logfile=/proc/1/fd/1": "stdout_logfile is /proc/1/fd/1, which is never rotated",
    "redirect_stderr=true\nstderr_logfile=/tmp/x.err": "stderr_logfile has no effect while redirect_stderr is true",
    "redirect_stderr=true\nstderr_syslog=true": "stderr_syslog has no effect while redirect_stderr is true",
    "redirect_stderr=true\nstderr_capture_maxbytes=1MB": "stderr_capture_maxbytes has no effect while redirect_stderr",
    "stdout_events_enabled=true\nstdout_logfile=/dev/stdout\nstdout_logfile_maxbytes=0": "so there are no such events",
    "startretries=-1": "startretries is -1, which is the same as 0, in Supervisor too",
    "numprocs=0": "numprocs is 0, so nothing of this section runs",
    "numprocs=2\nprocess_name=x%(process_num)s\nstartretries=-1": "startretries is -1",
    "startretries=4294967295": "startretries is 4294967295, which is the same as 1000000",
    "stdout_logfile=": "stdout_logfile is empty, which is the same as NONE, in Supervisor too",
    "directory=": "directory is empty, which is the same as no such line, in Supervisor too",
    "serverurl=http://127.0.0.1:9001": "serverurl has no effect: programs are told the daemon's own socket",
    "workdir=/srv": "[program:x] has no key 'workdir', in Supervisor neither: the line has no effect",
    "direcory=/srv": "the line has no effect; did you mean 'directory'?",
    "events=TICK_60": "has no key 'events', in Supervisor neither: the line has no effect",
}


@pytest.mark.parametrize("lines", REMARKED)
def test_a_program_with_these_lines_loads_with_one_remark(read: Callable[..., Config], lines: str):
    (remark,) = read(f"[supervisord]\n[program:x]\ncommand=/bin/cat\n{lines}\n").warnings

    assert REMARKED[lines] in remark.text


def test_strip_ansi_loads_with_a_remark(read: Callable[..., Config]):
    (remark,) = read("[supervisord]\nstrip_ansi = true\n").warnings

    assert "strip_ansi has no effect: logs are kept as programs write them" in remark.text


SILENT = {
    "spaces in the header": "[program: web ]\ncommand=/bin/cat\n[group: all-of-it]\nprograms=web",
    "one file for both streams": "[program:web]\ncommand=/bin/cat\nstdout_logfile=/tmp/%(program_name)s.log\n"
    "stderr_logfile=/tmp/%(program_name)s.log",
    "a file for all processes": "[program:web]\ncommand=/bin/cat\nnumprocs=2\n"
    "process_name=%(program_name)s_%(process_num)02d\nstdout_logfile=/tmp/%(program_name)s.log",
    "a command over several lines": "[program:web]\ncommand=/bin/cat\n    --bind=127.0.0.1:8000\n    --workers=4",
    "variables over several lines": '[program:web]\ncommand=/bin/cat\nenvironment=\n    A="1",\n    B="2",',
    "capitals": "[program:web]\ncommand=/bin/cat\nautostart = True\nautorestart = Unexpected\nstopsignal = quit",
    "something behind the header": "[program:web] the web server\ncommand=/bin/cat",
    "a large priority": "[program:web]\ncommand=/bin/cat\npriority=99999999",
    "colons": "[program:web]\ncommand: /bin/cat\nautostart: true",
    "a key twice, and the section too": "[program:web]\ncommand=/bin/cat\nuser=root\nuser=0\n[program:web]\npriority=3",
    "a number before all others": "[program:web]\ncommand=/bin/cat\npriority=-10\numask=0\nstartsecs=0",
    "a program that is a list of commands": '[program:web]\ncommand=bash -c "sleep 5 && exec cat $HOME"',
}


@pytest.mark.parametrize("lines", SILENT.values(), ids=SILENT.keys())
def test_a_file_with_these_lines_loads_without_a_word(read: Callable[..., Config], lines: str):
    assert read(f"[supervisord]\nnodaemon=true\n{lines}\n").warnings == ()


def test_a_key_of_another_section_is_a_remark_as_supervisor_ignores_it(read):
    text = "[supervisord]\nstdout_logfile=/dev/stdout\n[program:x]\ncommand=/bin/cat\nloglevel=info\n"

    warnings = [warning.text for warning in read(text).warnings]

    effect = "has no effect here, in Supervisor neither: it belongs into"
    assert warnings == [
        f"[supervisord] stdout_logfile {effect} [program:NAME]",
        f"[program:x] loglevel {effect} [supervisord]",
    ]


WRONG_KEYS = {
    "one of ours in the wrong section": ("[supervisord]", "checkpoint_dir=c"),
    "nearly one of ours": ("[supervisord]", "state_dri=s"),
    "nearly a job's": ("[supervisord]\n[program:x]\ncommand=/bin/cat", "checkpont_dir=c"),
    "like no other, but surely a hook": ("[supervisord]\n[program:x]\ncommand=/bin/cat", "hook_restarted=/bin/x"),
    "any in a section with one of ours": ("[supervisord]\n[program:x]\ncommand=/bin/cat\nnotify=true", "workdir=/srv"),
    "any in the section of ours": ("[supervisord]\n[program-defaults]", "workdir=/srv"),
}


@pytest.mark.parametrize(("section", "line"), WRONG_KEYS.values(), ids=WRONG_KEYS.keys())
def test_a_wrong_key_is_an_error_where_stepkeeper_is_meant(complaints, section: str, line: str):
    (problem,) = complaints(f"{section}\n{line}\n")

    assert f"has no key '{line.partition('=')[0]}'" in problem


def test_a_section_that_supervisor_ignores_too_is_a_remark(read, complaints):
    text = "[supervisord]\n[metadata]\nversion=3\n[rpcinterface:more]\nsupervisor.rpcinterface_factory=more:make\n"

    assert [warning.text for warning in read(text).warnings] == [
        "[metadata] is no section that stepkeeper or Supervisor knows, and has no effect",
        "[rpcinterface:more] is ignored: the daemon loads no code of others, so clients can't call methods that it "
        "would add",
    ]
    for header, remedy in (
        ("PROGRAM:x", "did you mean [program:x]?"),
        ("program b", "did you mean [program:b]?"),
        ("program training run", "did you mean [program:training run]?"),
        ("programs", "did you mean [program:NAME]?"),
        ("DEFAULT", "into [program-defaults]"),
    ):
        (problem,) = complaints(f"[supervisord]\n[{header}]\ncommand=x\n")
        assert remedy in problem


def test_a_program_twice_in_its_group_is_a_remark(read: Callable[..., Config]):
    config = read("[supervisord]\n[group:g]\nprograms=x,x\n[program:x]\ncommand=/bin/cat\n")

    assert list(config.programs) == ["g:x"]
    assert [warning.text for warning in config.warnings] == [
        "[group:g] programs names 'x' twice, which is the same as once"
    ]


def test_a_group_without_programs_is_a_remark(read: Callable[..., Config]):
    config = read("[supervisord]\n[group:x]\nprograms=\n[program:x]\ncommand=/bin/cat\n")

    assert list(config.programs) == ["x"]
    assert [warning.text for warning in config.warnings] == ["[group:x] programs is empty, so there is no such group"]


def test_off_is_no_log_file(read: Callable[..., Config]):
    assert (
        read("[supervisord]\n[program:x]\ncommand=/bin/cat\nstdout_logfile=off\n").programs["x"].stdout_logfile is None
    )
