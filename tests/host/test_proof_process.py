"""The process that proves a job: heard with limits, ended whatever it does, and nothing of it is left."""

import asyncio
import contextlib
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from supervisor.host import proof_process
from supervisor.host.children import Identity
from supervisor.host.proof_cleanup import kill_all_of
from supervisor.host.proof_process import (
    ProofFailed,
    ProofPlan,
    ProofProcess,
    ProofProgress,
    Proven,
    encode_output,
    parse_output,
    remove_scratch,
)
from supervisor.protocol.proof import MAX_DIFFERENCES, Difference, ProofReport, Verdict
from tests.children.prover import GARBAGE
from tests.places import CHILDREN, ROOT
from tests.reading import words_of_processes
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CODE = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from tests.children import prover; prover.main()"
COMMAND = (sys.executable, "-P", "-c", CODE)


def plan_of(folder: Path, how: str, identity: Identity | None = None) -> ProofPlan:
    return ProofPlan(None, {"PROVER": how}, identity, (folder, folder / "not-there"), ".prove-0123456789abcdef")


@pytest.fixture(autouse=True)
def _removes_deep_trees(tmp_path: Path) -> Iterator[None]:
    yield
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def left_of(folder: Path) -> list[str]:
    """Processes that have the scratch folder in their environment, and the folder itself."""
    left = [str(path) for path in folder.glob(".prove-*")]
    left += [str(pid) for pid, words in words_of_processes().items() if os.fsencode(folder / ".prove-") in words]
    return left


async def proven(folder: Path, how: str, limit_s: float = 60.0) -> Proven:
    return await ProofProcess(COMMAND, plan_of(folder, how)).run(lambda _: None, limit_s)


@pytest.mark.parametrize("how", ["exact", "different"])
async def test_a_report_is_taken_and_nothing_is_left_although_its_process_stays(tmp_path: Path, how: str) -> None:
    heard: list[ProofProgress] = []

    found = await ProofProcess(COMMAND, plan_of(tmp_path, how)).run(heard.append, 60.0)

    assert found.report.verdict == Verdict(how)
    assert heard == [ProofProgress("undisturbed run", 0.25, 5, 20)]
    assert left_of(tmp_path) == []


@pytest.mark.hostile
@pytest.mark.parametrize("number", range(len(GARBAGE)))
async def test_what_is_no_report_is_said(tmp_path: Path, number: int) -> None:
    with pytest.raises(ProofFailed, match="printed what is no report"):
        await proven(tmp_path, f"garbage:{number}")

    assert left_of(tmp_path) == []


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("where", "words"),
    [("stdout", "what is no report"), ("progress", "printed more than"), ("stderr", "took longer than 3 s")],
)
async def test_a_flood_is_stopped_and_holds_nobody_up(tmp_path: Path, where: str, words: str) -> None:
    longest_s = 0.0

    async def beat() -> None:
        nonlocal longest_s
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, time.monotonic() - began)

    beating = asyncio.create_task(beat())
    with pytest.raises(ProofFailed, match=words):
        await proven(tmp_path, f"floods:{where}", 3.0 if where == "stderr" else 60.0)
    beating.cancel()

    assert longest_s < 1.0, "the loop had its turns"
    assert left_of(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "words"), [("dies", "without a report: ValueError: it can't"), ("kills:itself", "without a report")]
)
async def test_an_end_without_a_report_is_said_with_its_last_words(tmp_path: Path, how: str, words: str) -> None:
    with pytest.raises(ProofFailed, match=words):
        await proven(tmp_path, how)

    assert left_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_replaces_its_program_when_it_is_looked_for_is_killed(tmp_path: Path, every: int) -> None:
    """In the middle of execve(2) it has neither environment nor arguments."""
    place = tmp_path / ".prove-0123456789abcdef"
    command = [sys.executable, "-S", "-E", str(CHILDREN / "execve_for_ever.py")]
    for number in range(0, 200, every):
        child = subprocess.Popen(command, env={"OF": str(place)})
        time.sleep(0.015 + number * 0.00006)  # another moment of its life each time
        kill_all_of([place])
        try:
            child.wait(20)
        finally:
            child.kill()


async def test_one_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ProofFailed, match="took longer than 2 s"):
        await proven(tmp_path, "never", 2.0)

    assert left_of(tmp_path) == []


async def test_one_that_can_t_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProofFailed, match="cannot start its process: No such file"):
        await ProofProcess(("/not/there",), plan_of(tmp_path, "never")).run(lambda _: None, 5.0)


@pytest.mark.parametrize("again", [0, 1, 5])
async def test_cancelled_it_leaves_nothing_however_often_it_is_cancelled(tmp_path: Path, again: int) -> None:
    task = asyncio.create_task(proven(tmp_path, "never"))
    await asyncio.to_thread(wait_until, (tmp_path / "began").exists, "it has begun", 30.0)

    task.cancel()
    for _ in range(again):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert left_of(tmp_path) == []


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
@pytest.mark.parametrize("how", ["exact", "garbage:0", "never", "kills:itself"])
async def test_that_of_another_user_leaves_nothing_either(tmp_path: Path, how: str) -> None:
    entry = pwd.getpwnam("nobody")
    home = tmp_path / "home"
    home.mkdir()
    for folder in (home, *tmp_path.parents, tmp_path):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    identity = Identity(entry.pw_uid, entry.pw_gid, ())
    owners: set[int] = set()

    def look(progress: ProofProgress) -> None:
        owners.add((home / "began").stat().st_uid)
        with contextlib.suppress(psutil.NoSuchProcess):  # it has killed itself
            owners.add(psutil.Process(int((home / "began").read_text())).uids().real)

    try:
        await ProofProcess(COMMAND, plan_of(home, how, identity)).run(look, 3.0)
    except ProofFailed:
        assert how != "exact"

    assert owners <= {entry.pw_uid}
    assert left_of(home) == []


@pytest.mark.slow  # a thousand folders in each other
def test_a_folder_that_was_made_to_cost_is_removed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "never")
    deepest = tmp_path / plan.name
    deepest.mkdir()
    (tmp_path / "kept").write_text("x")
    (deepest / "link").symlink_to(tmp_path / "kept")
    (deepest / "folder-link").symlink_to(tmp_path)
    script = "import os, sys; os.chdir(sys.argv[1]); [(os.mkdir('d'), os.chdir('d')) for _ in range(1200)]"
    subprocess.run([sys.executable, "-c", script, str(deepest)], check=True)

    asyncio.run(remove_scratch(plan.scratch))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_who_only_looks_like_a_part_of_the_proof_lives_on(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "never")
    others = [
        subprocess.Popen(["/bin/sleep", "600"], env={"OF": str(tmp_path / f"{plan.name}-other"[:-8])}),
        subprocess.Popen(["/bin/sleep", "600"], env={"OF": str(tmp_path)}),
    ]
    own = subprocess.Popen(["/bin/sleep", "600"], env={"OF": str(tmp_path / plan.name / "run")})
    try:
        asyncio.run(remove_scratch(plan.scratch))

        assert own.wait(10) == -9
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()


# --- what it prints ---------------------------------------------------------------------------------------------------

REPORT = ProofReport(Verdict.DIFFERENT, "digits", 5.0, 1.0, 20, differences=(Difference("loss", 4, "1", "2"),) * 3)


def test_what_is_said_is_heard() -> None:
    for said in (ProofProgress("killed run", 0.5, 3, 9), ProofProgress("starts"), Proven(REPORT, "different")):
        assert parse_output(encode_output(said)) == said


def test_what_is_too_large_is_cut_where_it_is_said() -> None:
    large = replace(REPORT, differences=REPORT.differences * 1000, reason="x" * 1_000_000)

    line = encode_output(Proven(large, "y" * 1_000_000))

    assert len(line) < proof_process.MAX_LINE_BYTES
    heard = parse_output(line)
    assert isinstance(heard, Proven)
    assert len(heard.report.differences) == MAX_DIFFERENCES
