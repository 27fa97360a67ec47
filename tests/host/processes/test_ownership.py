"""Whose a process is that the ledger names: this state folder's, or that of the one that it is a copy of."""

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.host.processes import marks, ownership
from supervisor.host.processes.ownership import judge
from supervisor.protocol import layout
from tests.places import CHILDREN
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    marks.mark_of_attempt(folder, "p", 1)  # makes the key
    return folder


def pipes_of(state: Path) -> Path:
    return layout.attempt_folder(state / "run", "p", 1)


@contextmanager
def sleeper(mark: str | None, stdin: Path | None = None) -> Iterator[int]:
    """A process of another daemon's, since its parent is a shell that has ended."""
    environment = {} if mark is None else {marks.VARIABLE: mark}
    reading = os.open(stdin or "/dev/null", os.O_RDWR)
    try:
        shell = subprocess.run(
            ["/bin/sh", "-c", "exec 3<&0; /bin/sleep 60 <&3 > /dev/null 2>&1 & echo $!"],
            stdin=reading, env=environment, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    finally:
        os.close(reading)
    pid = int(shell.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, 9)


def old_mark(state: Path, path: Path | None = None) -> str:
    """As an earlier version signed it: it names no folder."""
    text = f"{path or state}:p:1"
    key = (state / marks.KEY_FILE).read_bytes()
    return f"{text}:{hmac.digest(key, text.encode(), hashlib.sha256)[:16].hex()}"


def make_pipe(state: Path) -> Path:
    pipes_of(state).mkdir(parents=True)
    pipe = pipes_of(state) / layout.STDIN
    os.mkfifo(pipe)
    return pipe


def test_a_process_with_our_mark_is_ours_also_once_the_folder_is_renamed(state: Path, tmp_path: Path):
    with sleeper(marks.mark_of_attempt(state, "p", 1)) as pid:
        assert judge(pid, state, pipes_of(state)).is_ours

        moved = state.rename(tmp_path / "elsewhere")

        assert judge(pid, moved, pipes_of(moved)).is_ours
        assert list(marks.processes_of_daemon(moved)) == [marks.read_mark(pid)]


def test_in_a_copy_of_the_folder_it_is_not_even_at_the_same_path(state: Path, tmp_path: Path):
    with sleeper(marks.mark_of_attempt(state, "p", 1)) as pid:
        original = state.rename(tmp_path / "original")
        shutil.copytree(original, state)

        verdict = judge(pid, state, pipes_of(state))

        assert (verdict.is_ours, verdict.whose) == (False, str(state))
        assert marks.processes_of_daemon(state) == {}


def test_what_a_replaced_folder_has_left_is_abandoned_only_while_nobody_holds_its_pipes(state: Path, tmp_path: Path):
    mark, pipe = marks.mark_of_attempt(state, "p", 1), make_pipe(state)
    with sleeper(mark, stdin=pipe) as pid:
        before = state.rename(tmp_path / "before")
        shutil.copytree(before, state, ignore=shutil.ignore_patterns("run"))

        left = ownership.processes_of_replaced_folder(state)
        with sleeper(None, stdin=pipes_of(before) / layout.STDIN):  # as the daemon of the folder that was moved away
            left_while_held = ownership.processes_of_replaced_folder(state)
        (state / marks.KEY_FILE).unlink()
        left_without_key = ownership.processes_of_replaced_folder(state)

        assert ({*left.abandoned}, {*left.others}) == ({mark}, set())
        assert (left_while_held.abandoned, left_while_held.others) == ({}, {})
        assert ({*left_without_key.abandoned}, {*left_without_key.others}) == (set(), {mark})
        assert [process.pid for process in left.abandoned[mark]] == [pid]


def test_a_process_of_an_earlier_version_is_ours_by_its_path_or_by_its_pipe(state: Path, tmp_path: Path):
    pipe = make_pipe(state)
    with sleeper(old_mark(state)) as by_path, sleeper(old_mark(state), stdin=pipe) as by_pipe:
        assert judge(by_path, state, pipes_of(state)).is_ours
        moved = state.rename(tmp_path / "elsewhere")

        assert judge(by_pipe, moved, pipes_of(moved)).is_ours
        verdict = judge(by_path, moved, pipes_of(moved))
        assert (verdict.is_ours, verdict.whose) == (False, str(state))


def test_the_pipe_in_a_copy_is_another_one(state: Path, tmp_path: Path):
    pipe = make_pipe(state)
    with sleeper(old_mark(state), stdin=pipe) as pid:
        copy = tmp_path / "copy"
        subprocess.run(["/bin/cp", "-a", str(state), str(copy)], check=True)

        assert (pipes_of(copy) / layout.STDIN).is_fifo()
        assert not judge(pid, copy, pipes_of(copy)).is_ours
        assert judge(pid, state, pipes_of(state)).is_ours


def test_without_a_mark_the_pipe_proves_it_or_that_the_ledger_was_written_here(state: Path, tmp_path: Path):
    pipe = make_pipe(state)
    with sleeper(None, stdin=pipe) as with_pipe, sleeper(None) as with_nothing:
        assert judge(with_pipe, state, pipes_of(state)).is_ours
        assert not judge(with_nothing, state, pipes_of(state)).is_ours

        ownership.note_folder(state)
        subprocess.run(["/bin/cp", "-a", str(state), str(tmp_path / "copy")], check=True)

        assert (ownership.is_copy(state), ownership.is_copy(tmp_path / "copy")) == (False, True)
        assert judge(with_nothing, state, pipes_of(state)).is_ours
        assert not judge(with_nothing, tmp_path / "copy", pipes_of(tmp_path / "copy")).is_ours
        ownership.note_folder(tmp_path / "copy")
        assert judge(with_nothing, tmp_path / "copy", pipes_of(tmp_path / "copy")).is_ours


def test_a_child_of_this_process_and_a_zombie_are_ours(state: Path):
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as child:
        assert judge(child.pid, state, pipes_of(state)).is_ours
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert judge(child.pid, state, pipes_of(state)).is_ours


def test_a_folder_that_is_mounted_elsewhere_too_is_the_same(state: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", state, elsewhere], check=False).returncode != 0:
        pytest.skip("this user, or this host, can't mount")
    try:
        with sleeper(marks.mark_of_attempt(state, "p", 1)) as pid:
            assert judge(pid, elsewhere, pipes_of(elsewhere)).is_ours
    finally:
        subprocess.run(["umount", elsewhere], check=True)


@pytest.mark.parametrize("looks", [5_000, pytest.param(30_000, marks=pytest.mark.nightly)])
def test_a_process_of_another_folder_that_replaces_its_program_is_known_at_every_moment(
    state: Path, tmp_path: Path, looks: int
):
    """In the middle of execve(2) it has no environment. A daemon kills all in a control group that is nobody else's."""
    other = tmp_path / "other"
    other.mkdir()
    mark = marks.mark_of_attempt(other, "p", 1)
    command = [sys.executable, "-S", "-E", str(CHILDREN / "execve_for_ever.py")]
    child = subprocess.Popen(command, env={marks.VARIABLE: mark})
    try:
        wait_until(lambda: marks.read_mark(child.pid) == mark, "it has begun")

        assert all(ownership.is_of_another(child.pid, state) for _ in range(looks))
        assert not ownership.is_of_another(child.pid, other)
    finally:
        child.kill()
        child.wait()
