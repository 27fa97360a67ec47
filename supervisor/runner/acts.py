"""Carries out the core's orders for one program, and hears and sees what comes back."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial, singledispatchmethod
from typing import Any

import structlog

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core import effects as order
from supervisor.core import events as fact
from supervisor.core.cadence import Reliability
from supervisor.core.restart import describe_exit
from supervisor.host import marks, tree
from supervisor.host.channel import Channel
from supervisor.host.health import Checks
from supervisor.host.oom_events import OomWatch
from supervisor.host.process import Exit, Process, SpawnError, adopt
from supervisor.protocol import layout, messages
from supervisor.protocol.launch import Control
from supervisor.runner.adopting import LeftWorker
from supervisor.runner.books import Books
from supervisor.runner.hearing import book, event_of
from supervisor.runner.launching import check_of, launch_of
from supervisor.runner.selecting import select
from supervisor.runner.services import Services
from supervisor.runner.stacks import keep_then_abort
from supervisor.runner.standby import Reserve, Spare
from supervisor.runner.starting import open_channel, start
from supervisor.runner.tally import Tally
from supervisor.runner.training import Training

ANSWERS_KEPT = 64  # more than there are people who wait for a checkpoint of one job at the same moment


@dataclass(slots=True)
class Attempt:
    """The live side of one attempt. `mark`: of all its processes."""

    number: int
    process: Process
    channel: Channel | None
    memory: OomWatch
    mark: str
    is_adopted: bool = False


class Acts:
    """The hands of one program. `post` takes every event, from the event loop's thread, in the order they happen."""

    def __init__(self, config: ProgramConfig, services: Services, post: Callable[[fact.Event], None]) -> None:
        self.training = Training()
        self.tally = Tally()
        self.books = Books(config.name, services.ledger)
        self.on_refused: Callable[[str, str], None] = lambda checkpoint, reason: None
        """Called with every checkpoint that is found damaged, and why."""
        self.answers: dict[int, messages.Committed | messages.SaveFailed] = {}
        """What became of the last flush requests, by their ids."""
        self.started_wall_at: float | None = None
        self.ended_wall_at: float | None = None
        self.last_exit: Exit | None = None
        self.spawn_error: SpawnError | None = None
        self.reliability = Reliability()
        """What was seen of this program's attempts so far."""
        self.reserve = Reserve(config, services, lambda: self.pid, lambda: self.reliability.between_failures_s)
        """The process that waits to become its next attempt."""
        self._config = config
        self._services = services
        self._post = post
        self._attempt: Attempt | None = None
        self._spoke_last = False  # it said `done` or `failed`
        self._tasks: set[asyncio.Task[object]] = set()
        self._log = structlog.get_logger().bind(program=config.name)

    @property
    def pid(self) -> int | None:
        """The worker's pid while there is one."""
        return self._attempt.process.pid if self._attempt else None

    def send_signal(self, number: int) -> bool:
        """Sends a signal to the worker (not to its group); False if there is none."""
        return self._attempt is not None and self._attempt.process.send(number, group=False)

    def take_over(self, found: LeftWorker) -> bool:
        """Supervises a process that an earlier daemon started; False if it is gone, or its pipes are."""
        number, channel, is_job = found.attempt, None, self._config.job is not None
        self._begin()
        try:
            if is_job:
                channel = self._open_channel(number, found=True)
        except SpawnError as error:
            self._log.warning("worker.out_of_reach", attempt=number, pid=found.pid, error=str(error))
            return False
        process = adopt(found.pid, found.start_time, is_job, partial(self._exited, number))
        if process is None:
            if channel is not None:
                channel.let_go()
            return False
        mark = found.mark or self._mark(number)
        self._attempt = Attempt(number, process, channel, OomWatch(found.pid), mark, is_adopted=True)
        self.started_wall_at, self.ended_wall_at = time.time() - found.age_s, None
        self._log.info("worker.adopted", attempt=number, pid=found.pid, runs_for_s=round(found.age_s, 1))
        return True

    def let_go(self) -> None:
        """Leaves the worker, as it is, to the next daemon."""
        self.reserve.let_go()
        if self._attempt is not None:
            self._attempt.process.let_go()
            if self._attempt.channel is not None:
                self._attempt.channel.let_go()
            self._attempt = None
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        self.training.begin()
        self._spoke_last = False
        self.spawn_error = self.last_exit = None

    # --- effects out --------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def perform(self, effect: order.Effect) -> None:
        """Carries out one order; what follows from it comes back as an event."""
        raise NotImplementedError(f"no act for {effect!r}")

    @perform.register
    def _(self, effect: order.Spawn) -> None:
        self._begin()
        spare = self.reserve.take(effect.attempt, effect.split)
        try:
            self._attempt = self._spawn(effect) if spare is None else self._promoted(effect, spare)
        except OSError as error:
            text = f"cannot capture the output of {self._config.name}: {error.strerror}; it is tried again"
            self._not_spawned(effect, SpawnError(text, permanent=False))
            return
        except SpawnError as error:
            self._not_spawned(effect, error)
            return
        self.started_wall_at, self.ended_wall_at = time.time(), None
        process = self._attempt.process
        self._services.ledger.attempt_started(
            self._config.name, effect.attempt, process.pid, process.start_time, self.started_wall_at, effect.split
        )
        self._log.info("worker.spawned", attempt=effect.attempt, pid=process.pid, was_standby=spare is not None)
        self._post(fact.SpawnSucceeded(effect.attempt))

    def _not_spawned(self, effect: order.Spawn, error: SpawnError) -> None:
        number = effect.attempt
        self.spawn_error, self.ended_wall_at = error, time.time()
        self._services.ledger.attempt_started(self._config.name, number, 0, 0, self.ended_wall_at, effect.split)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        self._post(fact.SpawnFailed(number, str(error), error.permanent))

    def _spawn(self, effect: order.Spawn) -> Attempt:
        """Raises SpawnError or OSError with everything taken back."""
        config, number, mark = self._config, effect.attempt, self._mark(effect.attempt)
        folder = layout.attempt_folder(self._services.runtime_dir, config.name, number)
        told = launch_of(config, Control(number, folder), self.reliability.between_failures_s, effect.split)
        with contextlib.ExitStack() as undo:
            channel = None
            if config.job is not None:
                channel = self._open_channel(number)
                undo.callback(channel.close)
            process = start(config, self._services, told, mark, partial(self._exited, number))
            undo.pop_all()
        return Attempt(number, process, channel, OomWatch(process.pid), mark)

    def _promoted(self, effect: order.Spawn, spare: Spare) -> Attempt:
        number = effect.attempt
        spare.process.handed_to(partial(self._exited, number), group_ends_with_it=True)
        spare.channel.belongs_to(self._heard, partial(self._misheard, number))
        return Attempt(number, spare.process, spare.channel, OomWatch(spare.process.pid), spare.mark)

    def _mark(self, number: int) -> str:
        return marks.mark(self._services.state_dir, self._config.name, number)

    def _open_channel(self, number: int, found: bool = False) -> Channel:
        folder = layout.attempt_folder(self._services.runtime_dir, self._config.name, number)
        return open_channel(self._config, folder, number, self._heard, partial(self._misheard, number), found)

    @perform.register
    def _(self, effect: order.SelectCheckpoint) -> None:
        if self._config.job is not None:
            self._background(self._select(effect, self._config.job))

    @perform.register
    def _(self, effect: order.SendGo) -> None:
        self._say(messages.Go(effect.attempt, effect.restore))

    @perform.register
    def _(self, effect: order.Identify) -> None:
        self._say(messages.Identify(effect.attempt))

    @perform.register
    def _(self, effect: order.RequestFlush) -> None:
        self._log.info("flush.asked", attempt=effect.attempt, reason=effect.reason, then=str(effect.then))
        self._say(messages.Flush(effect.attempt, effect.id, effect.reason, effect.then, effect.deadline_s))

    @perform.register
    def _(self, effect: order.Terminate) -> None:
        if self._config.stop_command is None:
            self._signal_stop(effect.attempt)
        else:
            self._background(self._stop_by_command(effect.attempt, self._config.stop_command))

    async def _stop_by_command(self, number: int, command: tuple[str, ...]) -> None:
        """Runs it; then the signal follows if the worker still lives."""
        self._log.info("worker.told_to_stop", attempt=number, command=command[0])
        check = check_of(self._config, "stop_command", command, self.pid, self._services.environment)
        why = await asyncio.get_running_loop().run_in_executor(self._services.stops, Checks().trouble, check)
        if why is not None:
            self._log.warning("stop_command.failed", attempt=number, why=why)
        self._signal_stop(number)

    def _signal_stop(self, number: int) -> None:
        if self._attempt is not None and self._attempt.number == number:
            self._log.info("worker.told_to_stop", attempt=number, signal=self._config.stopsignal.name)
            self._attempt.process.send(self._config.stopsignal, group=self._config.stopasgroup)

    @perform.register
    def _(self, effect: order.Abort) -> None:
        self._log.error("worker.aborted", attempt=effect.attempt, last_step=self.training.step)
        if self._attempt is not None:
            self._background(self._keep_stacks(self._attempt.process, effect))

    @perform.register
    def _(self, effect: order.Kill) -> None:
        self._log.warning("worker.killed", attempt=effect.attempt)
        if self._attempt is not None:
            self._attempt.process.kill_tree()

    @perform.register
    def _(self, effect: order.RememberWanted) -> None:
        self._services.ledger.remember_wanted(self._config.name, effect.wanted)

    @perform.register
    def _(self, effect: order.RememberSilences) -> None:
        self._services.ledger.remember_silences(self._config.name, dict(effect.longest))

    @perform.register
    def _(self, effect: order.RecordEnd) -> None:
        exit_ = self.last_exit or Exit(None, None)
        if self.training.step is not None and self.started_wall_at is not None:
            ran_s = (self.ended_wall_at or time.time()) - self.started_wall_at
            self.reliability = self.reliability.after(ran_s, effect.cause)
        self._services.ledger.attempt_ended(
            self._config.name,
            effect.attempt,
            effect.cause,
            effect.text,
            exit_.code,
            exit_.signal,
            self.training.step,
            self.ended_wall_at or time.time(),
        )

    # --- what comes back ----------------------------------------------------------------------------------------------

    async def _select(self, order_: order.SelectCheckpoint, job: JobConfig) -> None:
        services, name = self._services, self._config.name
        found = await select(name, order_, job, services.checkpoints, services.ledger, self._refused, self._log)
        self._post(found)

    def _refused(self, checkpoint: str, reason: str) -> None:
        self.tally.refused += 1
        self.on_refused(checkpoint, reason)

    async def _keep_stacks(self, process: Process, effect: order.Abort) -> None:
        services, name = self._services, self._config.name
        pipes = layout.attempt_folder(services.runtime_dir, name, effect.attempt)
        why = f"{name}, attempt {effect.attempt}, pid {process.pid}, last step {self.training.step}"
        folders = pipes, services.state_dir / "stacks" / name
        await keep_then_abort(process, effect.attempt, folders, effect.patience_s, why, self._post, self._log)

    def _exited(self, number: int, exit_: Exit) -> None:
        """The process is gone: hear its last words, then tell the core."""
        attempt = self._attempt
        if attempt is None or attempt.number != number:
            raise RuntimeError(f"{self._config.name}: attempt {number} ended, but {attempt} is the one that runs")
        if attempt.channel is not None:
            words = attempt.channel.last_words() if attempt.is_adopted else []
            attempt.channel.close()
            for message in words if not self._spoke_last else ():
                self._heard(message)
        self._attempt = None
        now = time.time()
        self.last_exit, self.ended_wall_at = exit_, now
        self._log.warning(
            "worker.exited",
            attempt=number,
            how=describe_exit(exit_.code, exit_.signal),
            ran_for_s=round(now - (self.started_wall_at or now), 1),
            last_step=self.training.step,
        )
        oom = attempt.memory.evidence() if exit_.signal == signal.SIGKILL else None
        self._post(fact.WorkerExited(number, exit_.code, exit_.signal, oom))
        if self._config.job is not None or self._config.killasgroup:
            self._background(asyncio.to_thread(self._sweep, attempt))

    def _sweep(self, attempt: Attempt) -> None:
        """In a thread: kills what the worker left behind, in its session and out of it."""
        attempt.process.kill_stragglers()
        tree.kill(marks.of_attempt(attempt.mark))

    def _say(self, message: messages.ToWorker) -> None:
        if self._attempt is not None and self._attempt.channel is not None:
            self._attempt.channel.send(message)

    def _misheard(self, attempt: int, error: str) -> None:
        self._log.warning("worker.misspoke", attempt=attempt, error=error)

    def _heard(self, message: messages.FromWorker) -> None:
        self.training.note(message)
        self._spoke_last = self._spoke_last or isinstance(message, messages.Done | messages.Failed)
        self.tally.heard(message, time.monotonic())
        self.books.heard(message, time.monotonic())
        if self._attempt is not None:
            self._attempt.memory.lives(time.monotonic(), moved=isinstance(message, messages.Hello))
        if isinstance(message, messages.Committed | messages.SaveFailed):
            self._answer(message)
        if isinstance(message, messages.Committed) and self._config.job is not None:
            now = asyncio.get_running_loop().time()
            self._services.saves.note(self._config.name, self._config.job.checkpoint_dir, message.save_s, now)
        book(message, self._config.name, self._services.ledger, self._log)
        event = event_of(message, self.answers)
        if event is not None:
            self._post(event)

    def _answer(self, message: messages.Committed | messages.SaveFailed) -> None:
        for flush_id in message.flushes:
            self.answers[flush_id] = message
        while len(self.answers) > ANSWERS_KEPT:
            del self.answers[min(self.answers)]

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal.failed", error=repr(error), exc_info=error)
