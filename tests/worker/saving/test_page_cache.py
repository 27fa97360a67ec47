"""The newest checkpoint stays in the page cache, and it alone."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import durable
from supervisor.protocol.checkpoints.new_folder import NewFolder
from tests import page_cache
from tests.waiting import stays, wait_until
from worker.saving.page_cache import CachedCheckpoint, fits_in_cache

SIZE = 6 << 20
SIZES = st.integers(0, 1 << 50)


@pytest.fixture
def directory() -> Iterator[Path]:
    with page_cache.folder_on_disk() as folder:
        yield folder


def commit(directory: Path, name: str, size: int = SIZE) -> Path:
    """A checkpoint written past the page cache; returns its data file."""
    with NewFolder(directory / f"{name}.partial") as folder:
        folder.add("data", os.urandom(size))
        folder.commit(directory / name)
    page_cache.drop(directory / name / "data")  # where the file system refuses O_DIRECT, or the end is no whole block
    assert page_cache.cached_bytes(directory / name / "data") == 0
    return directory / name / "data"


def no_thread() -> bool:
    return all(thread.name != "stepkeeper-cache" for thread in threading.enumerate())


@given(size=SIZES, available=SIZES)
def test_three_times_the_checkpoint_is_left_for_training(size: int, available: int) -> None:
    assert fits_in_cache(size, available) == (available - size >= 3 * size)


def test_the_newest_checkpoint_takes_the_place_of_the_one_before(directory: Path) -> None:
    first, second = commit(directory, "first"), commit(directory, "second")
    cached = CachedCheckpoint(directory, None)

    cached.replace("first", SIZE)
    wait_until(lambda: page_cache.is_cached(first), "the first is in the page cache")
    cached.replace("second", SIZE)
    wait_until(lambda: page_cache.is_cached(second), "the second is in the page cache")

    assert page_cache.cached_bytes(first) == 0


def test_the_checkpoint_that_was_restored_is_dropped_too(directory: Path) -> None:
    restored, saved = commit(directory, "restored"), commit(directory, "saved")
    durable.hash_file(restored)
    assert page_cache.is_cached(restored)

    CachedCheckpoint(directory, "restored").replace("saved", SIZE)

    wait_until(lambda: page_cache.cached_bytes(restored) == 0, "the restored one is dropped")
    wait_until(lambda: page_cache.is_cached(saved), "the saved one is in the page cache")


def test_one_that_is_too_large_for_memory_stays_on_the_disk(directory: Path) -> None:
    before, large = commit(directory, "before"), commit(directory, "large")
    durable.hash_file(before)

    CachedCheckpoint(directory, "before").replace("large", 1 << 50)
    wait_until(no_thread, "the thread has ended")

    assert (page_cache.cached_bytes(before), page_cache.cached_bytes(large)) == (0, 0)


@pytest.mark.thorough
def test_reading_stops_when_the_run_ends(directory: Path) -> None:
    data = commit(directory, "step", 64 << 20)  # takes 0.3 s
    cached = CachedCheckpoint(directory, None)

    cached.replace("step", 64 << 20)
    cached.stop()
    wait_until(no_thread, "the thread has ended")

    stays(lambda: page_cache.cached_bytes(data) < 32 << 20, "most of it is on the disk only", for_s=0.5)


def test_a_checkpoint_that_retention_deleted_is_nothing_to_report(directory: Path) -> None:
    data = commit(directory, "second")
    cached = CachedCheckpoint(directory, "deleted")

    cached.replace("second", SIZE)
    wait_until(lambda: page_cache.is_cached(data), "the second is in the page cache")
    cached.replace("deleted", SIZE)
    wait_until(no_thread, "the thread has ended")
