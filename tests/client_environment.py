"""Other people's clients and listeners for Supervisor, from PyPI, in an environment of their own, `.venv-clients`."""

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv-clients"
REQUIREMENTS = (
    "supervisor==4.3.0",
    "setuptools<81",  # Supervisor and some of these import pkg_resources, which later ones no longer have
    "superlance==2.0.0",
    "supervisor_checks==0.8.1",
    "superfsmon==1.2.3",
    "watchdog==3.0.0",  # superfsmon hears of nothing with 7.1: its handlers are no longer called
    "supervisord-dependent-startup==1.4.0",
    "supervisor-wildcards==0.1.3",
    "supervisor-logging==0.0.9",
    "mr.laforge==0.9",
    "aiosmtpd==1.4.6",  # somebody else's mail server, to mail to
)
INSTALL_S = 300.0
SETTINGS = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"LC_ALL": "C.UTF-8"}
"""Our package is called as Supervisor's: these must not find ours."""


class NotInstalled(Exception):
    """They are not here and can't be installed; the text says why."""


def binaries() -> Path:
    """The folder with their commands. Raises NotInstalled."""
    folder, done, wanted = ENVIRONMENT / "bin", ENVIRONMENT / ".installed", "\n".join(REQUIREMENTS)
    if not done.exists() or done.read_text() != wanted:
        _do(sys.executable, "-m", "venv", str(ENVIRONMENT))
        _do(str(folder / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS)
        done.write_text(wanted)
    return folder


def _do(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(f"cannot install into {ENVIRONMENT}: {str(said).strip()[-300:]}") from error


if __name__ == "__main__":
    print(binaries())
