"""Other packages to compare with, each in a virtual environment of its own that is created on first use.

Run with `python -m bench.peer` to make Supervisor's now, or `python -m bench.peer --tests` to make all that tests use:
several tests that wait for the first of them would take longer than a test may.
"""

import fcntl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL_S = 400.0
_PKG_RESOURCES = "setuptools<81"  # later ones no longer have it, and Supervisor and some of its clients import it


@dataclass(frozen=True)
class Peer:
    """Packages from PyPI, named by the first requirement, in the folder `.venv-ENVIRONMENT`."""

    environment: str
    requirements: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name and version, for messages."""
        return self.requirements[0].replace("==", " ")

    @property
    def folder(self) -> Path:
        """The folder of its virtual environment."""
        return ROOT / f".venv-{self.environment}"


SUPERVISOR = Peer("supervisor", ("supervisor==4.3.0", _PKG_RESOURCES))
CIRCUS = Peer("circus", ("circus==0.19.0",))
ORBAX = Peer("orbax-checkpoint", ("orbax-checkpoint==0.12.8",))  # brings JAX
TORCH = Peer("torch", ("torch==2.13.0", "numpy", "scikit-learn", "xxhash", "google-crc32c", "pytorch-ignite==0.5.5"))
LIBRARIES = Peer(
    "libraries",
    (
        "torch==2.13.0",
        "numpy",
        "xxhash",
        "google-crc32c",
        "transformers==5.24.0",
        "lightning==2.6.6",
        "accelerate==1.15.0",
        "torchdata==0.11.0",
    ),
)
"""Libraries whose loops train with PyTorch."""
JAX = Peer("jax", ("jax==0.10.2", "optax==0.2.8", "numpy", "xxhash", "google-crc32c", "tqdm"))
CLIENTS = Peer(
    "clients",
    (
        "supervisor==4.3.0",
        _PKG_RESOURCES,
        "superlance==2.0.0",
        "supervisor_checks==0.8.1",
        "superfsmon==1.2.3",
        "watchdog==3.0.0",  # superfsmon hears of nothing with 7.1: its handlers are no longer called
        "supervisord-dependent-startup==1.4.0",
        "supervisor-wildcards==0.1.3",
        "supervisor-logging==0.0.9",
        "mr.laforge==0.9",
        "aiosmtpd==1.4.6",  # somebody else's mail server, to mail to
    ),
)
"""Event listeners and clients that others wrote for Supervisor."""


IN_TESTS = (SUPERVISOR, CLIENTS, TORCH, JAX, LIBRARIES)


class NotInstalled(Exception):
    """The package is not installed and can't be; the text says why."""


def binaries(peer: Peer = SUPERVISOR) -> Path:
    """The folder with its commands and its Python. Raises NotInstalled."""
    done, wanted = peer.folder / ".installed", "\n".join(peer.requirements)
    peer.folder.mkdir(exist_ok=True)
    with (peer.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run side by side
        if not done.exists() or done.read_text() != wanted:
            _do(peer, sys.executable, "-m", "venv", str(peer.folder))
            pip = (
                str(peer.folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-compile",  # most modules are never imported
            )
            _do(peer, *pip, *peer.requirements)
            done.write_text(wanted)
    return peer.folder / "bin"


def _do(peer: Peer, *command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(f"cannot install {peer.name} into {peer.folder}: {str(said).strip()[-300:]}") from error


def main() -> None:
    for peer in IN_TESTS if "--tests" in sys.argv[1:] else (SUPERVISOR,):
        try:
            print(binaries(peer))
        except NotInstalled as error:  # tests of it are skipped, and say so
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
