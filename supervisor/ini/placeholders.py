"""`%(here)s` and its like in the values of an INI file."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from supervisor.ini.problems import nearest_word

ENVIRONMENT_PREFIX = "ENV_"

_PLACEHOLDER = re.compile(r"%(?:(?P<escaped>%)|\((?P<name>[^()]*)\)(?P<width>0?\d{0,2})(?P<kind>[sd]))?")

_SHARE = re.compile(r"\d+(?:\.\d+)?%")


class ExpansionError(ValueError):
    """A placeholder that can't be filled; the text says which, why and what to do."""


def common_placeholders(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What every value may use: the folder of its file, the host's name, the environment variables."""
    variables = {f"{ENVIRONMENT_PREFIX}{key}": value for key, value in environment.items()}
    return {**variables, "here": str(folder), "host_node_name": platform.node()}


def program_placeholders(program: str, group: str, number: int, numprocs: int) -> dict[str, str]:
    """What the values of a program may use besides, for its process of this number."""
    return {"program_name": program, "group_name": group, "process_num": str(number), "numprocs": str(numprocs)}


def expand_placeholders(text: str, known: Mapping[str, str]) -> str:
    """`text` with `%(name)s` replaced and `%%` as one percent sign, but a share such as `1%` as it is.

    Raises ExpansionError.
    """
    if _SHARE.fullmatch(text):
        return text
    return _PLACEHOLDER.sub(lambda match: _fill(match, known), text)


def _fill(match: re.Match[str], known: Mapping[str, str]) -> str:
    if match["escaped"]:
        return "%"
    name = match["name"]
    if name is None:
        raise ExpansionError("has a single %; write %% for a percent sign, %(here)s for a placeholder")
    value = known.get(name)
    if value is None:
        raise ExpansionError(_unknown(name, known))
    if match["kind"] == "s":
        return value.rjust(int(match["width"] or 0))
    if not (value.isascii() and value.isdecimal()):
        raise ExpansionError(f"uses %({name})d, but {name} is no number; write %({name})s")
    return f"{int(value):{match['width']}d}"


def _unknown(name: str, known: Mapping[str, str]) -> str:
    variable = name.removeprefix(ENVIRONMENT_PREFIX)
    if variable != name:
        meant = nearest_word(name, known)
        hint = f"; did you mean %({meant})s?" if meant else "; set it where supervisord starts, or write the value here"
        return f"uses %({name})s, but there is no environment variable {variable!r:.80}{hint}"
    usable = sorted(key for key in known if not key.startswith(ENVIRONMENT_PREFIX))
    return f"uses %({name:.80})s, which is not known; known are {', '.join(usable)}, and ENV_X for a variable X"
