"""Other people's supervisors, and Orbax: each in an environment of its own, for comparing with, made on first use."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL_S = 180.0


@dataclass(frozen=True)
class Peer:
    """A package of PyPI: its exact version, what else it needs, and a file that is there once it is installed."""

    requirement: str
    needs: tuple[str, ...]
    proof: str  # a pattern

    @property
    def name(self) -> str:
        """For people."""
        return self.requirement.replace("==", " ")

    @property
    def environment(self) -> Path:
        """Its folder."""
        return ROOT / f".venv-{self.requirement.partition('==')[0]}"


SUPERVISOR = Peer(
    "supervisor==4.3.0",
    ("setuptools<81",),  # it imports pkg_resources, which later ones no longer have
    "bin/supervisord",
)
CIRCUS = Peer("circus==0.19.0", (), "bin/circusd")
ORBAX = Peer("orbax-checkpoint==0.12.8", (), "lib/*/site-packages/orbax_checkpoint-*.dist-info")  # brings JAX


class NotInstalled(Exception):
    """The peer is not here and can't be installed; the text says why."""


def binaries(peer: Peer = SUPERVISOR) -> Path:
    """The folder with the peer's commands, its Python among them. Raises NotInstalled."""
    folder = peer.environment / "bin"
    if not any(peer.environment.glob(peer.proof)):
        _do(peer, sys.executable, "-m", "venv", str(peer.environment))
        pip = (str(folder / "pip"), "install", "--quiet", "--disable-pip-version-check")
        _do(peer, *pip, peer.requirement, *peer.needs)
    return folder


def _do(peer: Peer, *command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        text = f"cannot install {peer.requirement} into {peer.environment}: {said.strip()[-300:]}"
        raise NotInstalled(text) from error


if __name__ == "__main__":
    print(binaries())
