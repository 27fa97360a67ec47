"""The file of hosts: where the daemons listen that one command asks together."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.ctl.settings import SettingsError, is_url
from supervisor.ini.ownership import problems_of_ownership
from supervisor.protocol.plurals import counted_bytes

DEFAULT_PORT = 9001  # Supervisor's
MAX_BYTES = 1 << 20
MAX_HOSTS = 1000  # each has a thread while it is asked
ANSWERS_WITHIN_S = 9.0  # so that a host that does not answer is named within 10 s
ALL = "all"


@dataclass(frozen=True, slots=True)
class Host:
    """A daemon. `name`: what people call it."""

    name: str
    url: str


def read_hosts(path: Path) -> tuple[Host, ...]:
    """The hosts in the order of the file: `NAME`, `NAME URL` or `URL` in each line, `#` begins a comment.

    A name alone is `http://NAME:9001`. Raises SettingsError; also for a file that other users may change, as the
    password is sent where it says.
    """
    if wrong := problems_of_ownership([path], [], os.environ):
        raise SettingsError(str(wrong[0]))
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"cannot read the hosts from {path}: {reason}") from error
    if len(text) > MAX_BYTES:
        raise SettingsError(f"cannot read the hosts from {path}: it is larger than {counted_bytes(MAX_BYTES)}")
    hosts = tuple(_hosts(path, text))
    if not hosts:
        raise SettingsError(f"{path} names no host; write `NAME`, `NAME URL` or `URL` in each line")
    if len(hosts) > MAX_HOSTS:
        raise SettingsError(f"{path} names {len(hosts)} hosts, more than {MAX_HOSTS}; divide it")
    return hosts


def _hosts(path: Path, text: str) -> Iterator[Host]:
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2:
            raise SettingsError(f"{path}:{number}: {line.strip()!r} has too many words; write `NAME URL`")
        url = words[-1] if "://" in words[-1] or len(words) == 2 else f"http://{words[0]}:{DEFAULT_PORT}"
        if not is_url(url) or urlsplit(url).username is not None:
            raise SettingsError(
                f"{path}:{number}: {url!r} is no address of a daemon; write http://host:port or unix:///path, "
                f"and user name and password with -u and --password-file"
            )
        name = words[0] if words[0] != url else urlsplit(url).hostname or urlsplit(url).path
        if "," in name or name == ALL:
            raise SettingsError(f"{path}:{number}: {name!r} can't name a host; write another name before its address")
        if name in lines:
            raise SettingsError(f"{path}:{number}: {name} is named in line {lines[name]} already; name each host once")
        lines[name] = number
        yield Host(name, url)


def limit_hosts(hosts: Sequence[Host], limit: str | None) -> tuple[Host, ...]:
    """Those of them that `limit` names, separated by commas; all for None and `all`. Raises SettingsError."""
    if limit is None or limit == ALL:
        return tuple(hosts)
    by_name = {host.name: host for host in hosts}
    names = [name for name in limit.split(",") if name]
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        what = ", ".join(unknown) or "nothing"
        raise SettingsError(f"--limit names {what}, which the file of hosts does not have; it has {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))
