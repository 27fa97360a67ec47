"""Proofs of exactness of this daemon's jobs: begins and ends them, and knows the newest one of each job.

At most one is under way, as each takes the devices and the memory of a training job. It ends with its job (removed,
changed, or started), with the daemon, or when somebody cancels it; nothing of it is left then.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.fleet.proving import JobSituation, ProofObstacle, find_obstacle, why_end
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.listeners.event_types import program_event
from supervisor.host.checkpoint_store import other_identity
from supervisor.host.children import own_command
from supervisor.host.gpu_guard.client import HelperHangs
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.processes.credentials import cached_credentials, look_up, user_environment
from supervisor.host.proof_process import (
    ProofFailed,
    ProofPlan,
    ProofProcess,
    ProofProgress,
    Proven,
    remove_scratch,
)
from supervisor.host.script_changes import ScriptChanges
from supervisor.protocol.proof import ProofReport, Verdict
from supervisor.protocol.wire import launch
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.gpu_gate import visible_to
from supervisor.runner.program.runner import Runner

COMMAND = own_command("supervisor.proof_child")
LIMIT_S = 12 * 3600.0  # a night; a longer proof shows no more than a shorter one
SCRIPTS_WITHIN_S = 0.1  # that `status` waits for their disks
LOOK_EVERY_S = 1.0  # whether a proof has to end

log = structlog.get_logger()


class ProofRefused(Exception):
    """A proof does not begin; the text says why and what to do."""

    def __init__(self, obstacle: ProofObstacle, text: str) -> None:
        super().__init__(text)
        self.obstacle = obstacle


@dataclass(frozen=True, slots=True)
class ProofWish:
    """What the caller asked for; None leaves the choice to the prover. `anyway`: also beside the job's training."""

    steps: int | None = None
    epochs: float | None = None
    kills: int | None = None
    anyway: bool = False


@dataclass(slots=True)
class ProofRun:
    """One proof, under way or ended. `proven`: what it came to, or `failure`: why it came to nothing.

    `ends_because`: why it is being ended.
    """

    name: str
    number: int
    began_wall_at: float
    progress: ProofProgress = field(default_factory=lambda: ProofProgress("starts"))
    proven: Proven | None = None
    failure: str | None = None
    is_over: bool = False
    ends_because: str | None = None


class Proofs:
    """All proofs. `command`: what proves; `limit_s`: how long one may take."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        services: Services,
        command: tuple[str, ...] = COMMAND,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._runners = runners
        self._services = services
        self._command = command
        self._limit_s = limit_s
        self._newest: dict[str, ProofReport] = {}
        self._last: dict[str, ProofRun] = {}
        self._current: ProofRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._count = 0
        self._is_closed = False
        self._scripts = ScriptChanges()
        self._recalled = asyncio.Event()  # nothing begins before: what an earlier daemon left is removed

    @property
    def current(self) -> ProofRun | None:
        """The proof that is under way."""
        return self._current

    def newest(self, name: str) -> ProofReport | None:
        """The newest proof of a job that came to a verdict; None if there is none."""
        return self._newest.get(name)

    def has_changed(self, name: str) -> bool | None:
        """Whether the command of a job, or a file that it ran, has changed since its newest proof; None: not known."""
        report = self._newest.get(name)
        return None if report is None else self._scripts.has_changed(name, report)

    async def look_at_scripts(self) -> None:
        """Looks whether scripts have changed, for a moment at most: what is not known by then stays as it was."""
        runners = self._runners
        proven = {
            name: (runners[name].config.command, report) for name, report in self._newest.items() if name in runners
        }
        await self._scripts.look(proven, SCRIPTS_WITHIN_S)

    def last_run(self, name: str) -> ProofRun | None:
        """The last proof of a job since this daemon's start, under way or over."""
        return self._last.get(name)

    async def recall(self) -> None:
        """Reads the ledger, and cleans up after a proof that an earlier daemon left."""
        proofs = self._services.ledger.proofs
        try:
            self._newest = await asyncio.to_thread(proofs.load)
            for name, scratch in (await asyncio.to_thread(proofs.load_under_way)).items():
                log.warning("proof.left_over", program=name, folder=scratch.name)
                if await remove_scratch(scratch):
                    proofs.end(name)
        except LedgerError as error:
            log.error("ledger.unread", error=str(error), effect="proofs of before are not shown")
        finally:
            self._recalled.set()

    async def begin(self, runner: Runner, job: JobConfig, wish: ProofWish) -> ProofRun:
        """Begins a proof; returns at once. Raises ProofRefused."""
        await self._recalled.wait()
        gpus = await self._list_gpus() if not wish.anyway else ()
        situation = JobSituation(
            runner.name,
            runner.state,
            is_due=runner.is_due or runner.waits_for is not None,
            nodes=1 if runner.place is None else runner.place.size,
            proving=None if self._current is None else self._current.name,
            gpus=gpus,
            visible=visible_to(runner.config.environment, self._services.environment),
        )
        if self._is_closed:
            raise ProofRefused(ProofObstacle.BUSY, "supervisord is leaving")
        obstacle = find_obstacle(situation, wish.anyway)
        if obstacle is not None and obstacle[0] is not ProofObstacle.NOT_PROVABLE:
            raise ProofRefused(*obstacle)
        self._count += 1
        run = self._last[runner.name] = ProofRun(runner.name, self._count, time.time())
        if obstacle is not None:
            report = ProofReport(Verdict.NOT_PROVABLE, runner.name, time.time(), 0.0, reason=obstacle[1])
            self._finish(run, runner, Proven(report, f"not provable: {obstacle[1]}"))
            run.is_over = True
            return run
        self._current = run
        self._task = asyncio.create_task(self._prove(run, runner, job, wish))
        await asyncio.sleep(0)  # a task that is cancelled before it has begun would end without a word
        return run

    async def _list_gpus(self) -> tuple[Gpu, ...]:
        gpus = self._services.gpus
        if gpus is None:
            return ()
        await gpus.start_once()
        if not gpus.is_started:
            return ()
        try:
            return (await gpus.look()).gpus
        except HelperHangs:
            return ()  # a driver in trouble fails the proof itself, with the framework's words

    async def cancel(self, name: str, why: str = "it was cancelled") -> bool:
        """Ends the proof of a job, and waits until nothing of it is left; False if none is under way."""
        run, task = self._current, self._task
        if run is None or task is None or run.name != name:
            return False
        run.ends_because = run.ends_because or why
        task.cancel()
        await asyncio.wait({task})
        return True

    async def close(self) -> None:
        """Ends what is under way: the daemon leaves."""
        self._is_closed = True
        if self._current is not None:
            await self.cancel(self._current.name, "supervisord left")

    async def _prove(self, run: ProofRun, runner: Runner, job: JobConfig, wish: ProofWish) -> None:
        proofs = self._services.ledger.proofs
        log.info("proof.began", program=run.name, anyway=wish.anyway)
        watch = asyncio.create_task(self._watch(run, runner, wish.anyway))
        process: ProofProcess | None = None
        try:
            plan = await self._plan(runner.config, job, wish)
            proofs.begin(run.name, plan.scratch)
            cgroups = self._services.cgroups
            cgroup = None if cgroups is None else cgroups.create_for_standby(run.name, plan.name[-8:])
            process = ProofProcess(self._command, plan, cgroup)
            proven = await process.run(partial(setattr, run, "progress"), self._limit_s)
            self._finish(run, runner, proven)
        except (ProofFailed, OSError) as error:
            self._fail(run, runner, str(error))
        except Exception as error:
            log.exception("internal.failed", program=run.name)
            self._fail(run, runner, f"internal error {error!r:.200}; the daemon's log has the traceback")
        except asyncio.CancelledError:
            self._fail(run, runner, run.ends_because or "it was cancelled")
        finally:
            watch.cancel()
            if process is None or process.is_removed:
                proofs.end(run.name)
            run.is_over = True
            if self._current is run:
                self._current = None

    async def _watch(self, run: ProofRun, runner: Runner, anyway: bool) -> None:
        """Ends the proof when its job is removed, changed or started."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            is_in_use = self._runners.get(run.name) is runner
            if (why := why_end(run.name, runner.state, is_in_use, anyway)) is not None and self._task is not None:
                run.ends_because = why
                self._task.cancel()
                return

    async def _plan(self, config: ProgramConfig, job: JobConfig, wish: ProofWish) -> ProofPlan:
        """What to prove. Raises OSError if the job's user can't be found."""
        if config.user is not None:
            await look_up(config.user)
        identity = other_identity(config.user)
        who = cached_credentials(config.user) if identity is not None and config.user is not None else None
        environment = user_environment(who, launch.without_launch_variables(self._services.environment))
        folders = (job.checkpoint_dir.parent, Path("/var/tmp"))  # noqa: S108 - its user makes a folder there
        name = f".prove-{secrets.token_hex(8)}"
        return ProofPlan(
            config,
            environment,
            identity,
            folders,
            name,
            wish.steps,
            wish.epochs,
            wish.kills,
        )

    def _finish(self, run: ProofRun, runner: Runner, proven: Proven) -> None:
        """Keeps a verdict. What it is about and when is known here: the process says only what it found."""
        now = time.time()
        report = replace(proven.report, job=run.name, wall_at=now, took_s=max(0.0, now - run.began_wall_at))
        run.proven = replace(proven, report=report)
        self._newest[run.name] = report
        self._services.ledger.proofs.store(run.name, report)
        self._publish(runner, str(report.verdict), report)
        log.info("proof.ended", program=run.name, verdict=report.verdict, steps=report.steps, kills=len(report.kills))

    def _fail(self, run: ProofRun, runner: Runner, why: str) -> None:
        """It came to nothing; what was known of the job stays."""
        run.failure = why
        self._publish(runner, "none", None, why)
        log.warning("proof.failed", program=run.name, reason=why)

    def _publish(self, runner: Runner, verdict: str, report: ProofReport | None, reason: str = "") -> None:
        facts = {} if report is None else {"steps": report.steps, "kills": len(report.kills)}
        said = reason if report is None else report.reason
        event = program_event(
            "PROOF_ENDED", runner.name, runner.config.group, verdict=verdict, reason=said[:500], **facts
        )
        self._services.listeners.publish([event])
