"""Settings of supervisorctl, from the command line, else from the configuration file.

Only [supervisorctl] and the socket's path are read from the file, so that supervisorctl works even if there is a
mistake elsewhere in it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.ini.ownership import problems_of_ownership
from supervisor.ini.placeholders import ExpansionError, common_placeholders, expand_placeholders
from supervisor.ini.problems import ConfigError
from supervisor.ini.reader import IniSection, IniText, candidates, is_file, read_ini

DEFAULT_URL = "http://localhost:9001"  # Supervisor's
MAX_PASSWORD = 4096  # characters of a file's first line


class SettingsError(Exception):
    """The options or the file do not say where the daemon listens."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What supervisorctl needs to know. `history_file` keeps the interactive shell's lines; None: they are not kept.

    `url_origin`: where the address comes from, in words.
    """

    url: str = DEFAULT_URL
    url_origin: str = ""
    username: str | None = None
    password: str | None = None
    prompt: str = "supervisor"
    history_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line, which override the file."""

    configuration: Path | None = None
    url: str | None = None
    username: str | None = None
    password: str | None = None
    history_file: Path | None = None
    password_file: Path | None = None


def settings(options: Options, environment: Mapping[str, str]) -> Settings:
    """The settings from both. Raises SettingsError."""
    values: dict[str, str] = {}
    path = None
    if options.configuration is not None or options.url is None:
        path = _file(options.configuration)
        values = _of_file(path, environment)
    url = options.url or values.get("serverurl") or DEFAULT_URL
    _check_url(url, "-s" if options.url else "[supervisorctl] serverurl")
    history = options.history_file or _path(values.get("history_file"))
    return Settings(
        url=url,
        url_origin=_origin(options, path, values),
        username=options.username or values.get("username"),
        password=_password(options) or values.get("password"),
        prompt=values.get("prompt", "supervisor"),
        history_file=history,
    )


def _origin(options: Options, path: Path | None, values: Mapping[str, str]) -> str:
    if options.url:
        return "the address is that of -s"
    if "serverurl" in values:
        return f"the address is that of {path}"
    if path is not None:
        return f"{path} names no address, so it is Supervisor's default"
    return "no configuration file was found, so the address is Supervisor's default; name the file with -c FILE"


def _password(options: Options) -> str | None:
    """The password of the command line: other users see its words in the list of processes, but not a file's."""
    path = options.password_file
    if path is None:
        return options.password
    if options.password is not None:
        raise SettingsError("-p and --password-file exclude each other; give one of them")
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline(MAX_PASSWORD).rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"cannot read the password from {path}: {reason}; name a file with it as first line"
        ) from error
    if not line:
        raise SettingsError(f"cannot read the password from {path}: its first line is empty; write the password there")
    return line


def _file(named: Path | None) -> Path | None:
    if named is None:
        return next((place for place in candidates() if is_file(place)), None)
    if not os.path.lexists(named):
        raise SettingsError(f"could not find config file {named}")
    return named


def _of_file(path: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    if path is None:
        return {}
    if wrong := problems_of_ownership([path], [], environment):
        raise SettingsError(str(wrong[0]))
    try:
        source = read_ini(path, environment, includes=False, is_lenient=True)
    except ConfigError as error:
        raise SettingsError(str(error)) from error
    section, server = source.sections.get("supervisorctl"), source.sections.get("unix_http_server")
    if section is None and server is None:
        raise SettingsError(f"{path}: .ini file does not include supervisorctl section")
    values = _expanded(section, source, environment) if section else {}
    if "serverurl" not in values and server is not None and "file" in server.entries:
        values["serverurl"] = f"unix://{_path(_expanded(server, source, environment)['file'], source.folder)}"
    if "history_file" in values:
        values["history_file"] = str(_path(values["history_file"], source.folder))
    return values


def _expanded(section: IniSection, source: IniText, environment: Mapping[str, str]) -> dict[str, str]:
    known, values = common_placeholders(source.folder, environment), dict[str, str]()
    for key, entry in section.entries.items():
        try:
            values[key] = expand_placeholders(entry.value, known)
        except ExpansionError as error:
            raise SettingsError(f"{entry.location}: [{section.name}] {key} {error}") from error
    return values


def _path(text: str | None, folder: Path | None = None) -> Path | None:
    """A path as the daemon reads it: `~` is the home folder, relative paths start from the file's folder."""
    if text is None:
        return None
    return Path(os.path.abspath((folder or Path()) / os.path.expanduser(text)))  # noqa: PTH100, PTH111 - keeps links


def is_url(url: str) -> bool:
    """Whether a daemon may listen there: `unix:///path` or `http://host:port`."""
    try:
        parts = urlsplit(url)
        return (parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1) or (
            parts.scheme == "http" and parts.hostname is not None and parts.port != 0
        )
    except ValueError:  # a port that is no number
        return False


def _check_url(url: str, where: str) -> None:
    if not is_url(url):
        raise SettingsError(
            f"invalid value for {where} {url!r}: value {url!r} is not a URL; write unix:///path or http://host:port"
        )
