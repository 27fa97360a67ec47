"""The configuration as the daemon uses it: one frozen class for each section.

The keys' descriptions are the text of docs/configuration.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from supervisor.config.daemon_keys import SupervisordConfig
from supervisor.config.program_keys import ProgramConfig
from supervisor.config.section import Section, SectionError, internal
from supervisor.config.server_keys import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.ini.problems import ConfigError, Place, Problem


class Config(Section):
    """The whole configuration. `programs` is in the order of start: by priority of the group, then of the program."""

    path: Path = internal("The file it was read from.")
    supervisord: SupervisordConfig = internal("Section [supervisord].")
    unix_http_server: UnixServerConfig | None = internal("Section [unix_http_server].", None)
    inet_http_server: InetServerConfig | None = internal("Section [inet_http_server].", None)
    supervisorctl: CtlConfig = internal("Section [supervisorctl].", CtlConfig.build({}))
    programs: dict[str, ProgramConfig] = internal("Every process of the sections [program:NAME], by name.", {})

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same, with what the command line says of the daemon instead; paths start from the present folder.

        Raises ConfigError.
        """
        try:
            said = SupervisordConfig.parse({key: _as_text(value) for key, value in settings.items()})
        except SectionError as error:
            place = Place(Path("command line"))
            raise ConfigError(Problem(place, f"--{text}") for _, text in error.complaints) from error
        return replace(self, supervisord=replace(self.supervisord, **said))


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
