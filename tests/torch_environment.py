"""PyTorch in an environment of its own, `.venv-torch`, made on first use: it is large, and few tests need it."""

import subprocess
import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv-torch"
REQUIREMENTS = ("torch==2.13.0", "numpy", "scikit-learn", "xxhash", "google-crc32c")
INSTALL_S = 400.0


class NotInstalled(Exception):
    """PyTorch is not here and can't be installed; the text says why."""


def python() -> Path:
    """An interpreter with PyTorch. Raises NotInstalled."""
    interpreter, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if not done.exists():
        _do(sys.executable, "-m", "venv", str(ENVIRONMENT))
        _do(str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS)
        done.touch()
    return interpreter


def _do(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(f"cannot install PyTorch into {ENVIRONMENT}: {str(said).strip()[-300:]}") from error


if __name__ == "__main__":
    print(python())
