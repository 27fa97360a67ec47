"""Carries out the core's orders for one program, and hears and sees what comes back."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod
from pathlib import Path
from typing import Any

import structlog

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core import effects as order
from supervisor.core import events as fact
from supervisor.core.cadence import Reliability
from supervisor.core.restart import describe_exit
from supervisor.host import marks, tree
from supervisor.host.channel import Channel
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.health import Checks
from supervisor.host.hooks import Hooks
from supervisor.host.ledger import Ledger
from supervisor.host.listener_pipes import ListenerPipes
from supervisor.host.logs import LogPump, Tee
from supervisor.host.notify import Said
from supervisor.host.oom_events import OomWatch
from supervisor.host.process import Exit, Process, SpawnError, adopt, spawn
from supervisor.host.stdin import Stdin
from supervisor.protocol import layout, messages
from supervisor.runner.adopting import LeftWorker
from supervisor.runner.books import Books
from supervisor.runner.exports import Exports
from supervisor.runner.hearing import book, event_of
from supervisor.runner.launching import check_of, owner_of, spawn_request
from supervisor.runner.listening import Listening
from supervisor.runner.saves import Saves
from supervisor.runner.selecting import select
from supervisor.runner.stacks import keep_then_abort
from supervisor.runner.tally import Tally
from supervisor.runner.training import Training
from supervisor.runner.ways import Ways

STOPS_AT_ONCE = 64  # threads, made when needed: all programs are stopped side by side
EXPORT_PATIENCE_S = 1800.0  # tracing and writing a large model take minutes; who asked may leave before
ANSWERS_KEPT = 64  # more than there are people who wait for a checkpoint of one job at the same moment


@dataclass(frozen=True, slots=True)
class Services:
    """What all runners share."""

    ledger: Ledger
    logs: LogPump
    checkpoints: CheckpointStore
    state_dir: Path
    runtime_dir: Path
    environment: Mapping[str, str]
    server_url: str | None
    saves: Saves = field(default_factory=Saves)
    notice_grace: float = 60.0
    hooks: Hooks = field(default_factory=Hooks)
    hook_commands: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    listening: Listening = field(default_factory=Listening)
    stops: Executor = field(default_factory=lambda: ThreadPoolExecutor(STOPS_AT_ONCE, "stop_command"))


@dataclass(slots=True)
class Attempt:
    """The live side of one attempt."""

    number: int
    process: Process
    channel: Channel | None
    memory: OomWatch
    is_adopted: bool = False
    listener: ListenerPipes | None = None
    ways: Ways | None = None  # of a plain program


class Acts:
    """The hands of one program. `post` takes every event, from the event loop's thread, in the order they happen."""

    def __init__(self, config: ProgramConfig, services: Services, post: Callable[[fact.Event], None]) -> None:
        self.training = Training()
        self.tally = Tally()
        self.books = Books(config.name, services.ledger)
        self.on_refused: Callable[[str, str], None] = lambda checkpoint, reason: None
        """Called with every checkpoint that is found damaged, and why."""
        self.exports = Exports()
        self.answers: dict[int, messages.Committed | messages.SaveFailed] = {}
        """What became of the last flush requests, by their ids."""
        self.says: str | None = None
        """What the worker says that it is at (STATUS= of a notification)."""
        self.started_wall_at: float | None = None
        self.ended_wall_at: float | None = None
        self.last_exit: Exit | None = None
        self.spawn_error: SpawnError | None = None
        self.reliability = Reliability()
        """What was seen of this program's attempts so far."""
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

    async def export(self) -> messages.Exported | None:
        """Has the worker export its model as it is now, and waits for that; None if there is no worker."""
        if self._attempt is None:
            return None
        return await self.exports.ask(self._attempt.number, self._say, EXPORT_PATIENCE_S)

    @property
    def stdin(self) -> Stdin | None:
        """The worker's standard input; None where there is no worker, or none that can be written to (a job's)."""
        return self._attempt.ways.stdin if self._attempt and self._attempt.ways else None

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
        ways = None if is_job else self._ways(number)
        if ways is not None:
            ways.take_over(found.pid)
        self._attempt = Attempt(number, process, channel, OomWatch(found.pid), is_adopted=True, ways=ways)
        self.started_wall_at, self.ended_wall_at = time.time() - found.age_s, None
        self._log.info("worker.adopted", attempt=number, pid=found.pid, runs_for_s=round(found.age_s, 1))
        return True

    def let_go(self) -> None:
        """Leaves the worker, as it is, to the next daemon."""
        if self._attempt is not None:
            self._attempt.process.let_go()
            self._hang_up(self._attempt)
            if self._attempt.channel is not None:
                self._attempt.channel.let_go()
            if self._attempt.ways is not None:
                self._attempt.ways.let_go()
            self._attempt = None
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        self.training.begin()
        self._spoke_last = False
        self.spawn_error = self.last_exit = self.says = None

    # --- effects out --------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def perform(self, effect: order.Effect) -> None:
        """Carries out one order; what follows from it comes back as an event."""
        raise NotImplementedError(f"no act for {effect!r}")

    @perform.register
    def _(self, effect: order.Spawn) -> None:
        self._begin()
        try:
            self._attempt = self._spawn(effect.attempt, effect.split)
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
        self._log.info("worker.spawned", attempt=effect.attempt, pid=process.pid)
        self._post(fact.SpawnSucceeded(effect.attempt))

    def _not_spawned(self, effect: order.Spawn, error: SpawnError) -> None:
        number = effect.attempt
        self.spawn_error, self.ended_wall_at = error, time.time()
        self._services.ledger.attempt_started(self._config.name, number, 0, 0, self.ended_wall_at, effect.split)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        self._post(fact.SpawnFailed(number, str(error), error.permanent))

    def _spawn(self, number: int, split: int) -> Attempt:
        """Pipes, log capture, process. Raises SpawnError or OSError with everything taken back."""
        config, logs = self._config, self._services.logs
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            channel, ways, listener, stdin = None, None, None, None
            if config.job is not None:
                channel = self._open_channel(number)
                undo.callback(channel.close)
            elif config.listener is None:
                ways = self._ways(number)
                stdin = ways.open()
                handed_over.callback(os.close, stdin)
                undo.callback(ways.end)
            tee = Tee(config.name, number, "stdout", config.stdout_syslog, config.stdout_journal)
            limits = config.stdout_logfile_maxbytes, config.stdout_logfile_backups
            stdout = logs.capture(config.stdout_logfile, *limits, tee)
            if config.listener is not None:
                listener = self._listener_pipes(stdout)
                undo.callback(listener.close)
                handed_over.callback(listener.handed_over)
                stdin, stdout = listener.stdin, listener.stdout
            else:
                handed_over.callback(os.close, stdout)
            stderr = stdout
            if not config.redirect_stderr:
                tee = Tee(config.name, number, "stderr", config.stderr_syslog, config.stderr_journal)
                limits = config.stderr_logfile_maxbytes, config.stderr_logfile_backups
                stderr = logs.capture(config.stderr_logfile, *limits, tee)
                handed_over.callback(os.close, stderr)
            services = self._services
            request = spawn_request(
                config,
                number,
                between_failures_s=self.reliability.between_failures_s,
                split=split,
                environment=services.environment,
                mark=marks.mark(services.state_dir, config.name, number),
                runtime_dir=services.runtime_dir,
                server_url=services.server_url,
                stdout=stdout,
                stderr=stderr,
                stdin=stdin,
                notify=ways.notify_path if ways is not None else None,
            )
            process = spawn(request, partial(self._exited, number))
            undo.pop_all()
        if ways is not None:
            ways.started(process.pid)
        if listener is not None:
            services.listening.opened(config.group, config.name, listener.write)
        return Attempt(number, process, channel, OomWatch(process.pid), listener=listener, ways=ways)

    def _folder(self, number: int) -> Path:
        """The attempt's own, for its pipes."""
        return layout.attempt_folder(self._services.runtime_dir, self._config.name, number)

    def _ways(self, number: int) -> Ways:
        mark = marks.mark(self._services.state_dir, self._config.name, number)
        return Ways(self._folder(number), self._config, mark, partial(self._told, number))

    @property
    def was_ready(self) -> bool:
        """Whether the worker has said that it is ready (notify), also to an earlier daemon."""
        return self._attempt is not None and self._attempt.ways is not None and self._attempt.ways.was_ready

    def _told(self, number: int, said: Said) -> None:
        if said.status is not None:
            self.says = said.status or None
        if said.ready:
            self._log.info("worker.ready", attempt=number)
            self._post(fact.ReadySaid(number))

    def _listener_pipes(self, copy: int) -> ListenerPipes:
        listening, pool, name = self._services.listening, self._config.group, self._config.name
        try:
            return ListenerPipes(partial(listening.heard, pool, name), partial(listening.deaf, pool, name), copy)
        except OSError:
            os.close(copy)
            raise

    def _hang_up(self, attempt: Attempt) -> None:
        """A listener's process is gone, or let go: its last word counts."""
        if attempt.listener is not None:
            attempt.listener.close()
            self._services.listening.closed(self._config.group, self._config.name)

    def _open_channel(self, number: int, found: bool = False) -> Channel:
        folder = self._folder(number)
        owner = owner_of(self._config)
        try:
            return Channel(folder, number, owner, self._heard, partial(self._misheard, number), found)
        except OSError as error:
            raise SpawnError(
                f"cannot {'open' if found else 'create'} the control pipes in {folder}: {error.strerror}; "
                f"make runtime_dir writable, or point it elsewhere",
                permanent=False,
            ) from error

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
        if attempt.ways is not None:
            attempt.ways.end()
        if attempt.channel is not None:
            words = attempt.channel.last_words() if attempt.is_adopted else []
            attempt.channel.close()
            for message in words if not self._spoke_last else ():
                self._heard(message)
        self._hang_up(attempt)
        self._attempt = None
        self.exports.over(number)
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
        tree.kill(marks.of_attempt(marks.mark(self._services.state_dir, self._config.name, attempt.number)))

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
        if isinstance(message, messages.Exported):
            self.exports.heard(message)
        if isinstance(message, messages.Committed | messages.SaveFailed):
            self._answer(message)
        if isinstance(message, messages.Committed) and self._config.job is not None:
            now = asyncio.get_running_loop().time()
            saves, job = self._services.saves, self._config.job
            saves.note(self._config.name, message.attempt, job.checkpoint_dir, message.save_s, now)
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
