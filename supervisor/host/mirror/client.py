"""The daemon's side of a job's mirror process, which is started when something is asked and ended when long idle.

The process starts with the daemon's rights and an empty environment, imports what it needs, becomes the job's user, and
only then learns the job's variables, before it opens anything.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from supervisor.host.checkpoint_store import other_identity
from supervisor.host.children import own_command, start_own_with_streams
from supervisor.host.mirror import messages
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.host.processes.credentials import cached_credentials, user_environment
from supervisor.protocol.wire.codec import ProtocolError, encode_record

IDLE_S = 300.0  # it holds some 30 MB; a job that saves more often keeps it
MAX_WORDS = 400  # characters of its last words

Wanted = TypeVar("Wanted", bound=messages.Answer)


class MirrorError(Exception):
    """The mirror did not do it; the text says why. The rest: as in messages.FailureAnswer."""

    def __init__(
        self,
        text: str,
        is_gone: bool = False,
        epoch_lost: bool = False,
        is_damaged: bool = False,
        other_run: messages.OtherRunSteps | None = None,
    ) -> None:
        super().__init__(text)
        self.is_gone = is_gone
        self.epoch_lost = epoch_lost
        self.is_damaged = is_damaged
        self.other_run = other_run


class RunFenced(Exception):
    """Another host has taken the run over."""

    def __init__(self, answer: messages.FencedAnswer) -> None:
        super().__init__(f"{answer.holder or 'another host'} has taken this run over (epoch {answer.epoch})")


class MirrorClient:
    """Asks one question after the other, and beside them whether another host has taken the run over.

    `environment`: the daemon's, for a process of `user` made that user's; `own`: variables of the job, which win.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        environment: Mapping[str, str],
        own: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._own = own or {}
        self._user = user
        self._process: asyncio.subprocess.Process | None = None
        self._starts = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[int, asyncio.Future[messages.Answer]] = {}
        self._last_id = 0
        self.progress: messages.CopyProgress | None = None
        """What was last heard of a copy that is under way."""
        self._words = ""
        self._is_lifted = False  # the limit of uploads
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the process; None if there is none at present."""
        return self._process.pid if self._process is not None else None

    def next_id(self) -> int:
        """A number that no question had yet."""
        self._last_id += 1
        return self._last_id

    def lift_limit(self, is_lifted: bool) -> None:
        """Lets uploads go as fast as they can, also the one that is under way; or no more."""
        if self._is_lifted is not is_lifted:
            self._is_lifted = is_lifted
            if self._process is not None:
                self._send_limit(self._process)

    def _send_limit(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.write(messages.LINES.encode(messages.LimitChange(self._is_lifted)))

    async def ask(self, question: messages.Question, kind: type[Wanted]) -> Wanted:
        """The answer. Raises MirrorError, RunFenced."""
        answer = await self._ask(question)
        if isinstance(answer, messages.FencedAnswer):
            raise RunFenced(answer)
        if isinstance(answer, messages.FailureAnswer):
            raise MirrorError(answer.error, answer.is_gone, answer.epoch_lost, answer.is_damaged, answer.other_run)
        if not isinstance(answer, kind):
            raise MirrorError(f"the mirror process answered with {type(answer).__name__}")
        return answer

    async def _ask(self, question: messages.Question) -> messages.Answer:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        answer: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = answer
        try:
            async with self._starts:  # the look at the epochs asks beside all others, and one process answers both
                process = self._process or await self._start()
            assert process.stdin is not None
            process.stdin.write(messages.LINES.encode(question))
            await process.stdin.drain()
            return await answer
        except OSError as error:
            raise MirrorError(f"cannot run the mirror process: {error.strerror or error}") from error
        except ProtocolError as error:
            raise MirrorError(str(error)) from error
        finally:
            self._waiting.pop(question.id, None)
            if not self._waiting:
                self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    async def _start(self) -> asyncio.subprocess.Process:
        identity = other_identity(self._user)
        who = cached_credentials(self._user) if identity is not None and self._user is not None else None
        settings = encode_record(replace(self._settings, identity=identity))
        command = own_command("supervisor.host.mirror.process", settings)
        variables = messages.encode_variables({**user_environment(who, self._environment), **self._own})
        process = await start_own_with_streams(command, {}, limit=messages.MAX_LINE_BYTES)
        assert process.stdin is not None
        process.stdin.write(variables)
        self._process, self._words = process, ""
        if self._is_lifted:
            self._send_limit(process)
        self._tasks = [asyncio.create_task(self._read(process)), asyncio.create_task(self._read_words(process))]
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = messages.LINES.decode(line)
                if isinstance(answer, messages.CopyProgress):
                    self.progress = answer
                    continue
                waiting = self._waiting.get(answer.id) if isinstance(answer, messages.ANSWERS) else None
                if waiting is not None and not waiting.done() and isinstance(answer, messages.ANSWERS):
                    waiting.set_result(answer)
        except (OSError, ValueError, ProtocolError):  # a line that is too long, or no message: it is broken
            pass
        finally:
            self._end(process)

    async def _read_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(4096):
            self._words = (self._words + piece.decode(errors="replace"))[-MAX_WORDS:]

    def _end(self, process: asyncio.subprocess.Process, why: str = "") -> None:
        if self._process is not process:
            return  # it was closed, and what is asked since is for the next one
        self._process = None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # closes the pipes now: left to asyncio, that may come after the end of the loop, and is an error then
        process._transport.close()  # type: ignore[attr-defined]
        last = self._words.strip().splitlines()[-1:] or ["it gave no reason"]
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(MirrorError(why or f"the mirror process ended: {last[0]}"))

    def close(self, why: str = "") -> None:
        """Ends the process; what it was doing is done again when it is asked for again.

        `why`: the error of what still waits for an answer; '': that the process ended.
        """
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._process is not None:
            self._end(self._process, why)
