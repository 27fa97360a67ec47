"""A control group (v2) of a test's own, as systemd gives one away, and a daemon that begins in it."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.resources import cgroup
from tests.system.harness import Daemon


@contextlib.contextmanager
def group(*controllers: str) -> Iterator[Path]:
    """One that has these controllers; skips the test where none can be made."""
    mount = cgroup.find_cgroup2_mount(Path("/proc/self/mounts").read_text())
    if mount is None:
        pytest.skip("no unified cgroup tree is mounted")
    folder = mount / f"stepkeeper-test-{uuid.uuid4().hex[:8]}"
    try:
        if controllers:
            (mount / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made in {mount} with {controllers or 'no controllers'}: {error.strerror}")
    try:
        try:
            os.setxattr(folder, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"groups take no marks here: {error.strerror}")
        yield folder
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                cgroup.Cgroup(path).remove()
        cgroup.Cgroup(folder).remove()


def entrance(folder: Path) -> str:
    """Where a process enters a group; once that is divided the kernel lets none be in it but below."""
    below = folder / cgroup.LEAF
    return str((below if below.is_dir() else folder) / "cgroup.procs")


class Inside(Daemon):
    """A daemon that begins in a group."""

    def __init__(self, given: Path, folder: Path, programs: str) -> None:
        super().__init__(folder, programs)
        self._given = given

    def launch(self) -> None:
        enter = f"import os, sys; open({entrance(self._given)!r}, 'w').write('0'); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", enter, *command], cwd=self.folder, env=self.environment, stderr=errors
            )
