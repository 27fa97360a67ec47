"""The process that proves a job, as the daemon starts it, hears it and ends it.

It starts with an empty environment, imports what it needs, which the user may not be able to read, and becomes the
job's user for good before it does anything else. Only then does it learn what to prove, from its standard input, so
that nothing of a job's environment is in an argument or a file. It ends, with all that it started, when its standard
input does: the daemon is gone then. What it prints comes from a process of the user's: lines of JSON with limits.

After its end, a second process of that user ends what names the scratch folder in its environment, and removes it.
"""

import asyncio
import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog

from supervisor.host.children import Identity, own_command, start_own_with_streams
from supervisor.host.processes import tree
from supervisor.host.processes.process_status import read_start_time
from supervisor.host.resources.cgroup import Cgroup
from supervisor.protocol.proof import ProofReport
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, fit_record, parse_object
from supervisor.protocol.wire.limits import Count, Range, Text

MAX_LINE_BYTES = 1 << 20  # a report within its limits takes a tenth
MAX_OUTPUT_BYTES = 16 << 20  # of a proof: a line of progress a second for a day
LINES_AT_ONCE = 50  # in half a millisecond
MAX_LAST_WORDS = 2000  # characters of its standard error, for the reason
ENDS_WITHIN_S = 10.0  # after it has closed its output
REAPED_WITHIN_S = 1.0  # after SIGKILL
REMOVED_WITHIN_S = 30.0  # the scratch folder, which holds a few checkpoints

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """What a process has to prove.

    `program`: the job's configuration, which the prover knows; `environment`: complete, of the job's command.
    `identity`: whom the process becomes, None keeps the daemon's. `folders`: the first one in which the user can make
    the scratch folder `name` has it. The rest: what the caller of `prove` asked for, None where nothing.
    """

    program: object
    environment: Mapping[str, str]
    identity: Identity | None
    folders: tuple[Path, ...]
    name: str
    steps: int | None = None
    epochs: float | None = None
    kills: int | None = None

    @property
    def scratch(self) -> "ScratchFolder":
        """What is to be removed after it."""
        return ScratchFolder(self.folders, self.name, self.identity)


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """Where the scratch folder of a proof is, in one of `folders`, and whose."""

    folders: tuple[Path, ...]
    name: str
    identity: Identity | None = None


@dataclass(frozen=True, slots=True)
class ProofProgress:
    """How far a proof is. `doing`: in words; `done`: the share of all of it; `step`, `of`: of the present run.

    None: not known."""

    doing: Annotated[str, Text(200)]
    done: Annotated[float, Range(0, 1)] | None = None
    step: Count | None = None
    of: Count | None = None


@dataclass(frozen=True, slots=True)
class Proven:
    """What a proof came to. `text`: the report for people."""

    report: ProofReport
    text: Annotated[str, Text(8000)] = ""


class ProofFailed(Exception):
    """There is no report; the text says why."""


def encode_output(said: ProofProgress | Proven) -> bytes:
    """One line of the process's standard output."""
    name = "progress" if isinstance(said, ProofProgress) else "proven"
    return f'{{"{name}":{encode_record(fit_record(said))}}}\n'.encode()


def parse_output(line: bytes) -> ProofProgress | Proven:
    """What the process said in a line. Raises ProtocolError."""
    body = parse_object(line)
    if isinstance(content := body.get("progress"), dict):
        return decode_record(content, ProofProgress, "progress")
    if isinstance(content := body.get("proven"), dict):
        return decode_record(content, Proven, "proven")
    raise ProtocolError("neither progress nor a report")


class ProofProcess:
    """One proof. `command`: what is started. `cgroup`: the group that its processes are put in."""

    def __init__(self, command: tuple[str, ...], plan: ProofPlan, cgroup: Cgroup | None = None) -> None:
        self._command = command
        self._plan = plan
        self._cgroup = cgroup
        self._process: asyncio.subprocess.Process | None = None
        self._start_time = 0
        self._last_words = ""
        self.is_removed = True
        """Whether nothing is left of its folder; the next daemon tries again to remove what is."""

    async def run(self, on_progress: Callable[[ProofProgress], None], limit_s: float) -> Proven:
        """Proves the job. Raises ProofFailed, also after `limit_s`. When it returns, raises or is cancelled, nothing
        of the proof is left."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._run(on_progress)
        except TimeoutError:
            raise ProofFailed(f"it took longer than {limit_s:g} s; prove fewer steps (--steps)") from None
        except OSError as error:
            raise ProofFailed(f"cannot start its process: {error.strerror or error}") from error
        finally:
            await _uncancelled(self._end())

    async def _run(self, on_progress: Callable[[ProofProgress], None]) -> Proven:
        process = self._process = await start_own_with_streams(self._command, {}, limit=MAX_LINE_BYTES)
        self._start_time = read_start_time(process.pid) or 0
        if self._cgroup is not None:
            self._cgroup.move_process(process.pid)  # it starts nothing before it has read the plan
        assert process.stdin is not None
        listening = asyncio.create_task(self._read_last_words(process))
        try:
            with contextlib.suppress(ConnectionError):  # it has ended; its last words say why
                process.stdin.write(pickle.dumps(self._plan))
                await process.stdin.drain()
            return await self._read_report(process, on_progress)
        finally:
            listening.cancel()

    async def _read_report(
        self, process: asyncio.subprocess.Process, on_progress: Callable[[ProofProgress], None]
    ) -> Proven:
        assert process.stdout is not None
        size = count = 0
        try:
            while line := await process.stdout.readline():
                size, count = size + len(line), count + 1
                if count % LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)  # what is buffered already is read without a turn for others
                if size > MAX_OUTPUT_BYTES:
                    raise ProofFailed(f"its process printed more than {MAX_OUTPUT_BYTES} bytes")
                said = parse_output(line)
                if isinstance(said, Proven):
                    return said
                on_progress(said)
        except (ValueError, ProtocolError) as error:  # the first: a line that is too long
            raise ProofFailed(f"its process printed what is no report: {str(error)[:200]}") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_WITHIN_S):
                await process.wait()
        last = self._last_words.strip().splitlines()[-1:] or ["it gave no reason"]
        raise ProofFailed(f"its process ended without a report: {last[0]}")

    async def _read_last_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        size = 0
        while size <= MAX_OUTPUT_BYTES and (piece := await process.stderr.read(4096)):
            size += len(piece)
            self._last_words = (self._last_words + piece.decode(errors="replace"))[-MAX_LAST_WORDS:]

    async def _end(self) -> None:
        """Ends whatever is left of it, and removes its folder."""
        process = self._process
        if process is None:
            if self._cgroup is not None:
                self._cgroup.remove_if_empty()
            return
        await asyncio.to_thread(self._kill, process.pid)
        with contextlib.suppress(TimeoutError):  # asyncio waits for its pipes too, which may be full
            async with asyncio.timeout(REAPED_WITHIN_S):
                await process.wait()
        # closes the pipes now: left to asyncio, that may come after the end of the loop, and is an error then
        process._transport.close()  # type: ignore[attr-defined]
        self.is_removed = await remove_scratch(self._plan.scratch)

    def _kill(self, pid: int) -> None:
        victims = tree.stop_tree(pid, self._start_time)
        if read_start_time(pid) == self._start_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        tree.kill_all(victims)
        tree.kill_session(pid, self._start_time)
        if self._cgroup is not None:
            self._cgroup.remove()


async def remove_scratch(scratch: ScratchFolder) -> bool:
    """Ends what is left of a proof, by its folder in their environment, and removes the folder, as its user.

    Whether nothing is left.
    """
    command = own_command("supervisor.host.proof_cleanup", encode_record(scratch))
    try:
        process = await start_own_with_streams(command, {}, stderr=asyncio.subprocess.DEVNULL)
    except OSError as error:
        log.warning("proof.not_removed", folder=scratch.name, reason=error.strerror)
        return False
    try:
        async with asyncio.timeout(REMOVED_WITHIN_S):
            status = await process.wait()
    except TimeoutError:
        status = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process._transport.close()  # type: ignore[attr-defined]
    if status != 0:
        places = [str(folder / scratch.name) for folder in scratch.folders]
        log.warning("proof.not_removed", folders=places, status=status, remedy="the next daemon tries again")
    return status == 0


async def _uncancelled(work: Coroutine[None, None, None]) -> None:
    """Awaits work to its end, also if the task is cancelled meanwhile, which is raised then."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
    task.result()
    if is_cancelled:
        raise asyncio.CancelledError
