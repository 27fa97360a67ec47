"""Where the configuration file is, if nobody says."""

import sys
from pathlib import Path

from supervisor.ini.problems import ConfigError, Location, Problem

NAME = "supervisord.conf"


def find_config_file() -> Path:
    """The first configuration file there is in the usual places. Raises ConfigError, naming them all."""
    places = candidates()
    for place in places:
        if place.is_file():
            return place
    listed = ", ".join(map(str, places))
    text = f"cannot find a configuration file; looked for {listed}; name yours with -c FILE"
    raise ConfigError([Problem(Location(Path(NAME)), text)])


def candidates() -> list[Path]:
    """Supervisor's search order: beside the program's environment, here, then /etc."""
    beside = Path(sys.argv[0]).resolve().parent.parent
    return [
        beside / "etc" / NAME,
        beside / NAME,
        Path(NAME),
        Path("etc") / NAME,
        Path("/etc") / NAME,
        Path("/etc/supervisor") / NAME,
    ]
