"""PyPI's Supervisor in an environment of its own, for comparing with; installed on first use."""

import subprocess
import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv-supervisor"
REQUIREMENT = "supervisor==4.3.0"
NEEDS = "setuptools<81"  # Supervisor 4.3.0 imports pkg_resources, which later ones no longer have
INSTALL_S = 180.0


class NotInstalled(Exception):
    """Supervisor is not here and can't be installed; the text says why."""


def binaries() -> Path:
    """The folder with the peer's supervisord and supervisorctl. Raises NotInstalled."""
    folder = ENVIRONMENT / "bin"
    if not (folder / "supervisord").exists():
        _do(sys.executable, "-m", "venv", str(ENVIRONMENT))
        _do(str(folder / "pip"), "install", "--quiet", "--disable-pip-version-check", REQUIREMENT, NEEDS)
    return folder


def _do(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(f"cannot install {REQUIREMENT} into {ENVIRONMENT}: {said.strip()[-300:]}") from error


if __name__ == "__main__":
    print(binaries())
