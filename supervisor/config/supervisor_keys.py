"""What Supervisor's configuration knows and stepkeeper does not do: recognised by name, never ignored in silence.

A key with the value that changes nothing is accepted, so that most files work as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A key of Supervisor's: the written values that ask for nothing, and what to do instead of others."""

    harmless: tuple[str, ...]
    remedy: str


_OFF = ("false", "no", "off", "0")
_LIMIT = "set it where supervisord starts: LimitNOFILE= and LimitNPROC= in a systemd unit, or ulimit"

PROGRAM: Mapping[str, Unsupported] = {
    "serverurl": Unsupported(("auto",), "programs are told the socket in SUPERVISOR_SERVER_URL; take the line out"),
}
SUPERVISORD: Mapping[str, Unsupported] = {
    "minfds": Unsupported(("1024",), _LIMIT),
    "minprocs": Unsupported(("200",), _LIMIT),
    "nocleanup": Unsupported(_OFF, "logs are never deleted at a start; take the line out"),
    "silent": Unsupported(_OFF, "send standard error where you want it: supervisord -n 2>/dev/null"),
    "strip_ansi": Unsupported(_OFF, "logs are kept as they were written; strip them when reading"),
}

SECTIONS: Mapping[str, str] = {
    "fcgi-program": "run FastCGI programs under a web server's own process control",
    "rpcinterface": "only the stock line of [rpcinterface:supervisor] is accepted",
    "ctlplugin": "supervisorctl's actions are fixed",
}
"""Kinds of section, and what to do instead."""

STOCK_RPC_SECTION = "rpcinterface:supervisor"
STOCK_RPC = {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"}
"""Stands in every sample file; accepted and never imported."""
