"""The daemon's side of the helper for GPUs: starts it, asks it, and leaves it behind if it hangs.

There is never a second one: another is started only once the last has ended, and one that hangs in the driver may not
end before the host does. Until then questions are answered at once with HelperHangs, and what it still says by itself
(the kernel's log) is heard.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog

from supervisor.host.children import own_command, start_own_with_streams
from supervisor.host.gpu_guard import messages
from supervisor.host.gpu_guard.messages import EXIT_LOCKED
from supervisor.protocol.wire.codec import ProtocolError, encode_record
from supervisor.protocol.wire.lines import MAX_LINE_BYTES

ANSWERS_WITHIN_S = 10.0  # a driver in trouble hangs; one in order takes about a second for eight GPUs
CATCH_UP_S = 0.5  # for the kernel's log: as long as an exit waits; a line takes milliseconds, on a busy host tenths
AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # before another helper is started, after so many that ended
MAX_WORDS = 300  # characters of its last words

Wanted = TypeVar("Wanted", messages.GpuList, messages.MemoryHeld, messages.GpuLoads, messages.CaughtUp)

log = structlog.get_logger()


class HelperHangs(Exception):
    """NVIDIA's driver does not answer, or nobody can ask it; the text says which."""


@dataclass(frozen=True, slots=True)
class GpuHelper:
    """What is started where, as tests may have it otherwise. `driver`: exists on hosts with NVIDIA's driver.

    `poll_s`: how often NVML is asked while a job runs.
    """

    command: tuple[str, ...] = own_command("supervisor.host.gpu_guard.child")
    driver: Path = Path("/dev/nvidiactl")
    poll_s: float = 15.0
    answers_within_s: float = ANSWERS_WITHIN_S


class GuardClient:
    """One helper at a time. `on_news`: gets what it says by itself. `lock`: the file that it holds meanwhile.

    `after`: gives the number of the last record of the kernel's log that was judged.
    """

    def __init__(
        self,
        helper: GpuHelper,
        lock: Path,
        after: Callable[[], int | None],
        on_news: Callable[[messages.News], None],
    ) -> None:
        self._helper = helper
        self._lock = lock
        self._after = after
        self._on_news = on_news
        self._process: asyncio.subprocess.Process | None = None
        self._run: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[messages.Answer]] = {}
        self._last_id = 0
        self._pace = messages.Pace(is_training=True)
        self.hangs: str | None = None
        """Why questions are not answered; None if they are, as far as known."""

    @property
    def pid(self) -> int | None:
        """The helper's; None if there is none at present."""
        return self._process.pid if self._process is not None else None

    @property
    def is_started(self) -> bool:
        """Whether there is a helper, or soon will be."""
        return self._run is not None

    @property
    def has_driver(self) -> bool:
        """Whether this host has NVIDIA's driver."""
        return self._helper.driver.exists()

    def start(self) -> None:
        """Starts the helper, once, and from then on another whenever it ends. Does not wait."""
        if self._run is None:
            self._run = asyncio.create_task(self._keep_running())

    def set_pace(self, is_training: bool) -> None:
        """Has NVML be asked often or seldom."""
        pace = messages.Pace(is_training)
        if pace != self._pace:
            self._pace = pace
            self._send(pace)

    async def list_gpus(self, limit_s: float | None = None) -> messages.GpuList:
        """How all GPUs are, and who holds their memory. `limit_s`: if it is not the helper's. Raises HelperHangs."""
        request = messages.ListRequest(self._next_id())
        return await self._ask(request, messages.GpuList, limit_s or self._helper.answers_within_s)

    async def memory_held(self, limit_s: float) -> messages.MemoryHeld:
        """How much memory each process holds. Raises HelperHangs."""
        return await self._ask(messages.MemoryRequest(self._next_id()), messages.MemoryHeld, limit_s)

    async def loads(self, limit_s: float) -> messages.GpuLoads:
        """What each GPU has done in the last second. Raises HelperHangs."""
        return await self._ask(messages.LoadRequest(self._next_id()), messages.GpuLoads, limit_s)

    async def catch_up(self) -> None:
        """Returns once all that the kernel's log has now was reported, or after CATCH_UP_S."""
        with contextlib.suppress(HelperHangs):
            await self._ask(messages.CatchUpRequest(self._next_id()), messages.CaughtUp, CATCH_UP_S)

    def close(self) -> None:
        """Ends the helper, or leaves it behind; waits for nothing."""
        if self._run is not None:
            self._run.cancel()
        if self._process is not None:
            _kill(self._process)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def _ask(self, question: messages.Question, kind: type[Wanted], limit_s: float) -> Wanted:
        is_for_driver = kind is not messages.CaughtUp
        if is_for_driver and self.hangs is not None:
            raise HelperHangs(self.hangs)
        answer: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = answer
        try:
            async with asyncio.timeout(limit_s):
                await self._started.wait()
                self._send(question)
                message = await answer
        except TimeoutError:
            why = f"NVIDIA's driver has not answered for {limit_s:g} s"
            if is_for_driver and limit_s >= self._helper.answers_within_s:
                self._set_hangs(why)
            raise HelperHangs(why) from None
        finally:
            self._waiting.pop(question.id, None)
        if not isinstance(message, kind):
            raise HelperHangs(f"the helper for GPUs answered with {type(message).__name__}")
        return message

    def _send(self, message: messages.Question | messages.Pace) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):  # it has just ended
                self._process.stdin.write(messages.LINES.encode(message))

    async def _keep_running(self) -> None:
        ended = 0
        while True:
            began_at = asyncio.get_running_loop().time()
            try:
                why = await self._run_one()
            except Exception as error:  # without another helper, faults of GPUs would not be seen any more
                log.exception("internal.failed")
                why = f"internal error {error!r:.200}"
            lived_s = asyncio.get_running_loop().time() - began_at
            ended = 0 if lived_s > AGAIN_S[-1] else min(ended + 1, len(AGAIN_S) - 1)
            log.error("gpu.helper_ended", why=why, again_in_s=AGAIN_S[ended])
            self._fail_all(why)
            await asyncio.sleep(AGAIN_S[ended])

    async def _run_one(self) -> str:
        """Runs one helper to its end; returns why it ended."""
        settings = messages.HelperSettings(str(self._lock), self._after(), self._helper.poll_s)
        try:
            process = await start_own_with_streams(
                (*self._helper.command, encode_record(settings)), {}, limit=MAX_LINE_BYTES
            )
        except OSError as error:
            return f"cannot start it: {error.strerror or error}"
        self._process = process
        self._started.set()
        self._send(self._pace)
        words = asyncio.create_task(_last_words(process))
        broken = ""
        try:
            broken = await self._read(process)
            if broken:
                _kill(process)
            status = await process.wait()  # a helper in D state is waited for as long as it lives
        finally:
            words.cancel()
            self._process = None
            self._started.clear()
            _kill(process)
            # closes the pipes now: left to asyncio, that may come after the end of the loop, and is an error then
            process._transport.close()  # type: ignore[attr-defined]
        if status == EXIT_LOCKED:
            self._set_hangs("an earlier helper hangs in NVIDIA's driver")
            return "an earlier one is still there, and hangs in NVIDIA's driver"
        last = words.result() if words.done() and not words.cancelled() else ""
        return broken or last or f"exit status {status}"

    async def _read(self, process: asyncio.subprocess.Process) -> str:
        """Hears it until its output ends; returns what was wrong with it, if anything was."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._hear(messages.LINES.decode(line))
        except (ValueError, ProtocolError) as error:  # a line that is too long, or no message
            return f"it wrote what is no message: {error}"
        return ""

    def _hear(self, message: messages.Message) -> None:
        if isinstance(message, messages.DriverHangs):
            self._set_hangs(f"NVIDIA's driver has not returned from {message.call}" if message.for_s else None)
        if isinstance(message, messages.GpuList | messages.MemoryHeld | messages.GpuLoads):
            self._set_hangs(None)
        if isinstance(message, messages.ANSWERS) and message.id:
            waiting = self._waiting.get(message.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            if not isinstance(message, messages.GpuList):
                return
            message = replace(message, id=0)
        if isinstance(
            message,
            messages.GpuList | messages.XidSeen | messages.NameSeen | messages.Sources | messages.DriverHangs,
        ):
            self._on_news(message)

    def _set_hangs(self, why: str | None) -> None:
        if why is not None and self.hangs is None:
            effect = "jobs start without waiting for free GPUs until it answers; the host may need a reboot"
            log.error("gpu.silent", why=why, effect=effect)
        elif why is None and self.hangs is not None:
            log.info("gpu.answers_again")
        self.hangs = why

    def _fail_all(self, why: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HelperHangs(f"the helper for GPUs ended: {why}"))


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    words = ""
    while piece := await process.stderr.read(4096):
        words = (words + piece.decode(errors="replace"))[-MAX_WORDS:]
    return (words.strip().splitlines() or [""])[-1]
