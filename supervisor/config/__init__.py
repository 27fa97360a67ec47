"""The configuration: INI text to frozen, validated models, checked once and completely."""

from supervisor.config.daemon_keys import SupervisordConfig
from supervisor.config.job_keys import JobConfig
from supervisor.config.load import load
from supervisor.config.model import Config
from supervisor.config.program_keys import ProgramConfig
from supervisor.config.server_keys import CtlConfig, InetServerConfig, UnixServerConfig
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
