"""Every command of README.md, copied literally and run in the order in which it stands there.

A block of another language than `sh` is no command. What can't be run here is skipped by its first line, and README
says above it what it needs; a block that is neither run nor named fails the test.
"""

import re
import sys
from collections.abc import Iterator

import pytest

from tests.places import CHILDREN
from tests.system.documented import ROOT, Shell, blocks
from tests.waiting import wait_until

README = ROOT / "README.md"
SKIPPED = {
    "make demo": "trains for minutes, and runs all tests",
    "git clone": "needs root, and the network; tests/system/test_tutorial.py installs as the tutorial says",
}
"""By how a block begins: why it is not run here."""

LANGUAGES = {"sh", "text", "ini", "python"}


def commands() -> Iterator[str]:
    """The lines of the blocks that are run."""
    for block in blocks(README, "sh"):
        if not block.text.startswith(tuple(SKIPPED)):
            yield from block.commands()


def test_every_block_is_of_a_known_kind_and_every_skip_is_of_a_block():
    begun = [block.text for block in blocks(README, "sh")]

    assert {block.language for block in blocks(README)} <= LANGUAGES
    assert [start for start in SKIPPED if not any(text.startswith(start) for text in begun)] == []


SCRIPT = """import runpy

if False:  # what --init looks for
    import worker

    worker.Run(None)
runpy.run_path({trainer!r}, run_name="__main__")
"""
"""A job that needs no TensorFlow."""


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("r") / "srv" / "resnet"  # short, as README's socket is in it
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.format(trainer=str(CHILDREN / "trainer.py")))
    opened = Shell(folder, STEPS="100000")  # which the script reads
    yield opened
    opened.end_daemon()


def edit(shell: Shell) -> None:
    """Puts README's file in the place of the one that --init wrote, with its folders below the test's.

    The checkpoint_dir stays, as the job has trained there: `update` refuses another one.
    """
    path = shell.folder / "supervisord.conf"
    (block,) = blocks(README, "ini")
    text = block.text.replace("/srv/resnet/venv/bin/python", sys.executable)
    text = text.replace("= /srv", f"= {shell.folder.parent}")
    kept = re.search(r"^checkpoint_dir.*$", path.read_text(), re.MULTILINE)
    assert kept is not None
    path.write_text(re.sub(r"^checkpoint_dir.*$", lambda _: kept[0], text, flags=re.MULTILINE))


@pytest.mark.slow
@pytest.mark.integration
def test_every_command_works_in_the_order_in_which_it_stands(shell: Shell):
    done = []
    for command in commands():
        if command == "supervisord --check-config":
            edit(shell)
        if command.startswith("supervisorctl checkpoint"):  # a reader does not type that fast
            wait_until(lambda: "RUNNING" in shell.run("supervisorctl status train")[1], "it trains", interval_s=0.5)
        done.append(command)
        shell.do(command)

    assert {"supervisord", "supervisorctl start train", "supervisorctl export train"} <= {*done}
