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
    "colons": "[program:web]\ncommand: /bin/cat\nautostart: true",
    "a key twice, and the section too": "[program:web]\ncommand=/bin/cat\nuser=root\nuser=0\n[program:web]\npriority=3",
    "a number before all others": "[program:web]\ncommand=/bin/cat\npriority=-10\numask=0\nstartsecs=0",
    "a port of this host without a password": "[inet_http_server]\nport=127.0.0.1:9001",
    "a program that is a list of commands": '[program:web]\ncommand=bash -c "sleep 5 && exec cat $HOME"',
}


@pytest.mark.parametrize("lines", SILENT.values(), ids=SILENT.keys())
def test_a_file_with_these_lines_loads_without_a_word(read: Callable[..., Config], lines: str):
    assert read(f"[supervisord]\nnodaemon=true\n{lines}\n").warnings == ()


def test_a_key_of_another_section_is_a_remark_as_supervisor_ignores_it(read):
    text = "[supervisord]\nstdout_logfile=/dev/stdout\n[program:x]\ncommand=/bin/cat\nloglevel=info\n"

    found = [each.text for each in read(text).warnings]

    effect = "has no effect here, in Supervisor neither: it belongs into"
    assert found == [
        f"[supervisord] stdout_logfile {effect} [program:NAME]",
        f"[program:x] loglevel {effect} [supervisord]",
    ]


def test_a_key_of_our_own_in_the_wrong_section_is_an_error(complaints):
    assert "has no key 'checkpoint_dir'" in complaints("[supervisord]\ncheckpoint_dir=c\n")[0]
