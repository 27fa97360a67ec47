"""What a dead worker left in memory goes with the process that is executed anew, and to no other."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.host.memory_tier import handed_over
from supervisor.host.memory_tier.handed_over import NAME, LeftMemory, MemoriesHandedOver
from tests.host.memory_tier.test_salvage import Job

pytestmark = pytest.mark.integration


@pytest.fixture
def left(tmp_path: Path) -> LeftMemory:
    job = Job(tmp_path / "ckpt")
    job.copy(10)
    return LeftMemory("digits", "nobody", "/data/digits", 3, "xfs at /data", "step-0000000005.a2", job.held)


def written_in(runtime_dir: Path) -> Path:
    """The one file that says what was handed over."""
    (path,) = runtime_dir.glob(f"*{NAME}")
    return path


def test_it_is_the_same_memory_and_no_child_gets_it(left: LeftMemory, tmp_path: Path) -> None:
    handed_over.hand_over(tmp_path, tmp_path, [left])
    assert os.get_inheritable(left.held.descriptor)

    taken = handed_over.take_over(tmp_path, tmp_path)

    assert not os.get_inheritable(left.held.descriptor)
    assert {name: replace(memory, held=left.held) for name, memory in taken.left.items()} == {"digits": left}
    assert vars(taken.left["digits"].held) == vars(left.held)
    assert handed_over.take_over(tmp_path, tmp_path) == MemoriesHandedOver(), "once"


def test_what_live_workers_have_goes_with_it(left: LeftMemory, tmp_path: Path) -> None:
    handed_over.hand_over(tmp_path, tmp_path, [], [left])

    taken = handed_over.take_over(tmp_path, tmp_path)

    assert taken.left == {}
    assert [replace(memory, held=left.held) for memory in taken.held] == [left]
    assert not os.get_inheritable(left.held.descriptor)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"pid":', '"pid":1'),
        ('"inode":', '"inode":1'),
        ('"format":1', '"format":2'),
        ('"memories"', '"memory'),
    ],
)
def test_a_file_of_another_process_or_version_gives_nothing(
    left: LeftMemory, tmp_path: Path, before: str, after: str
) -> None:
    handed_over.hand_over(tmp_path, tmp_path, [left])
    path = written_in(tmp_path)
    content = path.read_text()
    path.write_text(content.replace(before, after))
    assert path.read_text() != content

    assert handed_over.take_over(tmp_path, tmp_path) == MemoriesHandedOver()
    assert not path.exists()


def test_another_daemon_that_shares_runtime_dir_takes_nothing_away(left: LeftMemory, tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.mkdir()
    others.mkdir()
    handed_over.hand_over(tmp_path, mine, [left])

    handed_over.hand_over(tmp_path, others, [replace(left, program="other")])

    assert handed_over.take_over(tmp_path, others).left.keys() == {"other"}
    assert handed_over.take_over(tmp_path, mine).left.keys() == {"digits"}


def test_what_thousands_of_jobs_left_is_read(left: LeftMemory, tmp_path: Path) -> None:
    jobs = [replace(left, program=f"job-{number}", directory=f"/data/{'d' * 100}") for number in range(5000)]
    handed_over.hand_over(tmp_path, tmp_path, jobs)

    assert len(handed_over.take_over(tmp_path, tmp_path).left) == 5000


def test_nothing_is_left_behind_without_need(tmp_path: Path) -> None:
    handed_over.hand_over(tmp_path, tmp_path, [])

    assert not list(tmp_path.iterdir())
    assert handed_over.take_over(tmp_path, tmp_path) == MemoriesHandedOver()
