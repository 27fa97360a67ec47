"""What is remembered of saves, to plan the last flush from."""

import asyncio
import os
from pathlib import Path

import pytest

from supervisor.core.notices.flush import SAVE_SPREAD
from supervisor.protocol.layout import CheckpointName
from supervisor.runner.records.saves import SavedCheckpoint, SaveDurations
from tests.waiting import wait_until_async


def planned(saves: SaveDurations) -> float:
    return saves.expected_s([])["digits"] / SAVE_SPREAD


async def test_the_second_save_of_an_attempt_replaces_its_first(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 4.0, 100.0)
    assert planned(saves) == pytest.approx(4.0), "the only one there is"

    saves.record_save("digits", 1, tmp_path, 1.5, 200.0)
    assert planned(saves) == pytest.approx(1.5)
    saves.record_save("digits", 1, tmp_path, 2.5, 300.0)
    saves.record_save("digits", 1, tmp_path, 2.0, 400.0)
    assert planned(saves) == pytest.approx(2.5), "the slowest of the others"

    saves.record_save("digits", 2, tmp_path, 6.0, 500.0)
    assert planned(saves) == pytest.approx(6.0)
    saves.record_save("digits", 2, tmp_path, 2.0, 600.0)
    assert planned(saves) == pytest.approx(2.5), "what earlier attempts took counts on"


async def test_a_save_that_waited_for_another_of_the_same_job_is_planned_for_by_itself(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 1.0, 90.0)
    saves.record_save("digits", 1, tmp_path, 3.0, 100.0)

    saves.record_save("digits", 1, tmp_path, 5.0, 102.0)

    assert planned(saves) == pytest.approx(3.0)


GB = 1 << 30


def checkpoint(directory: Path, size: int, step: int = 1) -> Path:
    folder = directory / str(CheckpointName(step, 1))
    folder.mkdir(parents=True)
    with (folder / "data").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return folder


def tell_nobody(size_bytes: int) -> None:
    pass


async def saved(saves: SaveDurations, job: str, directory: Path, save_s: float, now: float, since: float = 0.0) -> None:
    """A commit as the worker says it, and the look at the disk that follows."""
    name = str(CheckpointName(1, 1))
    found = SavedCheckpoint(directory, name, None, tell_nobody)
    saves.record_save(job, 1, directory, save_s, now, since=since, checkpoint=found)
    await asyncio.sleep(0)
    await wait_until_async(lambda: saves._jobs[job].sizes)  # also of what is not there


@pytest.mark.parametrize("claim_s", [1000.0, 1e18])
async def test_a_job_that_only_claims_to_save_moves_no_other_jobs_plan(tmp_path: Path, claim_s: float):
    saves = SaveDurations()
    checkpoint(tmp_path / "victim", 4 << 20)
    (tmp_path / "liar").mkdir()
    for now in (5000.0, 6000.0):
        await saved(saves, "victim", tmp_path / "victim", 44.0, now)
        await saved(saves, "liar", tmp_path / "liar", claim_s, now - 1.0)

    expected = saves.expected_s(["victim", "liar"])

    assert expected["victim"] == pytest.approx(SAVE_SPREAD * 44.0, rel=0.05)


async def test_a_save_cannot_have_begun_before_its_attempt(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 3.0e8, 1030.0, since=1000.0)

    assert planned(saves) == pytest.approx(30.0)


async def test_holes_links_and_other_names_are_no_bytes(tmp_path: Path):
    folder = checkpoint(tmp_path / "job", 1 << 20)
    with (folder / "hole").open("wb") as file:
        file.truncate(10 * GB)
    os.link(checkpoint(tmp_path / "elsewhere", 8 << 20) / "data", folder / "linked")
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "step-0000000001.a1" / "data")
    (folder / "deep").mkdir()
    with (folder / "deep" / "more").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    saves = SaveDurations()
    told: list[int] = []

    saves.record_save(
        "job", 1, tmp_path, 1.0, 10.0, checkpoint=SavedCheckpoint(folder.parent, folder.name, None, told.append)
    )
    await wait_until_async(lambda: told)

    assert told == [2 << 20]


async def test_job_that_an_update_moves_to_another_disk_is_planned_for_there(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 4.0, 100.0)
    await wait_until_async(lambda: saves._jobs["digits"].disk)
    there = Path("/dev/shm")

    saves.record_save("digits", 1, there, 4.0, 200.0)
    assert saves._jobs["digits"].disk is None, "it is not known yet"
    await wait_until_async(lambda: saves._jobs["digits"].disk == there.stat().st_dev)


async def test_nothing_is_left_of_a_job_that_is_forgotten(tmp_path: Path):
    saves = SaveDurations()
    checkpoint(tmp_path / "digits", 4096)
    await saved(saves, "digits", tmp_path / "digits", 4.0, 100.0)
    empty = {name: known for name, known in vars(SaveDurations()).items() if isinstance(known, dict)}

    saves.forget("digits")
    await asyncio.sleep(0.05)

    assert {name: known for name, known in vars(saves).items() if isinstance(known, dict)} == empty
