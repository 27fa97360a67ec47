"""The configuration: reads INI text into frozen, checked models. Imports ini and protocol, and words from the core."""

from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import CtlConfig, InetServerConfig, UnixServerConfig
from supervisor.config.load import Config, load_config
from supervisor.ini.problems import ConfigError, Problem
from supervisor.ini.reader import find_config_file

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
    "find_config_file",
    "load_config",
]
