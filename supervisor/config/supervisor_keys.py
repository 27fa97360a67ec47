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


_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "0")

PROGRAM: Mapping[str, Unsupported] = {
    "serverurl": Unsupported(("auto",), "programs are told the socket in SUPERVISOR_SERVER_URL; take the line out"),
}
SUPERVISORD: Mapping[str, Unsupported] = {
    "nocleanup": Unsupported((*_ON, *_OFF), "logs are never deleted at a start; take the line out"),
    "strip_ansi": Unsupported(_OFF, "logs are kept as they were written; strip them when reading"),
}

SECTIONS: Mapping[str, str] = {
    "fcgi-program": "run FastCGI programs under a web server's own process control",
    "rpcinterface": "only the stock line of [rpcinterface:supervisor] is accepted",
}
"""Kinds of section, and what to do instead."""

IGNORED: Mapping[str, str] = {
    "ctlplugin": "Supervisor's own supervisorctl reads it, and ours has no plug-ins",
}
"""Kinds of section that the daemon has no use for, as Supervisor's has none; and whose they are."""

STOCK_RPC_SECTION = "rpcinterface:supervisor"
STOCK_RPC = {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"}
"""Stands in every sample file; accepted and never imported."""
