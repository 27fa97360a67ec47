"""What a file says becomes the model; what is wrong with it is said all at once."""

import grp
import os
import pwd
import signal
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from supervisor.config import ConfigError, ProgramConfig, load_config, section_relations
from supervisor.config.load import SectionsBroken
from supervisor.protocol.wire.launch import Interval
from tests.config.conftest import DAEMON

JOB = ("checkpoint_dir = ckpt", "entrypoint = train.digits:main")
OWN_FOLDERS = [*JOB, "strategy = multiworker"]


def test_defaults_lie_in_one_folder_beside_the_file(read, tmp_path):
    daemon = read(DAEMON).supervisord

    state = tmp_path / ".stepkeeper"
    assert (daemon.state_dir, daemon.runtime_dir, daemon.childlogdir) == (state, state / "run", state / "log")
    assert (daemon.logfile, daemon.pidfile) == (state / "supervisord.log", state / "supervisord.pid")


def test_a_state_dir_takes_the_others_with_it(read, tmp_path):
    daemon = read("[supervisord]\nstate_dir = var\nlogfile = NONE\nchildlogdir = logs\n").supervisord

    assert (daemon.runtime_dir, daemon.pidfile) == (tmp_path / "var/run", tmp_path / "var/supervisord.pid")
    assert (daemon.logfile, daemon.childlogdir) == (None, tmp_path / "logs")


def test_a_program_has_supervisors_defaults(program):
    config = program("command = sleep 1")

    assert config.job is None
    assert config.command == ("sleep", "1")
    assert (config.autostart, config.autorestart, config.exitcodes) == (True, "unexpected", frozenset({0}))
    assert (config.startsecs, config.startretries, config.stopwaitsecs) == (1.0, 3, 10.0)
    assert (config.stopsignal, config.priority, config.killasgroup) == (signal.SIGTERM, 999, False)


def test_every_program_key_is_read(program, tmp_path):
    config = program(
        'command = "/bin/a b" c',
        "directory = work",
        "environment = A=1,B='two words',C=\"x,y\"",
        "umask = 027",
        "priority = -5",
        "autostart = off",
        "autorestart = yes",
        "exitcodes = 0, 3",
        "startsecs = 1.5 minutes",
        "startretries = 0",
        "stopsignal = int",
        "stopwaitsecs = 0",
        "stopasgroup = 1",
        "redirect_stderr = TRUE",
        "stdout_logfile = out.log",
        "stdout_logfile_maxbytes = 10KB",
        "stdout_logfile_backups = 2",
    )

    assert config.command == ("/bin/a b", "c")
    assert config.directory == tmp_path / "work"
    assert config.environment == {"A": "1", "B": "two words", "C": "x,y"}
    assert (config.umask, config.priority, config.autostart, config.autorestart) == (0o027, -5, False, "true")
    assert (config.exitcodes, config.startsecs, config.startretries) == (frozenset({0, 3}), 90.0, 0)
    assert (config.stopsignal, config.stopwaitsecs) == (signal.SIGINT, 0.0)
    assert (config.stopasgroup, config.killasgroup) == (True, True)
    assert (config.stdout_logfile, config.stderr_logfile) == (tmp_path / "out.log", None)
    assert (config.stdout_logfile_maxbytes, config.stdout_logfile_backups) == (10240, 2)


def test_an_entrypoint_stands_for_a_command(program, tmp_path):
    config = program(*JOB)

    assert config.command == (sys.executable, "-m", "worker", "train.digits:main")
    assert config.startretries == 10
    assert config.job.checkpoint_dir == tmp_path / "ckpt"
    assert (config.job.checkpoint_interval, config.job.checkpoint_keep) == (None, 5)
    assert (config.job.startup_timeout, config.job.flush_timeout, config.job.hang_timeout) == (600.0, 120.0, "auto")


def test_every_job_key_is_read(program, tmp_path):
    config = program(
        *JOB,
        "python = env/bin/python",
        "strategy = mirrored",
        "replicas = 2",
        "deterministic = true",
        "checkpoint_interval = 500 steps",
        "checkpoint_keep = 3",
        "checkpoint_keep_every = 90 minutes",
        "checkpoint_keep_best = max accuracy",
        "startup_timeout = 20 minutes",
        "flush_timeout = 30",
        "hang_timeout = 15 min",
        "startretries = 4",
    )

    assert config.command[0] == str(tmp_path / "env/bin/python")
    assert (config.job.strategy, config.job.replicas, config.job.deterministic) == ("mirrored", 2, True)
    assert config.job.checkpoint_interval == Interval(steps=500)
    assert (config.job.checkpoint_keep, config.job.checkpoint_keep_every) == (3, 1.5)
    assert config.job.checkpoint_keep_best == ("max", "accuracy")
    assert (config.job.startup_timeout, config.job.flush_timeout, config.job.hang_timeout) == (1200.0, 30.0, 900.0)
    assert config.startretries == 4


def test_an_automatic_interval_is_none_of_its_own(program):
    config = program("entrypoint = a:b\ncheckpoint_dir = c\ncheckpoint_interval = AUTO")

    assert config.job.checkpoint_interval is None
    assert (config.job.checkpoint_interval_min, config.job.checkpoint_interval_max) == (30.0, 1800.0)


def test_programs_come_in_the_order_of_start(read):
    config = read(
        DAEMON
        + "".join(f"[program:{name}]\ncommand=x\npriority={order}\n" for name, order in [("b", 2), ("a", 2), ("c", 1)])
    )

    assert list(config.programs) == ["c", "a", "b"]


def test_same_file_gives_an_equal_configuration(read):
    text = DAEMON + "[program:x]\n" + "\n".join(JOB)

    assert read(text) == read(text)
    assert read(text) != read(text + "\nreplicas = 2")


def test_models_are_frozen(program):
    with pytest.raises(FrozenInstanceError):
        program("command = x").priority = 1


def test_the_stock_rpc_line_is_accepted(read):
    line = "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface"

    assert read(f"{DAEMON}[rpcinterface:supervisor]\n{line}\n").programs == {}


def test_harmless_keys_of_supervisors_are_accepted(program):
    config = program(
        "command = x",
        "numprocs = 1",
        "process_name = %(program_name)s",
        "stdout_events_enabled = false",
        "stderr_capture_maxbytes = 0",
        "serverurl = AUTO",
    )

    assert config.command == ("x",)


def test_everything_wrong_is_said_at_once_in_order(complaints):
    text = (
        "[supervisord]\nloglevel = x\n"
        "[program:digits]\nautorestrat = true\ncommand = run\nstopsignal = TREM\nnotify = true\n"
        "[progam:x]\n[group:g]\nprograms = digits, digts\n"
        "[unix_http_server]\n"
    )

    assert complaints(text) == [
        "train.conf:2: [supervisord] loglevel is 'x'; it can be critical, error, warn, info, debug, trace or blather",
        "train.conf:4: [program:digits] has no key 'autorestrat'; did you mean 'autorestart'?",
        "train.conf:6: [program:digits] stopsignal is 'TREM', which is no signal; did you mean TERM?",
        "train.conf:8: unknown section [progam:x]; did you mean [program:x]?",
        "train.conf:10: [group:g] programs names 'digts', which does not exist; did you mean 'digits'?",
        "train.conf:11: [unix_http_server] has no 'file'; add it",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("umask = 999", "umask is '999', not octal digits; write for example 022 or 0700"),
        ("startsecs = soon", "startsecs is 'soon', not a length of time"),
        ("startsecs = 99999999", "startsecs is '99999999', longer than the limit of 366 days"),
        ("startretries = few", "startretries is 'few', not a whole number from 0 to 1000000"),
        ("autostart = maybe", "autostart is 'maybe', which is neither true nor false"),
        ("autorestart = maybe", "autorestart is 'maybe'; it can be true, false or unexpected"),
        ("autorestart = unexpectd", "it can be true, false or unexpected; did you mean 'unexpected'?"),
        ("exitcodes = 0,256", "exitcodes is '0,256'; write exit codes from 0 to 255"),
        ("stdout_logfile_maxbytes = 5XB", "stdout_logfile_maxbytes is '5XB', not a size"),
        ("environment = A", "environment can't be read from 'A' on"),
        ('environment = A="x', "environment can't be read from 'A=\"x' on"),
        ('environment = A="x ; y"', "what follows ; or # after white space is a comment, also in quotation marks"),
        ("stop_command = sh -c 'a ; b'", "no closing quotation; close the quotation mark (what follows ; or # after"),
        ("stop_command = run \\", "no escaped character; take the \\ at its end away"),
        ("user = nobody-here", "user names the user 'nobody-here', who does not exist"),
        ("numprocs = -1", "numprocs is '-1', not a whole number from 0 to 10000"),
        ('directory = "/srv/web"', "the quotation marks would be part of the path"),
        (
            "stdout_journal = true\nstdout_logfile = /dev/stdout\nstdout_logfile_maxbytes = 0",
            "stdout_journal needs the output of the program",
        ),
        ("directory = %(nope)s", "directory uses %(nope)s, which is not known; known are group_name, here"),
        ("directory = full to 100%", "directory has a single %; write %% for a percent sign"),
        ("directory = %(ENV_HOEM)s", "there is no environment variable 'HOEM'; did you mean %(ENV_HOME)s?"),
        ("replicas = 2", "replicas is for training jobs, and without checkpoint_dir this is not one"),
    ],
)
def test_a_wrong_value_says_what_why_and_what_to_do(complaints, line, text):
    (problem,) = complaints(f"{DAEMON}[program:x]\ncommand = run\n{line}\n", {"HOME": "/root"})

    assert problem.startswith("train.conf:4: [program:x] ")
    assert text in problem


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "entrypoint = train.py",
            "not a module and a function in it such as examples.digits:train; for a script write",
        ),
        (
            "strategy = mirored",
            "strategy is 'mirored'; it can be auto, mirrored, one-device, multiworker or tpu; did you mean 'mirrored'?",
        ),
        ("replicas = 0", "replicas is '0', not a whole number from 1 to 1000000"),
        ("checkpoint_interval = 1e30 steps", "checkpoint_interval is '1e30 steps', not an interval"),
        ("replicas = ٣", "replicas is '٣', not a whole number"),
        ("checkpoint_interval = 500", "checkpoint_interval is '500', not an interval; write for example '500 steps'"),
        ("checkpoint_keep = 0", "checkpoint_keep is '0', not a whole number from 1"),
        ("checkpoint_keep_every = 6", "checkpoint_keep_every is '6' without a unit; write for example '6 hours'"),
        ("checkpoint_keep_best = loss", "checkpoint_keep_best is 'loss', not a rule; write for example 'min loss'"),
        ("flush_timeout = 0", "flush_timeout is '0'; it must be longer than 0"),
        ("durable = remotely", "durable is 'remotely'; it can be local or remote; did you mean 'remote'?"),
        ("replay = 1%", "replay compares bits, but deterministic is false"),
        ("replay = 70%", "write a share of training time from 0.01% to 50%"),
        ("on_replay_difference = stop", "on_replay_difference has no effect without replay"),
        ("durable = remote", "durable is remote but the job has no mirror; add mirror = s3://BUCKET/PREFIX, or delete"),
        (
            "checkpoint_interval_min = 31 minutes",
            "checkpoint_interval_min is 1860 s but checkpoint_interval_max is 1800 s; set a minimum that is not",
        ),
    ],
)
def test_a_wrong_job_value_says_so(complaints, line, text):
    command = "" if line.startswith("entrypoint") else "entrypoint = a:b"
    (problem,) = complaints(f"{DAEMON}[program:x]\ncheckpoint_dir = c\n{command}\n{line}\n")

    assert problem.startswith("train.conf:5: [program:x] ")
    assert text in problem


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], "has no command; add command = PROGRAM ARGUMENTS"),
        (["command = a", *JOB], "has both command and entrypoint; delete one of them"),
        (["checkpoint_dir = c"], "has neither command nor entrypoint; add one of them"),
        (["entrypoint = a:b"], "entrypoint is for training jobs, and without checkpoint_dir this is not one"),
        (["command = a", "stopasgroup = true", "killasgroup = false"], "killasgroup is false but stopasgroup is true"),
        ([*JOB, "strategy = one-device", "replicas = 2"], "replicas is 2 but strategy is one-device"),
        ([*JOB, "replicas_min = 3", "replicas = 2"], "replicas_min is 3 but replicas is 2"),
        ([*JOB, "strategy = tpu", "replicas_min = 3"], "replicas_min has no effect with strategy = tpu"),
        ([*JOB, "strategy = multiworker", "replicas = 2"], "set the number of processes with workers"),
        (
            [*JOB, "strategy = mirrored", "workers = 2"],
            "workers is for strategy = multiworker, but strategy is mirrored",
        ),
        ([*JOB, "strategy = multiworker", "workers = 2", "environment = TF_CONFIG=x"], "delete one of them"),
        ([*JOB, "nodes = 2"], "nodes has no effect without strategy = multiworker"),
        ([*JOB, "strategy = multiworker", "nodes = 2", "workers = 2"], "delete one of them"),
        ([*JOB, "checkpoint_dir_shared = false"], "is for several nodes: strategy = multiworker, without workers"),
        ([*JOB, "strategy = multiworker", "workers = 2", "checkpoint_dir_shared = false"], "is for several nodes"),
        ([*OWN_FOLDERS, "checkpoint_dir_shared = false"], "the job has no mirror, and no node would have a whole"),
        ([*OWN_FOLDERS, "mirror = file:///m", "on_nan = skip", "checkpoint_dir_shared = no"], "on_nan = skip can't be"),
        (
            [*OWN_FOLDERS, "mirror = file:///m", "initial_checkpoint = /c", "checkpoint_dir_shared = off"],
            "initial_checkpoint can't be used with checkpoint_dir_shared = false",
        ),
        ([*JOB, "strategy = multiworker", "nodes = 1"], "is '1', not a whole number from 2 to 1024"),
        (["command = a", "checkpoint_dir = c", "python = p"], "python has no effect without entrypoint"),
        (["command = a", "checkpoint_dir = c", "standby = hot"], "standby is hot but the job has no entrypoint"),
        (["command = a", "standby = warm"], "standby is for training jobs"),
        ([*JOB, "standby = tepid"], "it can be off, auto, warm or hot"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(complaints, lines, text):
    (problem,) = complaints("\n".join([DAEMON, "[program:x]", *lines]))

    assert text in problem


def test_two_jobs_may_not_share_a_checkpoint_folder(complaints, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "ckpt")
    sections = "".join(
        f"[program:{name}]\nentrypoint=a:b\ncheckpoint_dir={folder}\n"
        for name, folder in [("a", "ckpt"), ("b", "link")]
    )

    (problem,) = complaints(DAEMON + sections)

    assert "which a uses too; set a separate folder for each job" in problem


def test_checkpoint_folders_on_a_dead_disk_are_compared_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, real = threading.Event(), os.path.realpath

    def silent(path: Path) -> str:
        if str(path).startswith("/nfs"):
            released.wait(20.0)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", silent)
    monkeypatch.setattr(section_relations, "LOOK_LIMIT_S", 0.01)
    path = tmp_path / "s.conf"
    path.write_text(
        DAEMON + "".join(f"[program:{name}]\ncommand=/bin/true\ncheckpoint_dir=/nfs/{name}\n" for name in "ab")
    )

    began_at = time.monotonic()
    config = load_config(path, {})

    assert time.monotonic() - began_at < 10.0
    assert section_relations.is_look_stuck()
    released.set()
    assert list(config.programs) == ["a", "b"]


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "-x", "a:b", "all", "supervisord", "", "n" * 101, "a*"])
def test_names_that_supervisorctl_or_files_can_not_have_are_refused(complaints, name):
    (problem,) = complaints(f"{DAEMON}[program:{name}]\ncommand = x\n")

    assert "name" in problem


def test_a_socket_path_that_no_system_takes_is_refused(complaints, tmp_path):
    long = "s" * 100

    (problem,) = complaints(f"{DAEMON}[unix_http_server]\nfile = {long}\n")

    assert f"file is {len(str(tmp_path)) + 101} bytes long, but the path of a socket at most 98" in problem


def test_the_owner_of_the_socket_is_looked_up(read):
    user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    lines = f"file = /run/x.sock\nchown = {user.pw_name}:{group.gr_name}\nchmod = 0770\n"

    server = read(f"{DAEMON}[unix_http_server]\n{lines}").unix_http_servers[0]

    assert (server.owner, server.chmod) == ((user.pw_uid, group.gr_gid), 0o770)


def test_a_missing_daemon_section_hides_no_other_problem(complaints):
    problems = complaints("[program:x]\nstopsignal = 0\n")

    assert len(problems) == 3
    assert "there is no [supervisord] section; add the line [supervisord], which may stand alone" in problems[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look like somebody else")
def test_without_root_a_program_of_another_user_is_refused(complaints):
    (problem,) = complaints("[supervisord]\nuser = nobody\n[program:x]\ncommand = x\nuser = root\n")

    assert "user is root but the daemon runs as nobody ([supervisord] user)" in problem


def test_problem_of_the_client_section_does_not_stop_the_daemon(read):
    client = "[supervisorctl]\nserverrl = x\nhistory_file = %(ENV_NOPE)s\n[ctlplugin:x]\nsupervisor.ctl_factory = a:b\n"

    remarks = [str(warning).rpartition("/")[2] for warning in read(DAEMON + client).warnings]

    assert remarks[0] == "train.conf:3: [supervisorctl] has no key 'serverrl'; did you mean 'serverurl'?"
    assert "there is no environment variable 'NOPE'" in remarks[1]
    assert remarks[2].startswith("train.conf:5: [ctlplugin:x] is ignored: Supervisor's own supervisorctl reads it")


def test_a_client_s_section_that_is_right_needs_no_remark(read):
    config = read(f"{DAEMON}[supervisorctl]\nserverurl = unix:///x\n")

    assert (config.warnings, config.supervisorctl.serverurl) == ((), "unix:///x")


def test_several_servers_of_a_kind_are_allowed(read):
    text = (
        "[unix_http_server]\nfile = a.sock\n[unix_http_server:b]\nfile = b.sock\n"
        "[inet_http_server:c]\nport = 127.0.0.1:9001\n[inet_http_server:d]\nport = 127.0.0.1:9002\n"
    )

    config = read(DAEMON + text)

    assert [server.file.name for server in config.unix_http_servers] == ["a.sock", "b.sock"]
    assert [server.address[1] for server in config.inet_http_servers] == [9001, 9002]


@pytest.mark.parametrize(
    ("kind", "line", "key"),
    [("unix_http_server", "file = x.sock", "file"), ("inet_http_server", "port = 127.0.0.1:9001", "port")],
)
def test_two_servers_at_one_place_are_refused(complaints, kind, line, key):
    assert complaints(f"{DAEMON}[{kind}:a]\n{line}\n[{kind}:b]\n{line}\n") == [
        f"train.conf:5: [{kind}:b] {key} is the same as that of [{kind}:a]; set another, or delete one of the sections"
    ]


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("train.conf", "a configuration file"),
        ("ctl.sock", "the socket of [unix_http_server]"),
        (".stepkeeper/supervisord.log", "logfile of [supervisord]"),
        (".stepkeeper/changes.log", "changes_logfile of [supervisord]"),
        (".stepkeeper/supervisord.pid", "pidfile of [supervisord]"),
        (".stepkeeper/ledger.sqlite", "where the daemon keeps its own"),
        (".stepkeeper/run/x/1/out.log", "in a folder whose files the daemon reads"),
        (".stepkeeper/notices/n", "in a folder whose files the daemon reads"),
    ],
)
def test_log_of_a_program_is_no_file_of_the_daemon(complaints, tmp_path, file, what):
    [problem] = complaints(
        f"{DAEMON}[unix_http_server]\nfile = ctl.sock\n[program:x]\ncommand = /bin/true\nstderr_logfile = {file}\n"
    )

    assert f"stderr_logfile is {tmp_path}/{file}" in problem and what in problem
    assert problem.endswith(f"delete the line, and it is in {tmp_path}/.stepkeeper/log")


@pytest.mark.parametrize("file", [".stepkeeper/x.log", ".stepkeeper/x.log.1", ".stepkeeper/log/x", "logs/x", "AUTO"])
def test_log_of_a_program_may_be_beside_those_of_the_daemon(program, file):
    assert program("command = /bin/true", f"stdout_logfile = {file}").stdout_logfile is not None


@pytest.mark.parametrize("key", ["changes_logfile", "pidfile"])
def test_files_of_the_daemon_are_not_one(complaints, key):
    [problem] = complaints(f"{DAEMON}logfile = x\n{key} = x\n")

    assert f"{key} is the same file as logfile" in problem


def test_a_log_at_dev_null_is_none(program):
    config = program("command = x", "stdout_logfile = /dev/null", "stderr_logfile = /dev/null")

    assert (config.stdout_logfile, config.stderr_logfile) == (None, None)


def test_the_daemons_log_at_dev_null_is_none_so_that_maintail_says_that_there_is_none(read):
    assert read("[supervisord]\nlogfile = /dev/null\n").supervisord.logfile is None


def test_a_pid_file_that_is_dev_null_is_none(read):
    assert read("[supervisord]\npidfile = /dev/null\n").supervisord.pidfile is None  # or root would delete it


def test_a_daemon_that_would_tell_nobody_is_refused(complaints, read):
    quiet = "[supervisord]\nnodaemon = true\nsilent = true\nlogfile = "

    (problem,) = complaints(quiet + "NONE\n")

    assert (
        "silent is true and logfile is NONE, so there would be no log at all; set logfile, or delete silent" in problem
    )
    assert read(quiet + "x.log\n").supervisord.silent


def test_contradiction_is_reported_beside_a_bad_value(complaints):
    job = (
        "checkpoint_dir = c\nentrypoint = m:f\nstrategy = tpu\nreplicas = 2\nflush_timeout = soon\nautorestart = yes?\n"
    )
    plain = "command = a\nstopasgroup = true\nkillasgroup = false\nstartsecs = soon\n"
    server = "port = 127.0.0.1:0\npassword = a\n"

    problems = complaints(f"{DAEMON}[program:j]\n{job}[program:p]\n{plain}[inet_http_server]\n{server}")

    keys = [problem.partition("] ")[2].split()[0] for problem in problems]
    assert keys == ["replicas", "flush_timeout", "autorestart", "killasgroup", "startsecs", "port", "has"]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("command = a\nstopasgroup = perhaps\nkillasgroup = false", "stopasgroup"),
        ("command = a\nstopasgroup = true\nkillasgroup = perhaps", "killasgroup"),
        ("checkpoint_dir = c\nentrypoint = m:f\nstrategy = none\nreplicas = 2\nworkers = 2", "strategy"),
        ("checkpoint_dir = c\nentrypoint = m:f\ncheckpoint_interval_min = 48 hours\ncheckpoint_interval_max = x",
         "checkpoint_interval_max"),
        ("checkpoint_dir = c\nentrypoint = %(no)s\nstandby = hot", "entrypoint"),
        ("command = a\nstartsecs = soon\n[program:q]\ncommand = a\ndepends_on = p", "startsecs"),
        ("command = a\nstartsecs = soon\n[program:q]\ncommand = a\ndepends_on = p:*", "startsecs"),
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_depends_on_a_wrong_value(complaints, lines, wrong):
    (problem,) = complaints(f"{DAEMON}[program:p]\n{lines}\n")

    assert f"[program:p] {wrong} " in problem


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.conf: cannot read the configuration: No such file"):
        load_config(tmp_path / "none.conf", {})


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("port = 127.0.0.1:0000659999", "port is '127.0.0.1:0000659999'; write host:port"),
        ("port = 127.0.0.1:0", "port is '127.0.0.1:0'; write host:port, such as 127.0.0.1:9001"),
        ("port = nine", "port is 'nine'"),
        ("", "has no 'port'; add it"),
        ("port = 9001\nusername = a", "has username but no password; add password, or delete username"),
        ("port = 127.0.0.1:9001\npassword = a", "has password but no username"),
        ("port = 9001\nusername = a\npassword = {SHA}12", "password begins with {SHA}, but what follows is not"),
        ("port = 9001\nusername = a\npassword = {SCRYPT}12", "password begins with {SCRYPT}, but what follows is no"),
    ],
)
def test_a_wrong_tcp_server_is_refused(complaints, lines, text):
    (problem,) = complaints(f"{DAEMON}[inet_http_server]\n{lines}\n")

    assert text in problem


OPEN_PORTS = {
    "*:9001": ("127.0.0.1", 9001),
    "9001": ("127.0.0.1", 9001),
    "10.0.0.1:9001": ("127.0.0.1", 9001),
    "host.example:9001": ("127.0.0.1", 9001),
    "[::]:9001": ("::1", 9001),
}


@pytest.mark.parametrize("port", OPEN_PORTS)
def test_a_port_without_a_password_is_opened_on_this_host_only(read, port):
    config = read(f"{DAEMON}[inet_http_server]\nport = {port}\n")

    assert [server.address for server in config.inet_http_servers] == [OPEN_PORTS[port]]
    where, who = (remark.text for remark in config.warnings)
    assert f"so the daemon listens on {OPEN_PORTS[port][0]} only; set username and password" in where
    assert "every user of this host" in who


def test_a_port_with_a_password_is_opened_where_it_is_configured(read):
    config = read(f"{DAEMON}[inet_http_server]\nport = *:9001\nusername = a\npassword = b\n")

    assert [server.address for server in config.inet_http_servers] == [(None, 9001)]
    assert config.warnings == ()


def test_an_empty_command_keeps_only_its_own_program_from_being_started(read):
    config = read(f"{DAEMON}[program:a]\ncommand =\n[program:b]\ncommand = /bin/cat\n")

    assert [*config.programs] == ["a", "b"]
    assert [remark.text for remark in config.warnings] == [
        "[program:a] command is empty, so it can't be started; write the program to run"
    ]


def test_an_empty_command_of_a_job_is_refused(complaints):
    (problem,) = complaints(f"{DAEMON}[program:a]\ncommand =\ncheckpoint_dir = c\n")

    assert "command is empty; write the program to run and its arguments" in problem


@pytest.mark.parametrize(
    ("port", "address"),
    [("127.0.0.1:9001", ("127.0.0.1", 9001)), ("[::1]:9001", ("::1", 9001)), ("localhost:1", ("localhost", 1))],
)
def test_a_loopback_address_needs_no_password(read, port, address):
    assert read(f"{DAEMON}[inet_http_server]\nport = {port}\n").inet_http_servers[0].address == address


def test_owners_of_notices_are_users_that_exist(read, complaints):
    owners = read(f"{DAEMON}notice_owners = root, 0\n").supervisord.notice_owners

    assert owners == frozenset({0})
    assert "names the user 'nobody-here'" in complaints(f"{DAEMON}notice_owners = root, nobody-here\n")[0]


@pytest.mark.parametrize("word", ["syslog", "journal", "SYSLOG"])
def test_a_log_file_called_as_a_log_daemon_is_that_and_no_file(read, word):
    config = read("[supervisord]\nlogfile = syslog\n[program:x]\ncommand = run\nstdout_logfile = " + word + "\n")

    program = config.programs["x"]
    assert (program.stdout_logfile, program.stdout_syslog, program.stdout_journal) == (
        None,
        word.lower() == "syslog",
        word == "journal",
    )
    assert config.supervisord.log_to_syslog and config.supervisord.logfile is None


def test_script_beside_a_worker_of_its_own_is_refused_if_it_uses_stepkeepers(tmp_path, complaints, program):
    (tmp_path / "worker.py").touch()
    (tmp_path / "train.py").write_text("import worker\nwith worker.Run() as run:\n    pass\n")
    (tmp_path / "speaks.py").write_text("import worker\nworker.train()\n")
    lines = [f"directory = {tmp_path}", "checkpoint_dir = c"]

    (problem,) = complaints(DAEMON + "\n".join(["[program:x]", *lines, "command = python train.py"]))

    assert f"train.py would import {tmp_path}/worker.py instead of stepkeeper's package worker" in problem
    assert "rename worker.py" in problem
    assert program(*lines, "command = python speaks.py").command == ("python", "speaks.py")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.hostile
@pytest.mark.parametrize("make", [pipe, terabyte])
def test_whatever_a_script_is_neither_holds_nor_costs_who_reads_the_configuration(tmp_path, program, make):
    make(tmp_path / "train.py")
    lines = [f"directory = {tmp_path}", "checkpoint_dir = c", "command = python train.py"]
    config: Future[ProgramConfig] = Future()
    threading.Thread(target=lambda: config.set_result(program(*lines)), daemon=True).start()

    assert config.result(10.0).command == ("python", "train.py")


def test_a_line_prefix_knows_four_words(program, complaints):
    assert program("command=/bin/cat", "stdout_line_prefix={time} |").stdout_line_prefix == "{time} |"
    (why,) = complaints("[supervisord]\n[program:x]\ncommand=/bin/cat\nstdout_line_prefix={pid}\n")
    assert "{time}, {program}, {attempt} or {channel}" in why


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            "[program:b]\ncommand = /bin/a\ncheckpoint_dir = c\n[program:b]\ncommand = /bin/b\n",
            5,
            "[program:b] stands in line 2 too, with another command; give one of them a name of its own",
        ),
        (
            "[program:a]\ncommand = /bin/a\n\n [program:b]\ncommand = /bin/b\ncheckpoint_dir = c\n",
            5,
            "[program:a] '[program:b]' begins with white space, so it goes on with the value of command above it",
        ),
    ],
    ids=["a copy whose name was not changed", "an indented header"],
)
def test_a_section_that_another_one_swallows_is_a_problem_of_that_section(read, text, line, says):
    with pytest.raises(SectionsBroken) as refused:
        read(DAEMON + text)

    (problem,) = refused.value.problems
    assert (problem.location.line, problem.section) == (line, says[1:].partition("]")[0])
    assert says in problem.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "command = /bin/a\ncheckpoint_dir = c\ncommand = /bin/b",
            "5: [program:x] command is set twice: this replaces line 3",
        ),
        ("command = /bin/a\n autostart = no", "4: [program:x] 'autostart = no' begins with white space, so it goes on"),
        ("command = /bin/a\n\n[program:x]\ncommand = /bin/b", "6: [program:x] command is set twice: this replaces"),
    ],
)
def test_a_line_that_replaces_another_or_goes_on_with_it_is_a_remark_on_what_is_supervisors(read, text, says):
    (remark,) = read(f"{DAEMON}[program:x]\n{text}\n").warnings

    assert says in str(remark)


def test_included_files_that_replace_each_others_values_of_a_program_are_remarked_upon(read, tmp_path):
    """One may be a copy of the other whose section was not renamed."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_text("[program:x]\ncommand = /bin/a\n")
    (folder / "b.conf").write_text("[program:x]\ncommand = /bin/b\n")

    config = read(f"{DAEMON}[include]\nfiles = conf.d/*.conf\n[program:x]\ncommand = /bin/main\n")

    (remark,) = config.warnings
    assert str(remark).startswith(f"{folder}/b.conf:2: [program:x] command is set in {folder}/a.conf:2 too: this one")
    assert config.programs["x"].command == ("/bin/b",)


def test_lines_that_go_on_and_values_that_come_again_as_they_are_meant_are_no_remark(read, tmp_path):
    (tmp_path / "more.conf").write_text("[program:x]\nstopwaitsecs = 20\n")
    text = 'command = sh -c "\n  [ -f a ]\n  b=c\n  "\nenvironment = A=1,\n  user=2\nstopwaitsecs = 5\nautostart = no\n'

    config = read(f"{DAEMON}[include]\nfiles = more.conf\n[program:x]\n{text}autostart = no\n")

    assert config.warnings == ()
    assert config.programs["x"].stopwaitsecs == 20
