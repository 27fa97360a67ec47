"""A job on a host, from the core to its folder and its mirror, in one process: for histories of several such hosts.

The core, the selection, the mirror's hold and what its process does are real, and so are folders, checkpoints and store
(in a folder). The worker, the ledger and the clock are models; what would be asked of another process or thread is done
at once.
"""

import shutil
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from supervisor.core.job import Job
from supervisor.core.program import effects, events
from supervisor.core.program.facts import ALIVE, State
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.mirror import messages
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.directory import committed_checkpoints
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.wire import messages as worker_messages
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Then
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.launching import policy_of
from supervisor.runner.attempt.services import ProgramServices, Services
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror
from supervisor.runner.program.current_attempt import event_of
from supervisor.runner.program.persisted_state import PersistedStateStore
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from tests.runner.checkpoints.world import DirectStore, ModelLedger, ModelLog, ModelProcess, World, step_of


class Host:
    """One host. `reported`: the newest checkpoint that was reported here, unless a start from an older one has said
    why; `newest_on`: the file system of the folder with it; `given_up`: what an operator or a rollback has;
    `relies_on_hold`: the start that is being selected takes the run for this host's own, and has not looked into the
    store; `disk`: where its checkpoints are."""

    place: GangPlace | None = None
    """In a gang."""
    is_chief = True

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.disks = 0
        self.lose_all()

    def lose_all(self) -> None:
        """Another machine takes its place."""
        self.disks += 1
        self.disk = self.world.folder / f"{self.name}{self.disks}"
        self.home, self.mirror_url, self.is_mounted = "j", self.world.store, True
        self.ledger = ModelLedger()
        self.reported: CheckpointName | None = None
        self.newest_on: str | None = None
        self.given_up: set[CheckpointName | None] = set()
        self.has_go = self.trains = self.is_lowered = self.relies_on_hold = False
        self.begin_daemon()

    @property
    def folder(self) -> Path:
        """The job's checkpoint_dir."""
        return self.disk / self.home

    def mount_or_unmount(self) -> None:
        """While nothing runs here."""
        hidden, self.is_mounted = self.disk.with_name(f"{self.disk.name}-hidden"), not self.is_mounted
        if self.is_mounted:
            shutil.rmtree(self.disk, ignore_errors=True)
            hidden.rename(self.disk)
        else:
            self.disk.mkdir(exist_ok=True)
            self.disk.rename(hidden)

    # --- the daemon ---------------------------------------------------------------------------------------------------

    def begin_daemon(self) -> None:
        config = self.world.config
        assert config.job is not None
        config = replace(config, job=replace(config.job, checkpoint_dir=self.folder, mirror=self.mirror_url))
        log = cast(Any, ModelLog(self.world, self.name))
        ledger = cast(Ledger, self.ledger)
        self.services = Services(
            ledger,
            cast(Any, None),
            DirectStore(lambda: None if self.is_mounted else "the file system below"),
            self.disk,
            self.disk,
            {},
            None,
            gang=self.place,
            is_chief=self.is_chief,
        )
        records = ProgramRecords(config, ledger, self.services.save_durations, log)
        self.job = Job(policy_of(config, 60.0, self.place is not None))
        self.queue = deque[events.Event]()
        self.is_handling = False
        self.tasks = BackgroundTasks(log)
        program = ProgramServices(config, self.services, records, ProgramObserver(), self.post, self.tasks, log)
        self.is_behind_told = False
        self.process = ModelProcess(self.world, self.mirror_url, self.folder)
        self.world.loop.run_until_complete(self._build(program, records))

    async def _build(self, program: ProgramServices, records: ProgramRecords) -> None:
        config, job = program.config, program.config.job
        assert job is not None
        log = program.log
        self.mirror: JobMirror | None = None
        node_mirror = None
        if self.is_chief:
            self.mirror = JobMirror(config, self.services, self.post, lambda: None, log, self.on_mirrored)
            client = self.mirror._client
        else:
            assert self.place is not None
            node_mirror = NodeMirror(config, {}, self.place, self.post)
            client = node_mirror._client
        client._ask = self._ask  # type: ignore[method-assign] - in place of the process
        memory = MemoryHolder(program, job, lambda: None)
        self.selector = CheckpointSelector(program, job, memory, self.mirror, node_mirror)
        self.persisted = PersistedStateStore(config, self.services, self.job, records, self.mirror, lambda: True)
        await self.persisted.restore(self.ledger.last_attempt)

    def end_daemon(self) -> None:
        """It is killed."""
        self.tasks.cancel_all()
        if self.mirror is not None:
            self.mirror.close()

    def post(self, event: events.Event) -> None:
        self.queue.append(event)
        if self.is_handling:
            return
        self.is_handling = True
        while self.queue:
            self._handle(self.queue.popleft())
        self.is_handling = False

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.CheckpointMirrored) and step_of(parse_name(event.name)) >= step_of(self.reported):
            self.reported = parse_name(event.name)
        if isinstance(event, events.RunTakenOver):
            self.given_up.clear()
        self.note(f"{event}")
        before, now = self.job.state, self.world.loop.time()
        newest = self.job.facts.account.newest
        self.newest_on = newest.mount if newest is not None and newest.directory == str(self.folder) else None
        decided = self.job.handle(event, now)
        self._follow(event, before, decided)

    def expire(self) -> None:
        """Its deadline comes."""
        due_at = self.job.deadline()
        if due_at is not None:
            self.world.loop.now = max(self.world.loop.now, due_at)
            before = self.job.state
            self._follow("the deadline", before, self.job.expire(self.world.loop.now))

    def _follow(self, event: events.Event | str, before: State, decided: list[effects.Effect]) -> None:
        now, facts = self.world.loop.time(), self.job.facts
        self.persisted.on_decision(event, before, decided, facts)
        for effect in decided:
            self.note(f"   {effect}")
            self.world.claim(not isinstance(effect, effects.ReportBreach), effect)
            if self.mirror is not None:
                self.mirror.on_effect(effect, now)
            self._execute(effect)
        self.persisted.on_settled(before, facts, now)
        if self.mirror is not None:
            self.mirror.on_settled(before, facts, now)

    def _execute(self, effect: effects.Effect) -> None:
        number = self.job.facts.attempt
        match effect:
            case effects.Spawn():
                self.ledger.last_attempt = effect.attempt
                self.has_go = self.trains = False
                self.post(events.SpawnSucceeded(effect.attempt))
            case effects.SelectCheckpoint() | effects.LookAtStorage() | effects.QuarantineCheckpoints():
                if isinstance(effect, effects.SelectCheckpoint):
                    self.is_behind_told = self.world.is_away
                    self.relies_on_hold = self.mirror is None or self.mirror.status.epoch is not None
                self.tasks.start(self.selector.execute(effect))
            case effects.WithdrawOrder():
                self.selector.withdraw_order()
            case effects.SendGo():
                if self.mirror is not None:
                    self.mirror.on_selected(effect)
                self._on_go(effect)
            case effects.Kill() | effects.Terminate() | effects.Abort():
                self.end_worker(events.WorkerExited(number, signal=9))
            case effects.RequestFlush():
                if self.trains:
                    self.commit(self.step + 1, (effect.id,))
                if effect.then is Then.STOP:
                    self.end_worker(events.WorkerExited(number, WorkerExit.STOPPED))

    # --- the claims ---------------------------------------------------------------------------------------------------

    def _on_go(self, go: effects.SendGo) -> None:
        begun = None if go.restore is None else parse_name(Path(go.restore).name)
        older = self.job.facts.current.older
        is_behind = step_of(begun) < step_of(self.reported)
        self.note(f"BEGINS at {begun}; reported {self.reported}, told {self.world.told}, older {older}")
        self.world.claim(is_behind == (older is not None), "begins at", begun, "reported", self.reported, older)
        begin_at = self.job.facts.begin_at
        disk = None if self.newest_on is None or self.newest_on == self.job.facts.mount else self.newest_on
        self.world.claim(self.is_mounted or disk is None or begin_at is not None, "begins without", disk)
        is_explained = older is not None or begin_at is not None
        is_explained = is_explained or (self.is_lowered and self.lowered_below in (None, self.world.told))
        is_unaware = self.relies_on_hold and self.world.holder != self.name  # it learns of that soon
        if begin_at is not None or (older is not None and older.because is OlderBecause.ROLLED_BACK):
            known = {self.reported, self.world.told if self.is_chief and not self.world.is_away else None}
            self.given_up = {name for name in self.given_up | known if step_of(name) > step_of(begun)}
        self.world.claim(begun not in self.given_up, "begins at", begun, "which was given up")
        if not (self.is_behind_told or self.world.is_away or is_explained or is_unaware):
            self.world.claim(step_of(begun) >= step_of(self.world.told), "begins at", begun, "told", self.world.told)
        self.world.is_away, self.world.leaves_at_go = self.world.is_away or self.world.leaves_at_go, False
        self.has_go, self.begun, self.step = True, begun, max(0, step_of(begun))
        if is_explained and not self.is_lowered:  # from now on, until the store knows of it
            self.lowered_below = self.world.told if begin_at is None else None
        self.is_lowered, self.saves_in, self.has_committed = is_explained, self.folder, False

    def _on_answer(self, question: messages.Question, answer: messages.Answer) -> None:
        """What the store has done."""
        match question, answer:
            case messages.FetchRequest(only_look=False), messages.FetchAnswer():
                self.relies_on_hold = False
            case messages.BeginEpochRequest(), messages.EpochAnswer() if answer.newer is not None:
                by = self.world.uploaders.get(answer.newer)
                self.world.claim(by != self.disk, "its own", answer.newer, "is taken for another host's")
                self.take_run()
            case messages.BeginEpochRequest(), messages.EpochAnswer():
                self.take_run()
                if self.is_lowered:
                    self.world.told = parse_name(question.start or "") if question.start else None
                    self.is_lowered = False
                here = parse_name(question.start or "")
                self.world.claim(step_of(here) >= step_of(self.world.told), "takes over", here, "told", self.world.told)
            case messages.UploadRequest() | messages.CommitPartsRequest(), messages.UploadAnswer():
                name = parse_name(question.name)
                self.world.uploaders[question.name] = self.disk
                if step_of(name) >= step_of(self.world.told):
                    self.world.told = name

    def take_run(self) -> None:
        """What another host has given up without the store's knowing of it, this one goes on from."""
        self.world.holder = self.name
        for host in self.world.hosts:
            host.given_up = host.given_up if host is self else set()

    # --- the worker ---------------------------------------------------------------------------------------------------

    def say(self, message: worker_messages.FromWorker) -> None:
        if self.mirror is not None:
            self.mirror.on_message(message, self.world.loop.time())
        if (event := event_of(message)) is not None:
            self.post(event)

    def train(self, steps: int, commits: bool) -> None:
        number = self.job.facts.attempt
        if not self.has_go:
            return
        if not self.trains:
            self.trains = True
            name = None if self.begun is None else str(self.begun)
            self.say(worker_messages.Restored(number, self.step, name, 0.0))
            if self.job.facts.current.older is not None or step_of(self.begun) >= step_of(self.reported):
                self.reported = self.begun
        self.step += steps
        self.say(worker_messages.Progress(number, self.step))
        if commits and self.trains:
            self.commit(self.step)

    def commit(self, step: int, flushes: tuple[int, ...] = ()) -> None:
        number = self.job.facts.attempt
        self.step = step
        name = CheckpointName(step, number)
        self.world.write(self.saves_in, name)
        self.given_up.discard(name)  # another host's, of the same name
        if step_of(self.reported) <= step:
            self.reported = name
        self.has_committed = True
        self.say(worker_messages.Committed(number, step, str(name), 1, 0.1, 0.0, flushes))

    def end_worker(self, exited: events.WorkerExited) -> None:
        if self.job.state in ALIVE:
            self.has_go = self.trains = False
            self.post(exited)

    # --- daemons change -----------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """By the daemon that has just begun; the worker tells it all once more."""
        number, restored = self.job.facts.attempt, None if self.begun is None else str(self.begun)
        assert self.mirror is not None
        self.mirror.adopt(self.job.facts.passed_over)
        self.post(events.AttemptFound(number, 1.0))
        self.say(worker_messages.Restored(number, max(0, step_of(self.begun)), restored, 0.0))
        self.say(worker_messages.Progress(number, self.step))
        if self.has_committed:
            newest = max(name for name in committed_checkpoints(self.saves_in) if name.attempt == number)
            self.reported = newest if step_of(self.reported) <= newest.step else self.reported
            self.say(worker_messages.Committed(number, newest.step, str(newest), 1, 0.1, 0.0, ago_s=1.0))
        status = worker_messages.WorkerStatus(
            number, 1, worker_messages.Phase.TRAINING, restored=restored, step=self.step
        )
        self.say(status)

    def lose_worker(self, is_rebooted: bool) -> None:
        """It has ended before the daemon that has just begun."""
        number, self.has_go, self.trains = self.job.facts.attempt, False, False
        assert self.mirror is not None
        self.mirror.resume()
        here = [name for name in committed_checkpoints(self.saves_in) if name.attempt == number]
        mine = [name for name in here if not (self.saves_in / str(name) / layout.FETCHED).exists()]
        newest = max(mine, default=None)
        if newest is not None and step_of(self.reported) <= newest.step:
            self.reported = newest
        step = None if newest is None else newest.step
        self.post(events.AttemptLost(number, committed_step=step, host_rebooted=is_rebooted))

    def on_mirrored(self, message: worker_messages.Mirrored) -> None:
        """The answer to a worker of a gang whose nodes have folders of their own."""

    def note(self, text: str) -> None:
        self.world.log.append(f"{self.name}: {text}")

    # --- the mirror's process -----------------------------------------------------------------------------------------

    async def _ask(self, question: messages.Question) -> messages.Answer:
        answer = self.process.answer(question)
        self.note(f"      {question} -> {answer}")
        self._on_answer(question, answer)
        return answer
