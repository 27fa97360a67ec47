"""The tutorial, followed literally: its commands work, and print what stands below them.

Numbers, dates, times and sizes are others on each machine, so lines are compared by their words.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.documented import ROOT, Block, Shell, blocks
from tests.waiting import wait_until

TUTORIAL = ROOT / "docs" / "tutorial.md"
PROOF_S = 300.0
INSTALL_S = 1200.0  # TensorFlow has 600 MB
DRILL_S = 120.0
LOOK_S = 3.0  # each look starts a command, which takes a processor a quarter of a second


def _install(block: Block) -> bool:
    return block.language == "sh" and block.text.startswith("git clone")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "first"
    folder.mkdir()
    opened = Shell(folder, TF_CPP_MIN_LOG_LEVEL="2")
    yield opened
    opened.end_daemon()


def save_script(shell: Shell) -> None:
    (script,) = blocks(TUTORIAL, "python")
    (shell.folder / "train.py").write_text(script.text)


def wait_as_told(shell: Shell, command: str) -> None:
    """Where the tutorial has its reader wait before this command, waits."""

    def history(at_least: int) -> bool:
        rows = shell.run("supervisorctl history train")[1].splitlines()[1:]
        return len(rows) >= at_least and "running" in rows[-1] and rows[-1].split()[5].isdigit()

    if command.startswith("kill"):  # "wait a few seconds": for steps behind the checkpoint
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.0, "it has trained on")
    elif command == "supervisorctl history train":
        wait_until(lambda: history(2), "it trains again", DRILL_S, interval_s=LOOK_S)
    elif command == "supervisorctl drill train --in 30s":
        wait_until(lambda: " step " in shell.run("supervisorctl status")[1], "it trains", interval_s=LOOK_S)


def has_left(shell: Shell) -> bool:
    return "going away" in shell.run("supervisorctl history train")[1]


def forms(text: str) -> list[str]:
    """The lines without what differs from run to run: numbers with what they count, folders, lengths of columns."""
    text = re.sub(r"/\S+/", "/", text)
    text = re.sub(r" …$", "", text, flags=re.MULTILINE)  # where a terminal was too narrow
    text = re.sub(r"\d+:\d+:\d+|\d+-\d+-\d+", "0", text)
    text = re.sub(r"[\d.]+(?: (?:[kMG]?B|KB)\b)?", "0", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)  # it starts TensorFlow eight times, and proves a job
def test_its_commands_work_and_print_what_stands_below_them(shell: Shell):
    save_script(shell)
    printed, drilled, missing = "", False, list[str]()
    for block in blocks(TUTORIAL, "sh", "text"):
        if _install(block):
            continue
        if block.language == "text":
            known = forms(printed)
            missing += [line for line in forms(block.text) if not any(line in other for other in known)]
            printed = ""
            continue
        for command in block.commands():
            if command == "supervisorctl history train" and drilled:
                wait_until(lambda: has_left(shell), "it left", DRILL_S, interval_s=LOOK_S)
            wait_as_told(shell, command)
            drilled = drilled or command.startswith("supervisorctl drill")
            printed += shell.do(command, PROOF_S if "--prove" in command else DRILL_S)

    assert missing == []


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.integration
def test_from_a_clone_to_a_job_that_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Installs as the tutorial says, from the network, into a home that is empty."""
    home = tmp_path / "home"
    home.mkdir()
    cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    (install,) = filter(_install, blocks(TUTORIAL, "sh"))
    shell = Shell(home, HOME=str(home), REPOSITORY=str(ROOT), PIP_CACHE_DIR=cache, TF_CPP_MIN_LOG_LEVEL="2")
    began, commands = time.monotonic(), len(list(install.commands()))
    status, printed = shell.run("\n".join(["set -e", *install.commands()]), INSTALL_S)
    if status != 0 and re.search(r"No matching distribution|Connection|resolve", printed):
        pytest.skip(f"the network is needed: {printed.strip().splitlines()[-1]}")
    assert status == 0, printed
    installed_s = time.monotonic() - began
    folder = home / "first"
    folder.mkdir()
    mine = Shell(folder, HOME=str(home), PATH=f"{home}/stepkeeper/bin:{os.environ['PATH']}", TF_CPP_MIN_LOG_LEVEL="2")
    save_script(mine)
    for command in ("supervisord --init train.py", "supervisord", "supervisorctl start train"):
        commands += 1
        mine.do(command, DRILL_S)

    said = mine.do("supervisorctl status")

    assert "RUNNING" in said and " step " in said
    with capsys.disabled():
        print(f"\n{commands} commands, {time.monotonic() - began:.0f} s, {installed_s:.0f} of them to install")
    mine.end_daemon()
