"""Commands that install what is missing, and that work as they are printed.

No index of packages is known to have stepkeeper, so its name alone installs nothing. What an extra needs is on every
index, and the metadata of the installed package says what that is. stepkeeper itself comes from where this copy came
from: pip notes the folder or the file (PEP 610, direct_url.json).
"""

import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "stepkeeper"
SOMEWHERE = "FOLDER_OR_WHEEL_OF_STEPKEEPER"


def install_extra(extra: str, python: str = sys.executable) -> str:
    """The command that installs what an extra of stepkeeper needs for an interpreter."""
    return f"{shlex.quote(python)} -m pip install {' '.join(map(shlex.quote, _requirements_of(extra)))}"


def install_stepkeeper(python: str) -> str:
    """The command that installs stepkeeper for an interpreter, from where this copy came from; if that is not there any
    more, with a word in capitals for the reader to replace."""
    source = _source()
    return f"{shlex.quote(python)} -m pip install {SOMEWHERE if source is None else shlex.quote(str(source))}"


def _requirements_of(extra: str) -> list[str]:
    from importlib import metadata  # 1 MiB, and needed by messages only

    try:
        listed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # it runs from its source without being installed
        listed = []
    divided = [line.partition(";") for line in listed]
    needed = [name.strip() for name, _, marker in divided if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
    return needed or [f"{_source() or SOMEWHERE}[{extra}]"]


def _source() -> Path | None:
    """The folder or the wheel that this copy was installed from, or runs from; None if it is gone or was never here."""
    import json
    from importlib import metadata

    folder = Path(__file__).resolve().parent.parent.parent
    if (folder / "pyproject.toml").exists():
        return folder
    try:
        url = urlsplit(str(json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")["url"]))
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    path = Path(unquote(url.path))
    return path if url.scheme == "file" and path.exists() else None
