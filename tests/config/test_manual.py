"""Every configuration example of Supervisor 4.3.0's manual, with our own values: it loads, or is refused by name.

The names say the page and what the example shows there.
"""

import getpass
from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load_config

ME = getpass.getuser()

EVERY_PROGRAM_KEY = f"""
command=/bin/cat
process_name=%(program_name)s
numprocs=1
directory=/var
umask=027
priority=100
autostart=true
autorestart=unexpected
startsecs=5
startretries=4
exitcodes=0,2
stopsignal=INT
stopwaitsecs=20
stopasgroup=false
killasgroup=false
user={ME}
redirect_stderr=false
stdout_logfile=/var/log/cat.log
stdout_logfile_maxbytes=2MB
stdout_logfile_backups=5
stdout_capture_maxbytes=2MB
stdout_events_enabled=false
stderr_logfile=/var/log/cat.log
stderr_logfile_maxbytes=2MB
stderr_logfile_backups=5
stderr_capture_maxbytes=2MB
stderr_events_enabled=false
environment=FIRST="1",SECOND="2"
serverurl=AUTO
"""

LOADS = {
    "configuration: an environment variable in a command": """
[program:web]
command=/usr/bin/web --level=%(ENV_WEB_LEVEL)s
""",
    "configuration: [unix_http_server]": f"""
[unix_http_server]
file = /run/old.sock
chmod = 0777
chown= {ME}:root
username = someone
password = 321
""",
    "configuration: [inet_http_server]": """
[inet_http_server]
port = 127.0.0.1:9001
username = someone
password = 321
""",
    "configuration: [supervisord]": f"""
[supervisord]
logfile = /var/log/old.log
logfile_maxbytes = 20MB
logfile_backups=3
loglevel = info
pidfile = /run/old.pid
nodaemon = false
minfds = 1024
minprocs = 200
umask = 022
user = {ME}
identifier = old
directory = /var
nocleanup = true
childlogdir = /var/log
strip_ansi = false
environment = FIRST="1",SECOND="2"
""",
    "configuration, xmlrpc: [rpcinterface:x] with code of others": """
[rpcinterface:other]
supervisor.rpcinterface_factory = mine.package:make_other
retries = 1
""",
    "configuration: [supervisorctl]": """
[supervisorctl]
serverurl = unix:///run/old.sock
username = someone
password = 321
prompt = old
""",
    "configuration: [program:x]": f"[program:cat]{EVERY_PROGRAM_KEY}",
    "configuration: [include] with a pattern that matches nothing": """
[include]
files = /nowhere/at/all/*.conf config??.conf
""",
    "configuration: [group:x]": """
[program:left]
command=/bin/cat
[program:right]
command=/bin/cat
[group:both]
programs=left,right
priority=5
""",
    "configuration: [eventlistener:x]": f"""
[eventlistener:ear]
command=/bin/ear
process_name=%(program_name)s_%(process_num)02d
numprocs=3
events=PROCESS_STATE
buffer_size=20
directory=/var
umask=027
priority=-1
autostart=true
autorestart=unexpected
startsecs=1
startretries=3
exitcodes=0
stopsignal=QUIT
stopwaitsecs=10
stopasgroup=false
killasgroup=false
user={ME}
redirect_stderr=false
stdout_logfile=/var/log/ear.log
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=10
stdout_events_enabled=false
stderr_logfile=/var/log/ear.log
stderr_logfile_maxbytes=1MB
stderr_logfile_backups=10
stderr_events_enabled=false
environment=FIRST="1",SECOND="2"
serverurl=AUTO
""",
    "configuration, xmlrpc, upgrading: [rpcinterface:supervisor]": """
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
""",
    "events: a listener with options": """
[eventlistener:memory]
command=memmon -a 1GB -m ops@example.org
events=TICK_60
""",
    "events: a listener of two types": """
[eventlistener:mine]
command=mine.py
events=PROCESS_STATE,TICK_60
""",
    "running: the smallest program": """
[program:small]
command=/bin/cat
""",
    "subprocess: a server in the foreground": """
[program:web]
command=/opt/web/httpd -c "ErrorLog /dev/stdout" -DFOREGROUND
redirect_stderr=true
""",
    "subprocess: a storage server before two that use it": """
[program:store]
command=/opt/store/run
priority=1

[program:one]
command=/opt/one/bin/run
priority=2
redirect_stderr=true

[program:two]
command=/opt/two/bin/run
priority=2
redirect_stderr=true
""",
    "subprocess: a signal with a remark before it": """
[program:database]
command=/opt/database/postmaster
; SIGINT is its "fast" shutdown
stopsignal=INT
redirect_stderr=true
""",
    "subprocess: a URL among the arguments": """
[program:directory]
command=/opt/slapd -f /etc/slapd.conf -h ldap://0.0.0.0:8888
redirect_stderr=true
""",
    "subprocess: pidproxy": """
[program:mysql]
command=/opt/bin/pidproxy /run/mysql.pid /opt/mysqld_safe
""",
    "subprocess: a user and its variables": f"""
[program:web]
command=/home/me/httpd -c "ErrorLog /dev/stdout" -DFOREGROUND
user={ME}
environment=HOME="/home/me",USER="me"
""",
    "plugins: an action of the client's": """
[ctlplugin:wild]
supervisor.ctl_factory = wild:plugin
""",
}

REFUSED = {
    "configuration: [fcgi-program:x]": (
        """
[fcgi-program:form]
command=/usr/bin/form.fcgi
socket=unix:///run/%(program_name)s.sock
socket_owner=me
""",
        "[fcgi-program:form] is a Supervisor section that stepkeeper does not support; run FastCGI programs under "
        "a web server's own process control",
    ),
    "configuration: [include] of a file that is not there": (
        """
[include]
files = /nowhere/at/all.conf
""",
        "[include] files names '/nowhere/at/all.conf', which does not exist; correct the name or take it out",
    ),
}


def loaded(folder: Path, text: str) -> Config:
    path = folder / "manual.conf"
    path.write_text(text if "[supervisord]" in text else f"[supervisord]\n{text}")
    return load_config(path, {"WEB_LEVEL": "info"})


@pytest.mark.parametrize("name", LOADS)
def test_an_example_loads(tmp_path: Path, name: str):
    config = loaded(tmp_path, LOADS[name])

    sections = LOADS[name].count("[program:")
    listening = 3 if "numprocs=3" in LOADS[name] else LOADS[name].count("[eventlistener:")
    assert len(config.programs) == sections + listening


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_is_refused_by_name(tmp_path: Path, name: str):
    text, reason = REFUSED[name]

    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)

    assert [problem.text for problem in caught.value.problems] == [reason]


def test_every_value_of_the_long_example_is_taken(tmp_path: Path):
    cat = loaded(tmp_path, LOADS["configuration: [program:x]"]).programs["cat"]

    assert (cat.umask, cat.priority, cat.startsecs, cat.startretries, cat.stopwaitsecs) == (0o027, 100, 5.0, 4, 20.0)
    assert (cat.exitcodes, cat.stopsignal.name, cat.user) == (frozenset({0, 2}), "SIGINT", ME)
    assert cat.stdout_logfile == cat.stderr_logfile == Path("/var/log/cat.log")
    assert (cat.stdout_logfile_maxbytes, cat.stdout_logfile_backups, cat.stdout_capture_maxbytes) == (
        2 << 20,
        5,
        2 << 20,
    )
    assert cat.environment == {"FIRST": "1", "SECOND": "2"}


def test_every_value_of_the_daemon_s_example_is_taken(tmp_path: Path):
    daemon = loaded(tmp_path, LOADS["configuration: [supervisord]"]).supervisord

    assert (daemon.logfile, daemon.pidfile) == (Path("/var/log/old.log"), Path("/run/old.pid"))
    assert (daemon.logfile_maxbytes, daemon.logfile_backups, daemon.loglevel) == (20 << 20, 3, "info")
    assert (daemon.minfds, daemon.minprocs, daemon.user, daemon.identifier) == (1024, 200, ME, "old")
    assert (daemon.directory, daemon.childlogdir) == (Path("/var"), Path("/var/log"))
