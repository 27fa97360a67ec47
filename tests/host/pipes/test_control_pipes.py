"""The daemon hears its worker through real pipes, and nothing that comes through them does harm."""

import asyncio
import fcntl
import gc
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.pipes import control_pipes as channel_module
from supervisor.host.pipes.control_pipes import ITEMS_A_TURN, ControlPipes
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import MAX_LINE_BYTES, encode_message
from supervisor.protocol.wire.messages import Done, Flush, FromWorker, Go, Hello, Identify, Progress, SaveFailed, Then
from tests.fuzzing import cases
from tests.host.conftest import PATIENCE_S, Spawned
from tests.reading import descriptors
from tests.waiting import wait_until_async

pytestmark = pytest.mark.fast_clock


class Heard:
    """A channel, the worker's end of its pipes, and what came through."""

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        self.messages: list[FromWorker] = []
        self.errors: list[str] = []
        self._more = asyncio.Event()
        self.channel = ControlPipes(folder, attempt, None, self._on_message, self.errors.append)
        self.says = os.open(folder / layout.FROM_WORKER, os.O_RDWR)
        self.hears = os.open(folder / layout.TO_WORKER, os.O_RDWR | os.O_NONBLOCK)

    def _on_message(self, message: FromWorker) -> None:
        self.messages.append(message)
        self._more.set()

    def close(self) -> None:
        self.channel.close()
        os.close(self.says)
        os.close(self.hears)

    async def count(self, wanted: int) -> list[FromWorker]:
        """All messages, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < wanted:
                self._more.clear()
                await self._more.wait()
        return self.messages


@asynccontextmanager
async def heard(folder: Path, attempt: int = 1) -> AsyncIterator[Heard]:
    end = Heard(folder, attempt)
    try:
        yield end
    finally:
        end.close()


async def test_messages_arrive_in_order(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1") as end:
        os.write(end.says, encode_message(Hello(1, 1, 42, "0.1")) + encode_message(Progress(1, 5)))

        assert await end.count(2) == [Hello(1, 1, 42, "0.1"), Progress(1, 5)]


@pytest.mark.integration
async def test_a_worker_hears_and_answers(tmp_path: Path, start_child: Callable[..., Spawned]) -> None:
    async with heard(tmp_path / "digits" / "a7", attempt=7) as end:
        worker = start_child("talker.py", str(tmp_path / "digits" / "a7"), "7")
        assert end.channel.send(Go(7, None))
        assert end.channel.send(Flush(7, 3, "notice", Then.GO_ON, 10.0))
        assert end.channel.send(Identify(7))
        await worker.exit()
        end.channel.close()

        hello, *answers = end.messages
        assert isinstance(hello, Hello) and hello.pid == worker.process.pid
        assert answers == [Progress(7, 0), Progress(7, 3), Done(7, 9)]
        assert end.errors == []


async def test_last_words_are_heard_after_the_workers_death(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1") as end:
        os.write(end.says, encode_message(Done(1, 100)))
        end.channel.close()

        assert end.messages == [Done(1, 100)]


async def test_the_pipes_are_gone_after_close(tmp_path: Path) -> None:
    before = descriptors()
    async with heard(tmp_path / "digits" / "a1") as end:
        end.channel.close()
        end.channel.close()

        await wait_until_async(lambda: not (tmp_path / "digits" / "a1").exists(), "they are removed")
        assert not end.channel.send(Identify(1))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_only_the_owner_can_open_the_pipes(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1"):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a1", *sorted((tmp_path / "a1").iterdir()))]

        assert modes == [0o700, 0o600, 0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
async def test_the_pipes_belong_to_the_jobs_user(tmp_path: Path) -> None:
    channel = ControlPipes(tmp_path / "a1", 1, (12345, 12346), print, print)
    owners = [(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "a1", *(tmp_path / "a1").iterdir())]
    channel.close()

    assert owners == [(12345, 12346)] * 3


async def test_leftovers_of_an_earlier_daemon_are_removed_first(tmp_path: Path) -> None:
    (tmp_path / "a1" / "sub").mkdir(parents=True)
    (tmp_path / "a1" / layout.FROM_WORKER).write_bytes(encode_message(Done(1, 1)))

    async with heard(tmp_path / "a1") as end:
        os.write(end.says, encode_message(Progress(1, 2)))

        assert await end.count(1) == [Progress(1, 2)]
        assert sorted(os.listdir(tmp_path / "a1")) == [layout.FROM_WORKER, layout.TO_WORKER]


async def test_failure_to_make_pipes_raises_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="Not a directory"):
        ControlPipes(tmp_path / "file" / "a1", 1, None, print, print)

    assert os.listdir(tmp_path) == ["file"]


async def test_words_of_another_attempt_and_orders_are_dropped_and_reported_once(tmp_path: Path) -> None:
    async with heard(tmp_path / "a2", attempt=2) as end:
        for _ in range(3):
            os.write(end.says, encode_message(Progress(1, 5)) + encode_message(Go(2, "/etc")) + b"nonsense\n")
        os.write(end.says, encode_message(Progress(2, 6)))

        assert await end.count(1) == [Progress(2, 6)]
        assert end.errors == [
            "Progress of attempt 1 came through the pipe of attempt 2; ignored",
            "Go is sent to workers, not by them; ignored",
            "not JSON: Expecting value: line 1 column 1 (char 0): b'nonsense'",
        ]
        end.channel.close()
        assert len(end.errors) == 6  # how many more there were, once for each kind


async def test_a_worker_that_never_reads_holds_nobody_and_hears_all_that_was_accepted(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1") as end:
        orders = [Flush(1, number, "x" * 10_000, Then.GO_ON) for number in range(200)]

        accepted = [order for order in orders if end.channel.send(order)]

        assert channel_module.QUEUED_MESSAGES <= len(accepted) < len(orders)
        stream, whole = b"", b"".join(map(encode_message, accepted))
        async with asyncio.timeout(PATIENCE_S):
            while len(stream) < len(whole):
                try:
                    stream += os.read(end.hears, 1 << 20)
                except BlockingIOError:
                    await asyncio.sleep(0)
        assert stream == whole


async def test_much_at_once_is_heard_in_several_turns(tmp_path: Path) -> None:
    lines = [encode_message(Progress(1, step)) for step in range(ITEMS_A_TURN * 2)]
    async with heard(tmp_path / "a1") as end:
        assert sum(map(len, lines)) < 65536, "more than the pipe holds"
        os.write(end.says, b"".join(lines))

        first = len(await end.count(1))
        assert first < len(lines)
        steps = [number.step for number in await end.count(len(lines)) if isinstance(number, Progress)]
        assert steps == list(range(len(lines)))


async def test_a_flood_leaves_everybody_else_their_turn(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1") as end:
        os.set_blocking(end.says, False)
        took = []
        gc.disable()  # what other tests left is not this one's
        try:
            for _ in range(50):
                began = time.thread_time()  # not that of others on a busy machine
                with suppress(BlockingIOError):
                    os.write(end.says, b"{}\n" * 1000)
                await asyncio.sleep(0)
                took.append(time.thread_time() - began)
        finally:
            gc.enable()

        assert sum(took) < 0.75
        assert max(took) < 0.1
        assert len(end.errors) == 1


async def test_closing_it_from_what_was_heard_is_safe(tmp_path: Path) -> None:
    messages: list[FromWorker] = []
    mishaps: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, mishap: mishaps.append(mishap))
    closed = asyncio.Event()

    def on_message(message: FromWorker) -> None:
        messages.append(message)
        channel.close()
        closed.set()

    channel = ControlPipes(tmp_path / "a1", 1, None, on_message, print)
    says = os.open(tmp_path / "a1" / layout.FROM_WORKER, os.O_RDWR)
    os.write(says, encode_message(Progress(1, 1)) + encode_message(Progress(1, 2)))
    await asyncio.wait_for(closed.wait(), PATIENCE_S)
    os.close(says)

    await asyncio.sleep(0)

    assert messages == [Progress(1, 1), Progress(1, 2)]
    assert mishaps == []


CHUNKS = st.lists(
    st.binary(max_size=100)
    | st.just(encode_message(Progress(1, 7)))
    | st.just(encode_message(Progress(2, 7)))
    | st.just(b"[" * 5000)
    | st.just(b"x" * (MAX_LINE_BYTES // 2))
    | st.just(b"\n"),
    max_size=10,
)


@pytest.mark.fuzz
@cases(100)
@given(CHUNKS)
def test_valid_lines_arrive_between_whatever_else_comes(chunks: list[bytes]) -> None:
    async def talk(folder: Path) -> list[FromWorker]:
        async with heard(folder) as end:
            for chunk in chunks:
                os.write(end.says, chunk)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            os.write(end.says, b"\n" + encode_message(Done(1, 8)))
            end.channel.close()
            return end.messages

    with tempfile.TemporaryDirectory() as folder:
        messages = asyncio.run(talk(Path(folder) / "a1"))

    assert messages[-1] == Done(1, 8)
    assert set(map(type, messages)) <= {Progress, Done}


async def test_a_message_out_of_its_limits_is_refused_and_counted_and_the_next_one_heard(tmp_path: Path) -> None:
    async with heard(tmp_path / "a1") as end:
        for number in range(3):
            os.write(end.says, b'{"type":"progress","attempt":1,"step":5,"interval_s":1e308,"n":%d}\n' % number)
        os.write(end.says, encode_message(Progress(1, 6)))

        assert await end.count(1) == [Progress(1, 6)]
        refusals = end.channel.refusals
        (said,) = refusals.describe(asyncio.get_running_loop().time())
        assert said == (
            "sends nonsense: progress.interval_s is 1e+308, not 0 to 315,360,000, 0 or at least 1e-09 "
            "(3 messages refused)"
        )
        assert refusals.describe(asyncio.get_running_loop().time() + 3601.0) == []


async def test_of_a_flood_of_one_type_the_rest_is_left_out_and_other_types_are_heard(tmp_path: Path) -> None:
    burst = SaveFailed.rate.burst
    async with heard(tmp_path / "a1") as end:
        os.set_blocking(end.says, False)
        lines = [encode_message(SaveFailed(1, number, "no")) for number in range(burst + 500)]
        lines.append(encode_message(Done(1, 9)))
        async with asyncio.timeout(PATIENCE_S):
            while not end.messages or not isinstance(end.messages[-1], Done):
                while lines:
                    try:
                        os.write(end.says, lines[0])
                    except BlockingIOError:
                        break
                    del lines[0]
                await asyncio.sleep(0)

        came = sum(isinstance(message, SaveFailed) for message in end.messages)
        assert burst <= came < burst + 100
        assert end.channel.refusals.left_out == burst + 500 - came
        assert "sends save-failed too often" in end.channel.refusals.describe(asyncio.get_running_loop().time())[0]


async def test_a_pipe_that_is_flooded_is_left_full_for_a_while(tmp_path: Path) -> None:
    """A worker that never stops writing is read at the rate that any sane one stays below.

    A slow machine reads the burst that is allowed at once later, so the bound follows from the time that really passed.
    """
    async with heard(tmp_path / "a1") as end, asyncio.timeout(PATIENCE_S):
        os.set_blocking(end.says, False)
        loop = asyncio.get_running_loop()
        began, written, line = loop.time(), 0, encode_message(Progress(1, 5))
        while written < channel_module.LINES_AT_ONCE or loop.time() - began < 1.5:
            with suppress(BlockingIOError):
                while True:
                    written += os.write(end.says, line * (4096 // len(line))) // len(line)
            await asyncio.sleep(0.01)

        in_pipe_and_last_read = (fcntl.fcntl(end.says, fcntl.F_GETPIPE_SZ) + channel_module.READ_BYTES) // len(line)
        allowed = channel_module.LINES_AT_ONCE + channel_module.LINES_A_SECOND * (loop.time() - began)
        assert written <= allowed + in_pipe_and_last_read
