"""The action `page`: the programs of several hosts, or of one, in the user's own browser."""

import contextlib
import socket
from dataclasses import replace
from urllib.parse import urlsplit

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.hosts import Host
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import whole_number

PORT = "--port"
OPTIONS = (PORT,)
MAX_PORT = 65535


def page(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the page until Ctrl-C."""
    from supervisor.ctl import hosts_page  # a server: slow to import

    port = _port(arguments)
    url = terminal.client.url
    hosts = terminal.hosts or (Host(urlsplit(url).hostname or socket.gethostname(), url),)
    watch = hosts_page.Watch(hosts, lambda host: replace(terminal.client, url=host.url).call("status"))
    try:
        server = hosts_page.HostsPage(watch, port)
    except OSError as error:
        terminal.print_line(f"ERROR: cannot listen at 127.0.0.1:{port}: {error.strerror}; choose another {PORT}")
        return ExitStatus.ERROR
    with server:
        terminal.print_result({"url": server.url}, [server.url])
        terminal.print_remark("open this address in a browser of this host; Ctrl-C ends the page")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return ExitStatus.OK


def _port(arguments: Arguments) -> int:
    """0 if none is named. Raises UsageError."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    if not words:
        return 0
    if len(words) != 2 or words[0] != PORT:
        raise UsageError(f"Error: page accepts only {PORT} NUMBER")
    port = whole_number(words[1], 1, MAX_PORT)
    if port is None:
        raise UsageError(f"Error: {PORT} takes a number from 1 to {MAX_PORT}, not {words[1]!r:.40}")
    return port
