"""Every command of README.md, copied literally and run in the order in which it stands there.

A block of another language than `sh` is no command. What can't be run here is skipped by its first line, and README
says above it what it needs; a block that is neither run nor named fails the test.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import CHILDREN
from tests.waiting import wait_until

README = Path(__file__).parent.parent.parent / "README.md"
SKIPPED = {
    "make demo": "trains for minutes, and runs all tests",
    "python3.11 -m venv /opt/stepkeeper": "needs root, and the network",
}
"""By how a block begins: why it is not run here."""

ENDED_BY_CTRL_C = ("status --watch", "supervisorctl events")  # `top` ends by itself without a terminal
PATIENCE_S = 60.0  # for what takes a second; the machine may be busy
LANGUAGES = {"sh", "text", "ini", "python"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> Iterator[str]:
    """The lines of the blocks that are run, without their comments."""
    for block in blocks("sh"):
        if not block.startswith(tuple(SKIPPED)):
            yield from (line.partition(" #")[0].strip() for line in block.splitlines())


def test_every_block_is_of_a_known_kind_and_every_skip_is_of_a_block():
    opened = re.findall(r"^```(\w*)\n.*?^```$", README.read_text(), re.DOTALL | re.MULTILINE)

    assert set(opened) <= LANGUAGES
    assert [each for each in SKIPPED if not any(block.startswith(each) for block in blocks("sh"))] == []


class Shell:
    """A shell in the folder of the script, with stepkeeper's commands in its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "STEPS": "100000"}  # the last is for the script

    def run(self, command: str) -> tuple[int, str]:
        """The exit status and what it printed; what runs until Ctrl-C gets one once it has printed something."""
        process = subprocess.Popen(
            command, shell=True, executable="/bin/bash", cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=(self.folder / "out").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        if command.endswith(ENDED_BY_CTRL_C):
            wait_until(lambda: (self.folder / "out").stat().st_size > 0 or process.poll() is not None, command)
            process.send_signal(signal.SIGINT)
        return process.wait(PATIENCE_S), (self.folder / "out").read_text()


SCRIPT = """import runpy

if False:  # what --init looks for
    import worker

    worker.Run(None)
runpy.run_path({trainer!r}, run_name="__main__")
"""
"""A job that needs no TensorFlow."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "srv" / "resnet"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.format(trainer=str(CHILDREN / "trainer.py")))
    opened = Shell(folder)
    yield opened
    opened.run("supervisorctl shutdown")
    lock = folder / ".stepkeeper" / "lock"
    wait_until(lambda: not lock.exists() or not Path(f"/proc/{lock.read_text().strip()}").exists(), "it has left")


def edit(shell: Shell) -> None:
    """Puts README's section in the place of the one that --init wrote, with its folders below the test's.

    The checkpoint_dir stays, as the job has trained there: `update` refuses another one.
    """
    path = shell.folder / "supervisord.conf"
    (section,) = blocks("ini")
    section = section.replace("/srv/resnet/venv/bin/python", sys.executable)
    section = section.replace("= /srv", f"= {shell.folder.parent}")
    head, _, written = path.read_text().partition("[program:train]")
    kept = re.search(r"^checkpoint_dir.*$", written, re.MULTILINE)
    assert kept is not None
    section = re.sub(r"^checkpoint_dir.*$", lambda _: kept[0], section, flags=re.MULTILINE)
    path.write_text(head + section)


@pytest.mark.slow
@pytest.mark.integration
def test_every_command_works_in_the_order_in_which_it_stands(shell: Shell):
    done = []
    for command in commands():
        if command == "supervisord --check-config":
            edit(shell)
        done.append(command)
        status, printed = shell.run(command)
        assert status == 0, f"{command}: {printed}"
        assert "Traceback" not in printed, command

    assert {"supervisord", "supervisorctl start train", "supervisorctl export train"} <= {*done}
