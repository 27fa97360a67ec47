"""What programs print reaches their log files, through rotation, other people's hands and a full disk."""

import asyncio
import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.host.logs.capture import LogCapture
from supervisor.host.logs.messages import Rotation
from tests.host.conftest import PATIENCE_S, Spawned
from tests.reading import content, descriptors
from tests.waiting import wait_until


@pytest.fixture
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogCapture]:
    made = LogCapture(tmp_path_factory.mktemp("state"), close_timeout_s=PATIENCE_S)
    made.start()
    yield made
    made.close()


def wait_for(path: Path, wanted: bytes) -> None:
    wait_until(lambda: content(path) == wanted, details=lambda: content(path))


def fill(filler: Path) -> None:
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def put_another(path: Path) -> None:
    path.rename(f"{path}.old")
    path.write_bytes(b"made by logrotate\n")


def print_lines(logs: LogCapture, path: Path, count: int, maxbytes: int, backups: int) -> None:
    """Prints `count` lines of 10 bytes and waits until they are written."""
    pipe = logs.open_pipe(path, maxbytes, backups)
    for number in range(count):
        os.write(pipe, b"line %04d\n" % number)
    os.close(pipe)
    wait_until(lambda: content(path).endswith(b"line %04d\n" % (count - 1)))


@pytest.mark.integration
async def test_output_is_written_to_its_file(logs: LogCapture, tmp_path: Path, start: Callable[..., Spawned]) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    await start("sh", "-c", "echo hello; echo trouble >&2; printf unfinished", stdout=pipe, stderr=pipe).exit()
    os.close(pipe)

    wait_for(tmp_path / "out.log", b"hello\ntrouble\nunfinished")


@pytest.mark.integration
def test_the_file_exists_before_anything_is_printed(logs: LogCapture, tmp_path: Path) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)

    wait_until((tmp_path / "out.log").exists)
    os.close(pipe)


@pytest.mark.integration
def test_a_second_run_appends(logs: LogCapture, tmp_path: Path) -> None:
    for word in (b"first\n", b"second\n"):
        pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
        os.write(pipe, word)
        os.close(pipe)

    wait_for(tmp_path / "out.log", b"first\nsecond\n")


@pytest.mark.integration
def test_two_programs_share_a_file_and_its_limit(logs: LogCapture, tmp_path: Path) -> None:
    pipes = [logs.open_pipe(tmp_path / "out.log", 30, 1) for _ in range(2)]
    for number in range(5):
        before = len(content(tmp_path / "out.log"))
        os.write(pipes[number % 2], b"line %04d\n" % number)
        wait_until(lambda before=before: len(content(tmp_path / "out.log")) != before)
    for pipe in pipes:
        os.close(pipe)

    wait_for(tmp_path / "out.log", b"line 0003\nline 0004\n")
    wait_for(tmp_path / "out.log.1", b"line 0000\nline 0001\nline 0002\n")


def test_output_for_no_file_goes_nowhere(logs: LogCapture) -> None:
    pipe = logs.open_pipe(None, 0, 0)
    writer = threading.Thread(target=lambda: os.write(pipe, b"x" * 1_000_000))

    writer.start()
    writer.join(PATIENCE_S)

    assert not writer.is_alive()
    os.close(pipe)


@pytest.mark.parametrize(("path", "stream"), [("/dev/stdout", "out"), ("/dev/stderr", "err"), ("/dev/fd/1", "out")])
def test_log_that_is_the_daemons_own_output_gets_the_descriptor(
    path: str, stream: str, logs: LogCapture, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = logs.open_pipe(Path(path), 0, 0)
    os.write(pipe, b"hello\n")
    os.close(pipe)
    asyncio.run(logs.clear(Path(path)))

    assert getattr(capfd.readouterr(), stream) == "hello\n"


@pytest.mark.integration
def test_backups_hold_whole_lines_and_no_more_than_their_size(logs: LogCapture, tmp_path: Path) -> None:
    print_lines(logs, tmp_path / "out.log", 100, maxbytes=105, backups=2)

    kept = [content(tmp_path / name) for name in ("out.log.2", "out.log.1", "out.log")]
    lines = b"".join(kept).splitlines()
    assert sorted(os.listdir(tmp_path)) == ["out.log", "out.log.1", "out.log.2"]
    assert all(len(checkpoint) <= 105 and checkpoint.endswith(b"\n") for checkpoint in kept)
    assert lines == [b"line %04d" % number for number in range(100 - len(lines), 100)]
    assert len(lines) >= 20


@pytest.mark.integration
def test_without_backups_the_file_begins_again(logs: LogCapture, tmp_path: Path) -> None:
    print_lines(logs, tmp_path / "out.log", 25, maxbytes=100, backups=0)

    assert os.listdir(tmp_path) == ["out.log"]
    assert content(tmp_path / "out.log") == b"".join(b"line %04d\n" % number for number in range(20, 25))


@pytest.mark.integration
def test_a_line_longer_than_the_file_may_be_is_cut(logs: LogCapture, tmp_path: Path) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 100, 3)
    os.write(pipe, b"x" * 250 + b"\n")
    os.close(pipe)

    wait_for(tmp_path / "out.log", b"x" * 50 + b"\n")
    assert content(tmp_path / "out.log.1") == content(tmp_path / "out.log.2") == b"x" * 100


@pytest.mark.integration
@pytest.mark.parametrize("take_away", [Path.unlink, lambda path: path.rename(f"{path}.old"), put_another])
def test_file_that_was_moved_away_is_created_again(
    take_away: Callable[[Path], object], logs: LogCapture, tmp_path: Path
) -> None:
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    os.write(pipe, b"before\n")
    wait_for(path, b"before\n")

    take_away(path)
    wait_until(lambda: os.write(pipe, b"after\n") and b"after" in content(path), "there is a file again")
    os.close(pipe)


@pytest.mark.integration
def test_reopen_follows_the_name_at_once(logs: LogCapture, tmp_path: Path) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    os.write(pipe, b"before\n")
    wait_for(tmp_path / "out.log", b"before\n")
    (tmp_path / "out.log").rename(tmp_path / "moved.log")

    logs.reopen()

    wait_until((tmp_path / "out.log").exists)
    os.write(pipe, b"after\n")
    wait_for(tmp_path / "out.log", b"after\n")
    assert content(tmp_path / "moved.log") == b"before\n"
    os.close(pipe)


@pytest.mark.integration
@pytest.mark.parametrize("running", [True, False])
def test_clear_empties_the_file_and_deletes_its_backups(running: bool, logs: LogCapture, tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    print_lines(logs, path, 40, maxbytes=100, backups=3)
    (tmp_path / "out.log.2024").write_text("somebody else's")
    pipe = logs.open_pipe(path, 100, 3) if running else None

    asyncio.run(logs.clear(path))

    assert content(path) == b""
    assert sorted(os.listdir(tmp_path)) == ["out.log", "out.log.2024"]
    if pipe is not None:
        os.write(pipe, b"after\n")
        os.close(pipe)
        wait_for(path, b"after\n")


@pytest.mark.integration
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_rotate_begins_a_new_file_and_keeps_its_backups(
    running: bool, compress: bool, logs: LogCapture, tmp_path: Path
) -> None:
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 2, compress=compress)
    os.write(pipe, b"first\n")
    wait_for(path, b"first\n")
    if not running:
        os.close(pipe)
        wait_until(lambda: not logs.open_pipe_count, "the pipe is closed")

    asyncio.run(logs.rotate(path, Rotation(2, compress)))
    asyncio.run(logs.rotate(path, Rotation(2, compress)))  # it is empty now

    backup = "out.log.1.gz" if compress else "out.log.1"
    wait_until(lambda: sorted(os.listdir(tmp_path)) == ["out.log", backup])
    kept = content(tmp_path / backup)
    assert (content(path), gzip.decompress(kept) if compress else kept) == (b"", b"first\n")
    if running:
        os.write(pipe, b"second\n")
        os.close(pipe)
        wait_for(path, b"second\n")


def test_clear_does_not_create_a_file(logs: LogCapture, tmp_path: Path) -> None:
    asyncio.run(logs.clear(tmp_path / "out.log"))

    assert os.listdir(tmp_path) == []


@pytest.mark.integration
def test_full_disk_is_a_failure_until_it_has_room_again(logs: LogCapture, small_disk: Path) -> None:
    path, filler = small_disk / "out.log", small_disk / "filler"
    pipe = logs.open_pipe(path, 0, 0)
    os.write(pipe, b"x" * 4096)  # whole blocks, so that the next byte needs another
    wait_until(lambda: len(content(path)) == 4096)
    fill(filler)

    os.write(pipe, b"lost\n")
    wait_until(lambda: bool(logs.failures))
    trouble = dict(logs.failures)
    filler.unlink()
    wait_until(lambda: os.write(pipe, b"after\n") and b"after" in content(path), "it is written again")
    os.close(pipe)

    assert trouble == {path: f"cannot write {path}: No space left on device; the output of its program is dropped"}
    wait_until(lambda: not logs.failures)


@pytest.mark.integration
def test_a_file_that_can_not_be_rotated_grows(logs: LogCapture, tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    (tmp_path / "out.log.1").mkdir()
    (tmp_path / "out.log.1" / "in the way").write_text("")
    pipe = logs.open_pipe(path, 20, 1)
    lines = [b"line %04d\n" % number for number in range(4)]
    for line in lines:
        os.write(pipe, line)

    wait_for(path, b"".join(lines))
    wait_until(lambda: "cannot rotate" in logs.failures.get(path, ""))
    os.close(pipe)


@pytest.mark.integration
def test_output_of_a_surviving_grandchild_is_captured(logs: LogCapture, tmp_path: Path) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    held = os.dup(pipe)
    os.close(pipe)
    os.write(held, b"still here\n")

    wait_for(tmp_path / "out.log", b"still here\n")
    os.close(held)


@pytest.mark.integration
def test_close_writes_what_is_still_in_the_pipes_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    logs = LogCapture(tmp_path, close_timeout_s=PATIENCE_S)
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    os.write(pipe, b"last words\n")
    logs.start()

    logs.close()

    assert content(tmp_path / "out.log") == b"last words\n"
    os.close(pipe)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.integration
def test_a_flood_that_never_ends_does_not_hold_close(tmp_path: Path, logs: LogCapture) -> None:
    pipe = logs.open_pipe(tmp_path / "out.log", 1 << 20, 1)
    stop = threading.Event()

    def flood() -> None:
        with suppress(BrokenPipeError):
            while not stop.is_set():
                os.write(pipe, b"x" * 65536)

    writer = threading.Thread(target=flood)
    writer.start()
    wait_until(lambda: len(content(tmp_path / "out.log")) > 0)
    began = time.monotonic()
    logs.close()
    took = time.monotonic() - began
    stop.set()
    writer.join()
    os.close(pipe)

    assert took < PATIENCE_S  # after which it would have given up


def test_after_close_nothing_is_captured_but_files_can_be_cleared(logs: LogCapture, tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("old")
    before = descriptors()
    logs.close()
    logs.close()

    with pytest.raises(OSError, match="Logs are closed"):
        logs.open_pipe(tmp_path / "out.log", 0, 0)
    logs.reopen()
    asyncio.run(logs.clear(tmp_path / "out.log"))

    assert content(tmp_path / "out.log") == b""
    assert len(os.listdir("/proc/self/fd")) == before - 1  # the logs's own


@pytest.mark.integration
def test_descriptors_do_not_grow(logs: LogCapture, tmp_path: Path) -> None:
    os.close(logs.open_pipe(tmp_path / "first.log", 0, 0))
    wait_until(lambda: logs.logger_pid is not None)
    wait_until(lambda: not logs.open_pipe_count)
    before = descriptors()
    for number in range(50):
        os.close(logs.open_pipe(tmp_path / f"{number % 3}.log", 0, 0))

    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)
