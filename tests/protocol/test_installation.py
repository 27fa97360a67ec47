"""Commands that install what is missing: pip accepts each, and needs no index that has stepkeeper."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.protocol.installation import install_extra, install_stepkeeper

EXTRAS = ["gpu", "logind", "mirror", "nvml", "page", "tensorflow"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_by_the_packages_that_it_needs(extra: str) -> None:
    python, module, pip, install, *packages = shlex.split(install_extra(extra))

    assert (python, module, pip, install) == (sys.executable, "-m", "pip", "install")
    assert packages
    assert not any("stepkeeper" in package for package in packages)


def test_an_interpreter_with_a_blank_in_its_path_is_quoted() -> None:
    assert shlex.split(install_extra("mirror", "/srv/my jobs/bin/python"))[0] == "/srv/my jobs/bin/python"


def test_stepkeeper_is_installed_from_the_source_that_runs() -> None:
    source = Path(shlex.split(install_stepkeeper("python"))[-1])

    assert (source / "pyproject.toml").is_file()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("extra", ["mirror", "page", "nvml", "logind"])
def test_the_command_is_one_that_pip_carries_out(extra: str) -> None:
    done = subprocess.run(
        [*shlex.split(install_extra(extra)), "--dry-run", "--no-deps", "--quiet"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "Could not find a version" in done.stderr or "Connection" in done.stderr:
        pytest.skip("PyPI can't be reached from here")

    assert done.returncode == 0, done.stderr
