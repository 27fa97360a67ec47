"""The configuration: INI text to frozen, validated models, checked once and completely."""

from supervisor.config.load import load
from supervisor.config.model import (
    Config,
    CtlConfig,
    InetServerConfig,
    JobConfig,
    ProgramConfig,
    SupervisordConfig,
    UnixServerConfig,
)
from supervisor.ini.find import find
from supervisor.ini.problems import ConfigError, Problem

__all__ = [
    "Config",
    "ConfigError",
    "CtlConfig",
    "InetServerConfig",
    "JobConfig",
    "Problem",
    "ProgramConfig",
    "SupervisordConfig",
    "UnixServerConfig",
    "find",
    "load",
]
