"""The configuration as the daemon uses it: one frozen class for each section.

The keys' descriptions are the text of docs/configuration.md.
"""

from pathlib import Path

from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.schema.section import SectionModel, internal, section_model
from supervisor.ini.problems import Problem


@section_model
class Config(SectionModel):
    """The whole configuration. `programs` is in the order of start: by priority of the group, then of the program."""

    path: Path = internal("The file it was read from.")
    supervisord: SupervisordConfig = internal("Section [supervisord].")
    unix_http_servers: tuple[UnixServerConfig, ...] = internal("Section [unix_http_server], and further ones.", ())
    inet_http_servers: tuple[InetServerConfig, ...] = internal("Section [inet_http_server], and further ones.", ())
    supervisorctl: CtlConfig = internal("Section [supervisorctl].", CtlConfig.build({}))
    programs: dict[str, ProgramConfig] = internal("Every process of the sections [program:NAME], by name.", {})
    warnings: tuple[Problem, ...] = internal("What is to be said of the file, though it can be used.", ())
