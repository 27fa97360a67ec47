"""What outlives the daemon of one program: restored from the ledger and the disk, and saved when it changes."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import structlog

from supervisor.config import ProgramConfig
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.reliability import Reliability
from supervisor.core.failures.restart import MAX_MICROBATCHES
from supervisor.core.job import Job
from supervisor.core.program.effects import Effect
from supervisor.core.program.events import Event, ReportedEvent, StepsDone, TrainingRestored
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.core.program.persisted_facts import PersistedFacts, facts_to_persist
from supervisor.core.series import MetricSeries
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.mirror.client import MirrorError
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol.checkpoints.account import ProgressAccount, ReportedCheckpoint
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.layout import MAX_TRACED_ATTEMPT
from supervisor.runner.attempt.launching import config_digest
from supervisor.runner.attempt.services import Services
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords

log = structlog.get_logger()

SLOW_DISK_S = 5.0  # how long a start waits for a checkpoint directory's listing before it trusts the ledger alone


class PersistedStateStore(ProgramObserver):
    """Restores and saves one program's facts. What can't be read counts as never recorded.

    `is_adopted`: whether it is settled which attempt of an earlier daemon goes on; nothing is saved before.
    """

    __slots__ = (
        "_config",
        "_has_news",
        "_has_restored",
        "_is_adopted",
        "_is_decided",
        "_job",
        "_last_saved",
        "_mirror",
        "_recorded",
        "_records",
        "_services",
    )

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        job: Job,
        records: ProgramRecords,
        mirror: JobMirror | None,
        is_adopted: Callable[[], bool],
    ) -> None:
        self._config = config
        self._services = services
        self._job = job
        self._records = records
        self._mirror = mirror
        self._is_adopted = is_adopted
        self._has_restored = False
        self._is_decided = False  # more than a word of the worker has happened since the last save
        self._has_news = False  # something happened besides steps, which change nothing that could not wait
        self._last_saved: tuple[PersistedFacts, tuple[OomKillCounter, ...]] | None = None
        self._recorded = services.ledger.wanted.progress(config.name)  # known without a read, so before any event
        self._recorded = self._inherit_account()
        job.facts.account = self._recorded

    def _inherit_account(self) -> ProgressAccount:
        """Of a job that has another name since, or its former name again: what was reported as committed in its
        directory by those whose checkpoints it restores, unless it has recorded something later itself. Else it would
        begin anew where that is not mounted, or from an old copy."""
        job, wanted = self._config.job, self._services.ledger.wanted
        if job is None or not job.restore_from_jobs:
            return self._recorded
        former = None if "*" in job.restore_from_jobs else job.restore_from_jobs
        found = wanted.progress_in(str(job.checkpoint_dir), former)
        if found is None:
            return self._recorded
        program, newest = found
        if program == self._config.name or (self._recorded.revision and not _is_later(newest, self._recorded.newest)):
            return self._recorded
        inherited = self._recorded.changed_to(replace(newest, mirror=None, epoch=None))  # a mirror's run has a name
        wanted.record_progress(self._config.name, inherited)
        log.info("account.inherited", program=self._config.name, of=program, step=newest.step, checkpoint=newest.name)
        return inherited

    async def restore(self, last_attempt: int, seen: int = 0) -> bool:
        """Before a start: restores the facts, and skips the attempt numbers that the ledger or the disk has.

        Returns whether the facts were recorded under the present configuration. A checkpoint directory that does not
        answer within SLOW_DISK_S is ignored.
        """
        goes_on, job = False, self._config.job
        recorded = self._services.ledger.wanted.progress(self._config.name)
        if recorded.revision > self._recorded.revision:  # by the runner that an update has replaced
            self._recorded = recorded
        self._job.facts.account = self._recorded = self._inherit_account()
        self._job.skip_attempts(last_attempt)
        self._job.facts.attempts_used = max(self._job.facts.attempts_used, seen)  # not to be had a second time
        if job is not None and job.on_oom == "microbatch":
            await self._restore_microbatches()
        if job is None and self._records.process.pid is None:
            await self._restore_facts()
        if job is not None and self._records.process.pid is None:
            await self._restore_reliability()
            await self._restore_account(last_attempt)
            await self._restore_series()
            goes_on = await self._restore_facts()
            listing = self._services.checkpoints.attempts_in(job.checkpoint_dir, self._config.user)
            highest, highest_here = self._last_reported_attempts()
            with contextlib.suppress(TimeoutError, OSError, RuntimeError):  # the last: no thread to spare
                async with asyncio.timeout(SLOW_DISK_S):
                    listed = await listing
                highest, highest_here = max(highest, listed.highest), max(highest_here, listed.highest_here)
            if self._job.skip_saved_attempts(highest, highest_here):
                effect = "where an operator, or a divergence, had the next start begin is forgotten"
                log.warning("decision.outdated", program=self._config.name, newest_attempt=highest_here, effect=effect)
            if self._mirror is not None and self._job.facts.attempt == 0:  # a new host: no other start waits for that
                with contextlib.suppress(MirrorError):  # before it begins it is asked again
                    self._job.skip_attempts(await self._mirror.look())
        return goes_on

    def _last_reported_attempts(self) -> tuple[int, int]:
        """The attempt of the newest checkpoint that was reported, and that which had it here, as another host may have
        committed it: known without the ledger, and without the disk."""
        newest = self._job.facts.account.newest
        reported = (0, 0) if newest is None else (newest.attempt or 0, newest.since or 0)
        attempt, since = (number if number <= MAX_TRACED_ATTEMPT else 0 for number in reported)
        return attempt, since

    def on_decision(self, event: Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts) -> None:
        self._has_news = self._has_news or (event is not None and not isinstance(event, StepsDone))
        self._is_decided = self._is_decided or not isinstance(event, ReportedEvent)
        if facts.account.revision != self._recorded.revision:  # before any effect of the decision tells of it
            self._recorded = facts.account
            self._services.ledger.wanted.record_progress(self._config.name, facts.account)
        if (older := facts.current.older) is not None and isinstance(event, TrainingRestored):
            self._services.ledger.attempts.attempt_older(self._config.name, facts.attempt, older.because, older.text)

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        if not (self._has_news or facts.state is not before):
            return
        self._has_news = False
        if self._is_adopted():
            self._save_if_changed(now)

    def _save_if_changed(self, now: float) -> None:
        memory, counters = facts_to_persist(self._job.facts, now), self._records.process.oom_counters
        if (memory, counters) != self._last_saved:
            states, name, digest = self._services.ledger.job_states, self._config.name, config_digest(self._config)
            is_stored = states.store(name, memory, digest, counters, is_reported=not self._is_decided)
            self._last_saved = (memory, counters) if is_stored else None
        self._is_decided = False

    async def _restore_reliability(self) -> None:
        """How often attempts fail, and the silences that the hang limit is learned from."""
        ledger, name = self._services.ledger, self._config.name
        with contextlib.suppress(LedgerError):
            reliability = Reliability()
            for ran_s, cause in await asyncio.to_thread(ledger.attempts.ended_attempts, name):
                reliability = reliability.with_attempt(ran_s, cause)
            self._records.reliability = reliability
            silences = await asyncio.to_thread(ledger.job_states.hang_history, name)
            known = {LoopSection(section): s for section, s in silences.items() if section in tuple(LoopSection)}
            self._job.facts.hang_detector.recall_longest(known)

    async def _restore_facts(self) -> bool:
        """What an earlier daemon learned from failures; returns whether the configuration is still the same."""
        if self._last_saved is not None or self._has_restored:
            return False
        self._has_restored = True
        with contextlib.suppress(LedgerError):
            states, name = self._services.ledger.job_states, self._config.name
            recalled = await asyncio.to_thread(states.load, name) if states.has_to_read(name) else states.load(name)
            if recalled is not None:
                self._job.recall_persisted(recalled.facts, asyncio.get_running_loop().time(), recalled.ago_s)
                is_last = recalled.facts.attempt == self._job.facts.attempt
                self._records.process.oom_counters = recalled.counters if is_last else ()
                return recalled.digest == config_digest(self._config)
        return False

    async def recall_divergence(self) -> SeenDivergence | None:
        """Where the next start has to begin, as an earlier daemon has learned; of a job, before it is restored."""
        with contextlib.suppress(LedgerError):
            recalled = await asyncio.to_thread(self._services.ledger.job_states.load, self._config.name)
            facts = None if recalled is None else recalled.facts
            if facts is not None and facts.restore_below_step is not None:
                return SeenDivergence(facts.restore_below_step, facts.diverged_attempt or facts.attempt)
        return None

    async def _restore_account(self, last_attempt: int) -> None:
        """The job's goodput account as an earlier daemon saved it."""
        kept = None
        with contextlib.suppress(LedgerError):
            kept = await asyncio.to_thread(self._services.ledger.accounts.load_last, self._config.name)
        self._records.goodput.start_meter(kept, last_attempt)

    async def _restore_series(self) -> None:
        """The job's metrics over its steps, as an earlier daemon recorded them."""
        recorder, kept = self._records.series, MetricSeries()
        with contextlib.suppress(LedgerError):
            kept = await asyncio.to_thread(self._services.ledger.series.load, self._config.name)
        if recorder is not None:
            recorder.open(kept)

    async def _restore_microbatches(self) -> None:
        """Into how many parts the next attempt divides its batches: twice as many if the last ran out of memory."""
        with contextlib.suppress(LedgerError):
            last = await asyncio.to_thread(self._services.ledger.attempts.next_microbatches, self._config.name)
            self._job.facts.microbatches = min(last, MAX_MICROBATCHES)


def _is_later(newest: ReportedCheckpoint, own: ReportedCheckpoint | None) -> bool:
    """Whether a checkpoint of another name became the newest after a job's own newest one, in the same directory, and
    is ahead of that. If an operator began the job anew since, or from an older one, nobody knows.

    Attempts tell it, whose numbers go on from what the directory has, whatever the job is called. No clock does.
    """
    if own is None or own.directory != newest.directory:
        return False
    since, own_since = (found.attempt if found.since is None else found.since for found in (newest, own))
    if since is None or own_since is None:
        return False
    return newest.step > own.step and since > own_since
