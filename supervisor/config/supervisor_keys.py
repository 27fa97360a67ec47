"""What Supervisor's configuration knows and stepkeeper does not do: recognised by name, never ignored in silence.

A key with the value that changes nothing is accepted, so that most files work as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A key of Supervisor's or of one of its plug-ins: what to do instead.

    `harmless`: the written values that ask for nothing; `ignored`: those without which programs run as well;
    `is_ignorable`: programs run as well without any value.
    """

    harmless: tuple[str, ...]
    remedy: str
    ignored: tuple[str, ...] = ()
    is_ignorable: bool = False


_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "0")

PROGRAM: Mapping[str, Unsupported] = {
    "serverurl": Unsupported(
        ("auto",), "programs are told the daemon's own socket in SUPERVISOR_SERVER_URL", is_ignorable=True
    ),
}
SUPERVISORD: Mapping[str, Unsupported] = {
    "nocleanup": Unsupported((*_ON, *_OFF), "logs are never deleted at a start; take the line out"),
    "strip_ansi": Unsupported(_OFF, "logs are kept as programs write them; strip them when reading", ignored=_ON),
}

SECTIONS: Mapping[str, str] = {
    "fcgi-program": "run FastCGI programs under a web server's own process control",
    "DEFAULT": "write values for all programs into [program-defaults]",
}
"""Kinds of section, and what to do instead."""

IGNORED: Mapping[str, str] = {
    "ctlplugin": "Supervisor's own supervisorctl reads it, and ours has no plug-ins",
    "rpcinterface": "the daemon loads no code of others, so clients can't call methods that it would add",
}
"""Kinds of section without which programs run as well; and what is missing."""

# fmt: off
_CHANNEL_KEYS = (
    "logfile", "logfile_maxbytes", "logfile_backups", "capture_maxbytes", "events_enabled", "syslog"
)
_PROGRAM_KEYS = frozenset({
    "command", "process_name", "numprocs", "numprocs_start", "directory", "umask", "priority", "autostart",
    "autorestart", "startsecs", "startretries", "exitcodes", "stopsignal", "stopwaitsecs", "stopasgroup",
    "killasgroup", "user", "redirect_stderr", "environment", "serverurl",
}) | {f"{channel}_{key}" for channel in ("stdout", "stderr") for key in _CHANNEL_KEYS}
_LOGIN = frozenset({"username", "password"})

SUPERVISORS: Mapping[str, frozenset[str]] = {
    "program": _PROGRAM_KEYS,
    "eventlistener": _PROGRAM_KEYS | {"events", "buffer_size", "result_handler"},
    "group": frozenset({"programs", "priority"}),
    "supervisord": frozenset({
        "logfile", "logfile_maxbytes", "logfile_backups", "loglevel", "pidfile", "umask", "nodaemon", "silent",
        "minfds", "minprocs", "nocleanup", "childlogdir", "user", "directory", "strip_ansi", "environment",
        "identifier",
    }),
    "unix_http_server": _LOGIN | {"file", "chmod", "chown"},
    "inet_http_server": _LOGIN | {"port"},
    "supervisorctl": _LOGIN | {"serverurl", "prompt", "history_file"},
}
# fmt: on
"""The keys of Supervisor 4.3.0 by kind of section. It ignores all others, so a file may have any."""

ALL = frozenset[str]().union(*SUPERVISORS.values())
"""The keys of Supervisor 4.3.0, of whatever section."""

STOCK_RPC_SECTION = "rpcinterface:supervisor"
STOCK_RPC = {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"}
"""Stands in every sample file; accepted and never imported."""
