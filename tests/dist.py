"""Installs each built distribution into a fresh environment and runs it there: `python -m tests.dist dist`.

Needs a package index for the dependencies. Shows that the wheel and the sdist hold all that the two commands, the
daemon and importing `worker` need, without this source tree too.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGURATION = """
[supervisord]
state_dir = {folder}/state
notices = off
[unix_http_server]
file = {folder}/s.sock
[supervisorctl]
serverurl = unix://{folder}/s.sock
[program:sleeper]
command = sleep 1000
startsecs = 0
"""


def try_out(archive: Path) -> None:
    """Raises CalledProcessError if anything of it does not install or run."""
    with tempfile.TemporaryDirectory(prefix="sk-dist-") as text:
        folder = Path(text)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        bin_folder = folder / "venv" / "bin"
        subprocess.run([bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check", archive], check=True)
        for page in ("man1/supervisord.1", "man1/supervisorctl.1", "man5/supervisord.conf.5"):
            if not (folder / "venv/share/man" / page).exists():
                raise FileNotFoundError(f"{archive.name} has no share/man/{page}")
        conf = folder / "test.conf"
        conf.write_text(CONFIGURATION.format(folder=folder))

        def run(*command: str) -> None:
            subprocess.run([bin_folder / command[0], *command[1:]], cwd=folder, check=True, timeout=120)

        run("supervisord", "--version")
        run("stepkeeper-notify", "--help")
        run("python", "-c", "import worker; from importlib.resources import files; files('worker')")
        for package in ("supervisor", "worker"):
            typed = subprocess.run(
                [bin_folder / "python", "-c", f"import {package}; print({package}.__path__[0])"],
                cwd=folder, check=True, capture_output=True, text=True,
            )  # fmt: skip
            if not (Path(typed.stdout.strip()) / "py.typed").exists():
                raise FileNotFoundError(f"{archive.name} has no {package}/py.typed")
        run("supervisord", "-c", str(conf))
        try:
            run("supervisorctl", "-c", str(conf), "start", "sleeper:*")
            run("supervisorctl", "-c", str(conf), "status")
        finally:
            run("supervisorctl", "-c", str(conf), "shutdown")
        print(f"{archive.name}: installs and runs")


def main(folder: Path) -> int:
    archives = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(archives) != 2:
        print(f"expected a wheel and an sdist in {folder}, found {[each.name for each in archives]}", file=sys.stderr)
        return 1
    for archive in archives:
        try_out(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
