"""Checks of the keys of [supervisord] and of the servers against each other and against this host."""

import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from supervisor.config.keys.daemon import DAEMON_FILES, SupervisordConfig
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
    """Adds a remark for an address without a password."""
    if server.username is not None or server.password is not None:
        return
    closed = closed_to_others(server)
    if closed.address != server.address:
        reader.add_remark(
            f"port is open to other hosts, but there is no password, so the daemon listens on {closed.address[0]} "
            f"only; set username and password to be reached from other hosts",
            "port",
            is_change=True,
        )
    reader.add_remark(
        "every user of this host, and every job, can do anything with this daemon through port, as there is no "
        "password; set username and password, or use [unix_http_server] instead",
        "port",
        is_change=True,
    )


def closed_to_others(server: InetServerConfig) -> InetServerConfig:
    """The server on an address that only this host reaches, if it has no password.

    Many a file for Supervisor has such a port, open to whoever reaches it, and Supervisor serves it.
    """
    host, port = server.address
    if server.username is not None or is_loopback(host):
        return server
    loopback = "::1" if host is not None and ":" in host else "127.0.0.1"
    return InetServerConfig.build({"port": (loopback, port)})


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
    """Adds a problem for settings of [supervisord] that leave it without any log, or have two files in one place."""
    owners: dict[Path, str] = {}
    for key in DAEMON_FILES:
        file = getattr(daemon, key)
        if file is not None and (owner := owners.setdefault(file, key)) != key:
            reader.add_problem(f"{key} is the same file as {owner}; set another, or delete one of the lines", key)
    if daemon.silent and daemon.nodaemon and daemon.logfile is None and not daemon.log_to_syslog:
        reader.add_problem(
            "silent is true and logfile is NONE, so there would be no log at all; set logfile, or delete silent",
            "silent",
        )


def check_login(server: UnixServerConfig | InetServerConfig, reader: SectionReader) -> None:
    """Adds a problem for a user name without a password, or the other way round."""
    if (server.username is None) != (server.password is None):
        present, missing = ("username", "password") if server.password is None else ("password", "username")
        reader.add_problem(f"has {present} but no {missing}; add {missing}, or delete {present}", present)


def is_loopback(host: str | None) -> bool:
    """Whether an address can be reached from this host only."""
    try:
        return host == "localhost" or (host is not None and ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
