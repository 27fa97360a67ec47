"""Checks of the keys of [supervisord] and of the servers against each other and against this host."""

import ipaddress
import os
from collections.abc import Sequence

from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.server import InetServerConfig, UnixServerConfig
from supervisor.config.schema.check import SectionReader

MAX_SOCKET_PATH_BYTES = 98
"""The socket is bound under a name that is up to 9 bytes longer, and renamed then."""


def check_socket(server: UnixServerConfig, reader: SectionReader) -> None:
    """Adds problems for a socket that the system can't make."""
    length = len(os.fsencode(server.file))
    if length > MAX_SOCKET_PATH_BYTES:
        text = (
            f"file is {length} bytes long, but the path of a socket at most {MAX_SOCKET_PATH_BYTES}; set a shorter path"
        )
        reader.add_problem(f"{text}, such as /run/stepkeeper.sock", "file")
    if server.owner is not None and os.geteuid() != 0 and server.owner[0] != os.geteuid():
        reader.add_problem(
            "chown gives the socket to another user, which takes root; delete the line, or run supervisord as root",
            "chown",
        )


def check_address(server: InetServerConfig, reader: SectionReader) -> None:
    """Adds a problem for an address that other hosts reach without a password, a remark for one that all users do."""
    if server.username is None and is_loopback(server.address[0]):
        reader.add_remark(
            "every user of this host, and every job, can do anything with this daemon through port, as there is no "
            "password; set username and password, or use [unix_http_server] instead",
            "port",
        )
    elif server.username is None:
        text = "port can be reached from other hosts; set username and password, or listen on 127.0.0.1 only"
        reader.add_problem(text, "port")


def check_duplicate_address(
    server: UnixServerConfig | InetServerConfig,
    reader: SectionReader,
    others: Sequence[tuple[UnixServerConfig | InetServerConfig, str]],
) -> None:
    """Adds a problem for an address that another section has too."""
    key = "file" if isinstance(server, UnixServerConfig) else "port"
    for other, name in others:
        if _where(server) == _where(other):
            reader.add_problem(
                f"{key} is the same as that of [{name}]; set another, or delete one of the sections", key
            )


def _where(server: UnixServerConfig | InetServerConfig) -> object:
    return server.file if isinstance(server, UnixServerConfig) else server.address


def check_daemon(daemon: SupervisordConfig, reader: SectionReader) -> None:
    """Adds a problem for settings of [supervisord] that leave it without any log."""
    if daemon.silent and daemon.nodaemon and daemon.logfile is None and not daemon.log_to_syslog:
        reader.add_problem(
            "silent is true and logfile is NONE, so there would be no log at all; set logfile, or delete silent",
            "silent",
        )


def check_login(server: UnixServerConfig | InetServerConfig, reader: SectionReader) -> None:
    """Adds a problem for a user name without a password, or the other way round."""
    if (server.username is None) != (server.password is None):
        given, missing = ("username", "password") if server.password is None else ("password", "username")
        reader.add_problem(f"has {given} but no {missing}; add {missing}, or delete {given}", given)


def is_loopback(host: str | None) -> bool:
    """Whether an address can be reached from this host only."""
    try:
        return host == "localhost" or (host is not None and ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
