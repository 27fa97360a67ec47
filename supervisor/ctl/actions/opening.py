"""The action `open`: another daemon to talk to."""

from dataclasses import replace

from supervisor.ctl.actions import listing
from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.settings import is_url
from supervisor.ctl.terminal import ExitStatus, Terminal


def opened(terminal: Terminal, arguments: Arguments) -> Terminal:
    """The same terminal with another daemon behind it, asked with the same login. Raises Usage."""
    if len(arguments) != 1:
        raise UsageError("Error: open requires a URL")
    return replace(terminal, client=replace(terminal.client, url=arguments[0]))


def open_url(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the status of the daemon at an address; in the shell, all that follows goes there."""
    terminal = opened(terminal, arguments)
    if not is_url(terminal.client.url):
        terminal.print_line("ERROR: url must be http:// or unix://")
        return ExitStatus.ERROR
    status = listing.status(terminal, [])
    return ExitStatus.OK if status is ExitStatus.DOWN else status  # it was opened, whatever runs there
