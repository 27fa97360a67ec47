"""The nightly run: each part runs whatever became of the others, and how it ended last is kept and told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import PARTS, Nightly, main
from tests.places import ROOT
from tests.tensorflow_range import oldest, promised

PASSES, FAILS = ("-c", "print('runs')"), ("-c", "raise SystemExit(3)")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=folder, check=True)
    return folder


def run(checkout: Path, parts: dict[str, tuple[str, ...]], *arguments: str) -> int:
    return main(arguments, Nightly(parts, checkout, checkout.parent / "cache" / "nightly.json"), parts)


@pytest.mark.integration
def test_a_part_that_fails_is_named_and_the_others_run(checkout: Path, capfd: pytest.CaptureFixture[str]):
    status = run(checkout, {"first": FAILS, "second": PASSES})

    said = capfd.readouterr().out
    assert status == 1
    assert "nightly first: never ran" in said
    assert "nightly first: failed with 3 on " in said
    assert "nightly second: passed on " in said and "\nruns\n" in said
    assert said.endswith("has not passed whole\n")


@pytest.mark.integration
def test_parts_that_passed_one_by_one_are_a_whole_run_until_the_tree_changes(checkout: Path):
    parts = {"first": PASSES, "second": PASSES}
    statuses = [run(checkout, parts, part) for part in parts]

    after = run(checkout, parts, "--last")
    (checkout / "changed").touch()
    changed = run(checkout, parts, "--last")

    assert (statuses, after, changed) == ([1, 0], 0, 1)


def test_the_oldest_tensorflow_is_that_of_the_requirement():
    assert oldest("tensorflow>=2.18,<3") == "tensorflow==2.18.*"
    assert promised().startswith("tensorflow>=")


@pytest.mark.integration
def test_each_part_is_something_that_can_be_started():
    modules = {command[1] for command in PARTS.values()}
    found = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"

    assert (
        subprocess.run([sys.executable, "-c", found, *modules], cwd=ROOT, env=os.environ, check=False).returncode == 0
    )
