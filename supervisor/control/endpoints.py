"""From the configuration to the sockets that clients come in by."""

import contextlib
import os
from collections.abc import Iterator

import structlog

from supervisor.config import Config, InetServerConfig, UnixServerConfig
from supervisor.control.http import sockets
from supervisor.control.http.access import Login
from supervisor.control.server import Endpoint

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

log = structlog.get_logger()


@contextlib.contextmanager
def open_endpoints(config: Config) -> Iterator[tuple[Endpoint, ...]]:
    """Every configured socket, open; in the end the one in the file system is taken away. Raises ListenError."""
    with contextlib.ExitStack() as close:
        endpoints: list[Endpoint] = []
        endpoints += [_unix_endpoint(each, close) for each in config.unix_http_servers]
        endpoints += [_tcp_endpoint(each, close) for each in config.inet_http_servers]
        yield tuple(endpoints)


def _unix_endpoint(settings: UnixServerConfig, close: contextlib.ExitStack) -> Endpoint:
    listener = sockets.listen_on_file(settings.file, settings.chmod, settings.owner)
    close.callback(listener.close)
    ours = settings.file.stat().st_ino

    def take_away() -> None:
        with contextlib.suppress(FileNotFoundError):
            if settings.file.stat().st_ino == ours:
                settings.file.unlink()

    close.callback(take_away)
    return Endpoint(listener, settings.owner[0] if settings.owner else os.geteuid(), _login(settings))


def _tcp_endpoint(settings: InetServerConfig, close: contextlib.ExitStack) -> Endpoint:
    host, port = settings.address
    listener = sockets.listen_on_address(host, port)
    close.callback(listener.close)
    login = _login(settings)
    if login is None:
        log.warning(
            "control.open_to_all", address=f"{host}:{port}", remedy="set username and password in [inet_http_server]"
        )
    return Endpoint(listener, os.geteuid(), login, None if login else LOCAL | {host or "localhost"})


def _login(settings: UnixServerConfig | InetServerConfig) -> Login | None:
    if settings.username is None or settings.password is None:
        return None
    return Login(settings.username, settings.password)
