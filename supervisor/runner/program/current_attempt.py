"""The live side of a program's attempts, one at a time: talks to the one that runs, and reports its end."""

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from signal import SIGKILL

from supervisor.core.failures.hang_detection import parse_section
from supervisor.core.failures.restart import describe_exit
from supervisor.core.gpus.incidents import RECENT_S
from supervisor.core.program import events
from supervisor.host.pipes.notify import NotifyMessage
from supervisor.host.pipes.stdin import Stdin
from supervisor.host.processes.process_status import Exit
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.attempt import LeftFolder, LiveAttempt
from supervisor.runner.attempt.death_evidence import Deceased, gather, is_unexplained
from supervisor.runner.attempt.last_output import last_error_lines
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.program.mailbox import Mailbox
from supervisor.runner.program.requests import WorkerRequests

NOTED_AT_ONCE = 50  # in the thread of the event loop, which takes a few milliseconds
NOTED_EVERY_S = 2.0  # what is younger when its worker crashes can escape; a look takes about a millisecond
EXPORT_LIMIT_S = 1800.0  # tracing and writing a large model take minutes; the client may leave before


class CurrentAttempt:
    """The process of one program and all that leads to it, while there is one.

    `mailbox` takes what happens to it, in the event loop's thread. `requests`: of clients, which its messages answer.
    """

    def __init__(
        self,
        program: ProgramServices,
        mailbox: Mailbox,
        requests: WorkerRequests,
        memory: MemoryHolder | None,
    ) -> None:
        self._config = program.config
        self._services = program.services
        self._mailbox = mailbox
        self._post = program.post
        self._observers = program.observers
        self._records = program.records
        self._requests = requests
        self._memory = memory
        self._tasks = program.tasks
        self._log = program.log
        self.attempt: LiveAttempt | None = None
        """The attempt that runs; None if none does."""
        self._unsent: list[messages.ToWorker] | None = None  # to one that is yet to be started
        self._last_pid: int | None = None  # of the attempt before
        self.left_folder = LeftFolder(program.services.ledger, program.tasks)
        """Of the one that has ended last."""
        self.visible_gpus: str | None = None
        """CUDA_VISIBLE_DEVICES of the attempt, if it is another than the program's own."""

    # --- for those who look -------------------------------------------------------------------------------------------

    @property
    def waits_for_gpus(self) -> bool:
        """Whether the process is not started yet because its GPUs may not be free."""
        return self._unsent is not None

    @property
    def last_pid(self) -> int | None:
        """The pid of the process, or of the last one if none runs."""
        return self.attempt.process.pid if self.attempt is not None else self._last_pid

    @property
    def stdin(self) -> Stdin | None:
        """The worker's standard input; None without a worker, and for a job, which can't be written to."""
        return self.attempt.io.stdin if self.attempt and self.attempt.io else None

    @property
    def was_ready(self) -> bool:
        """Whether the worker has notified that it is ready, to this daemon or an earlier one."""
        return self.attempt is not None and self.attempt.io is not None and self.attempt.io.was_ready

    @property
    def cgroup(self) -> Path | None:
        """The control group of the worker and of all that it starts, whatever becomes of them."""
        return self.attempt.cgroup.path if self.attempt is not None and self.attempt.cgroup is not None else None

    @property
    def has_to_note_descendants(self) -> bool:
        """Whether nothing but looking tells who is to end with the worker."""
        return self.attempt is not None and self.attempt.cgroup is None and self._config.ends_all_processes

    @property
    def can_outlive(self) -> str | None:
        """Which processes can outlive a program that all it starts is to end with; None: none, or it does not run."""
        if not self.has_to_note_descendants:
            return None
        detached = f"a process that left its session and environment less than {NOTED_EVERY_S:g} s before a crash"
        if self._config.job is not None:
            return f"{detached}, as there is no control group"
        return f"{detached}, or also lost its parent, as there is no control group"

    def note_descendants(self, most: int | None = None) -> bool:
        """Notes the processes that are to end with the worker, where no control group holds them, or `most` of them;
        whether those were all. Reads files for each."""
        attempt = self.attempt
        return attempt is None or not self.has_to_note_descendants or attempt.process.note_descendants(most)

    async def note_descendants_before(self, then: Callable[[], None]) -> None:
        """Does `then` once they are noted: where they are many a thread does that, as all programs would wait."""
        attempt = self.attempt
        if attempt is not None and self.has_to_note_descendants:
            with contextlib.suppress(RuntimeError):  # the host has no thread to spare
                note = attempt.process.note_descendants
                await self._services.blocking_calls.run_for_folder(Path(self._config.name), note)
        then()

    # --- it begins ----------------------------------------------------------------------------------------------------

    def expect_start(self) -> None:
        """An attempt is to be started once its GPUs are free: what is said to it until then is kept."""
        self._unsent = []

    def take_unsent(self) -> list[messages.ToWorker]:
        """No start is waited for any more; gives what was said meanwhile."""
        unsent, self._unsent = self._unsent or [], None
        return unsent

    def begin(self, attempt: LiveAttempt, visible_gpus: str | None = None) -> None:
        """Its process runs. `visible_gpus`: its CUDA_VISIBLE_DEVICES, if that is another than the program's own."""
        self.attempt, self.visible_gpus = attempt, visible_gpus
        if attempt.channel is not None:
            self._records.losses.begin_worker(attempt.channel.refusals)
        self._records.process.started(attempt.process.pid, attempt.began_at)

    # --- while it runs ------------------------------------------------------------------------------------------------

    def send(self, message: messages.ToWorker) -> None:
        """Sends the worker a message, or keeps it for one that is about to be started."""
        if self._unsent is not None:
            self._unsent.append(message)
        elif self.attempt is not None and self.attempt.channel is not None:
            self.attempt.channel.send(message)

    def send_signal(self, number: int) -> bool:
        """Sends a signal to the worker (not to its group); False if there is none."""
        return self.attempt is not None and self.attempt.process.send_signal(number, group=False)

    async def export(self) -> messages.Exported | None:
        """Has the worker export its model as it is now, and waits for that; None if there is no worker."""
        if self.attempt is None:
            return None
        return await self._requests.request_export(self.attempt.number, self.send, EXPORT_LIMIT_S)

    def on_message(self, message: messages.FromWorker) -> None:
        """The worker sent a message."""
        now, attempt = time.monotonic(), self.attempt
        self._observers.on_message(message, now)
        if attempt is not None:
            attempt.learn(message)
            attempt.memory.refresh(now, moved=isinstance(message, messages.Hello))
            if isinstance(message, messages.Hello):
                self._records.process.oom_counters = attempt.memory.cgroup_counters
        if self._memory is not None:
            self._memory.on_message(message)
        if (event := event_of(message, self._requests.flush_answers)) is not None:
            self._post(event)

    def on_malformed_message(self, number: int, error: str) -> None:
        """The worker wrote what is no message."""
        self._records.job_log.warning("worker.message_refused", attempt=number, error=error)

    def on_notification(self, number: int, notification: NotifyMessage) -> None:
        """A plain program sent a notification."""
        if notification.status is not None:
            self._records.process.status_text = notification.status or None
        if notification.ready:
            self._log.info("worker.ready", attempt=number)
            self._post(events.ReadyReported(number))

    # --- it ends ------------------------------------------------------------------------------------------------------

    def on_exit(self, number: int, exit_: Exit) -> None:
        """The process is gone: its unread messages come first, then the core learns of the exit."""
        attempt = self.attempt
        if attempt is None or attempt.number != number:
            raise RuntimeError(f"{self._config.name}: attempt {number} ended, but {attempt} is the one that runs")
        unread = attempt.close_and_read()
        for message in unread if not attempt.has_last_message else ():
            self.on_message(message)
        self._close_listener(attempt)
        self.left_folder.keep(attempt.folder)
        self.attempt, self._last_pid = None, attempt.process.pid
        self._requests.on_worker_gone(number)
        self._records.process.ended(exit_)
        self._log_exit(attempt, exit_)
        oom = attempt.memory.evidence() if exit_.code != 0 else None
        exited = events.WorkerExited(number, exit_.code, exit_.signal, oom if exit_.signal == SIGKILL else None)
        if is_unexplained(self._config, exit_) and not attempt.is_told_to_end:
            since = self._records.process.started_wall_at
            deceased = Deceased(attempt.process.pid, since, oom, attempt.cgroup)
            look = partial(gather, config=self._config, services=self._services, deceased=deceased)
            self._mailbox.post_exit(exited, look, partial(self._gpu_faults, attempt.process.pid, since or 0.0))
        else:
            self._post(exited)
        if self._config.ends_all_processes:
            self._tasks.start(attempt.kill_leftovers_until_gone(self._log))
        elif attempt.cgroup is not None:
            attempt.cgroup.remove_if_empty()

    def _gpu_faults(self, pid: int, began_wall_at: float) -> tuple[str, ...]:
        """What was found of the GPUs of a job's process that has died, as long as that was during its life."""
        gpus = self._services.gpus
        if gpus is None or self._config.job is None:
            return ()
        return gpus.recent_faults((pid,), max(began_wall_at, time.time() - RECENT_S), self._config.name)

    def _log_exit(self, attempt: LiveAttempt, exit_: Exit) -> None:
        is_done = attempt.reported_done and exit_.signal is None and exit_.code in (0, None)
        self._log.warning(
            "worker.exited",
            attempt=attempt.number,
            how=describe_exit(exit_.code, exit_.signal),
            expected=is_done if self._config.job is not None else exit_.code in self._config.exitcodes,
            ran_for_s=round(self._records.process.run_time_s or 0.0, 1),
            last_step=self._records.training.step,
        )

    def _close_listener(self, attempt: LiveAttempt) -> None:
        """The process of an event listener is gone, or let go: its last word counts."""
        if attempt.listener is not None:
            attempt.listener.close()
            self._services.listeners.remove_listener(self._config.group, self._config.name)

    async def last_error_lines(self) -> list[str]:
        """The last lines of standard error, if the last attempt wrote any."""
        return await last_error_lines(self._config, self._services, self._records.process.started_wall_at)

    def detach(self) -> None:
        """Leaves the worker running for the next daemon, and ends nothing; what is under way here ends."""
        self._tasks.cancel_all()
        if self._memory is not None:
            self._memory.detach()
        if self.attempt is not None:
            self.attempt.detach()
            self._close_listener(self.attempt)
            self.attempt = None


def event_of(message: messages.FromWorker, answered: Iterable[int] = ()) -> events.ReportedEvent | None:
    """The event for the core; None if nothing is to be decided.

    `answered`: ids of flushes that are over; one may end while the worker composes its status.
    """
    match message:
        case messages.Hello(attempt):
            return events.WorkerMet(attempt, message.reports_restore)
        case messages.Restoring(attempt):
            return events.RestoreBegun(attempt, message.checkpoint if message.from_memory else None)
        case messages.Restored(attempt, step):
            return events.TrainingRestored(attempt, step, message.checkpoint if message.from_memory else None)
        case messages.Progress(attempt, step):
            return events.StepsDone(attempt, step, message.step_s, parse_section(message.section), message.saving_s)
        case messages.Committed(attempt, step, checkpoint):
            wall_at, is_repeated = time.time() - (message.ago_s or 0.0), message.ago_s is not None
            return events.CheckpointCommitted(attempt, step, message.flushes, wall_at, checkpoint, is_repeated)
        case messages.SaveFailed():
            return events.CheckpointSaveFailed(message.attempt, message.error, message.flushes, message.step)
        case messages.Done(attempt):
            return events.DoneReported(attempt)
        case messages.Failed():
            return events.FailureReported(
                message.attempt,
                message.error,
                message.step,
                message.out_of_memory,
                message.go_back,
                message.errno,
                message.gang_attempt,
            )
        case messages.WorkerStatus():
            return events.WorkerIdentified(
                message.attempt,
                message.phase,
                step=message.step,
                restored=message.restored is not None,
                flush=max(set(message.flushes) - set(answered), default=None),
                last_flush=message.last_flush,
                then=message.then,
            )
        case _:
            return None
