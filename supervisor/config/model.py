"""The configuration as the daemon uses it: one frozen model for each section.

The keys' descriptions are the text of docs/configuration.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from supervisor.config.check import explain
from supervisor.config.daemon_keys import SupervisordConfig
from supervisor.config.program_keys import ProgramConfig
from supervisor.config.section import Section, internal
from supervisor.config.server_keys import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.ini.problems import ConfigError, Place, Problem


class Config(Section):
    """The whole configuration. `programs` is in the order of start: by priority of the group, then of the program."""

    path: Path = internal("The file it was read from.")
    supervisord: SupervisordConfig = internal("Section [supervisord].")
    unix_http_server: UnixServerConfig | None = internal("Section [unix_http_server].", None)
    inet_http_server: InetServerConfig | None = internal("Section [inet_http_server].", None)
    supervisorctl: CtlConfig = internal("Section [supervisorctl].", CtlConfig())
    programs: dict[str, ProgramConfig] = internal("Every process of the sections [program:NAME], by name.", {})

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same, with what the command line says of the daemon instead; paths start from the present folder.

        Raises ConfigError.
        """
        given = {**dict(self.supervisord), **{key: _as_text(value) for key, value in settings.items()}}
        try:
            daemon = SupervisordConfig.model_validate(given)
        except ValidationError as error:
            place = Place(Path("command line"))
            raise ConfigError(Problem(place, f"--{text}") for _, text in explain(error)) from error
        return self.model_copy(update={"supervisord": daemon})


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
