"""Who follows a log gets each byte of it once, across rotations between two looks."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from supervisor.control.streams import tail
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.logs.files.positions import COMPRESSED_NAME

MARK = b"==> File truncated <==\n"
GONE = (
    b"[stepkeeper: lines may be missing here: the log was moved, deleted or emptied; it goes on with the file that has "
    b"its name now]\n"
)


def rotate(path: Path, backups: int) -> None:
    """As the logger does, the oldest backup first."""
    for number in range(backups, 0, -1):
        source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if source.exists():
            source.rename(path.with_name(f"{path.name}.{number}"))


async def followed(path: Path, change: Callable[[], None], until: bytes) -> bytes:
    """What is added by `change`, which happens between two looks, up to `until`."""
    _, position = tail.read_end(path, 0)
    change()
    content = b""
    pieces: AsyncGenerator[bytes, None] = tail.follow(BlockingCalls(), path, position, MARK)
    async with aclosing(pieces), asyncio.timeout(20):
        async for piece in pieces:
            content += piece
            if content.endswith(until):
                return content
    raise AssertionError(content)


@pytest.mark.parametrize("rotations", [0, 1, 2, 3])
async def test_what_was_written_before_rotations_is_not_lost(tmp_path: Path, rotations: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"seen\n")

    def change() -> None:
        for number in range(rotations):
            with path.open("ab") as file:
                file.write(b"%d\n" % number * 100_000)
            rotate(path, 5)
            path.touch()
        with path.open("ab") as file:
            file.write(b"end\n")

    added = b"".join(b"%d\n" % number * 100_000 for number in range(rotations))
    assert await followed(path, change, b"end\n") == added + b"end\n"


async def test_of_what_was_rotated_away_the_rest_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"seen\n")

    def change() -> None:
        for number in range(3):
            with path.open("ab") as file:
                file.write(b"%d\n" % number)
            rotate(path, 1)
        path.write_bytes(b"end\n")

    assert await followed(path, change, b"end\n") == GONE + b"2\nend\n"


@pytest.mark.parametrize("followed_one", [False, True])
async def test_a_backup_that_can_not_be_read_is_said_and_the_log_goes_on_behind_it(
    tmp_path: Path, followed_one: bool
) -> None:
    path, inodes = tmp_path / "log", list[int]()
    path.write_bytes(b"seen\n")

    def change() -> None:
        for number in range(3):
            inodes.append(path.stat().st_ino)
            with path.open("ab") as file:
                file.write(b"%d\n" % number)
            rotate(path, 5)
            path.touch()
        damaged = 0 if followed_one else 1
        backup = path.with_name(f"log.{3 - damaged}")
        name = COMPRESSED_NAME.format(inodes[damaged]).encode()
        backup.with_name(f"{backup.name}.gz").write_bytes(
            b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + name + b"\0" + b"\xff" * 20 + b"\x07\0\0\0"
        )
        backup.unlink()
        with path.open("ab") as file:
            file.write(b"end\n")

    content = await followed(path, change, b"end\n")

    assert b"[stepkeeper: lines are missing here: a compressed backup is damaged: " in content
    assert content.startswith(b"[" if followed_one else b"0\n[")
    assert content.endswith(b"]\nend\n" if followed_one else b"]\n2\nend\n")


async def test_who_follows_a_log_that_was_moved_away_is_told_and_backups_from_before_are_not_shown(
    tmp_path: Path,
) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    old.write_bytes(b"old\n")
    os.utime(old, (1e9, 1e9))
    path.write_bytes(b"seen\n")

    def change() -> None:
        path.rename(tmp_path / "away")
        path.write_bytes(b"end\n")

    assert await followed(path, change, b"end\n") == GONE + b"end\n"


async def test_what_the_logger_still_writes_to_a_log_that_was_moved_comes_too(tmp_path: Path) -> None:
    """As logrotate does with `create`: the logger finds out at most a second later."""
    path, moved = tmp_path / "log", tmp_path / "log.1"
    path.write_bytes(b"seen\n")
    _, position = tail.read_end(path, 0)
    path.rename(moved)
    path.touch()
    content = b""

    def write(to: Path, text: bytes) -> None:
        with to.open("ab") as file:
            file.write(text)

    pieces: AsyncGenerator[bytes, None] = tail.follow(BlockingCalls(), path, position, MARK)
    write(moved, b"1\n")
    async with aclosing(pieces), asyncio.timeout(20):
        async for piece in pieces:
            content += piece
            if content == b"1\n":
                write(moved, b"2\n")
                write(path, b"end\n")
            if content.endswith(b"end\n"):
                break

    assert content == b"1\n2\nend\n"


async def test_a_log_that_is_emptied_is_shown_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"seen, and more\n")

    def change() -> None:
        path.write_bytes(b"end\n")

    assert await followed(path, change, b"end\n") == MARK + b"end\n"
