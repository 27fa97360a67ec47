"""What one program's runner knows from the ledger and the disk, and writes there for a later daemon."""

import asyncio
import contextlib

from supervisor.config import ProgramConfig
from supervisor.core.failures.cadence import Reliability
from supervisor.core.failures.restart import MAX_MICROBATCHES
from supervisor.core.failures.silences import Section
from supervisor.core.job import Job
from supervisor.core.program.memory import Memory, memory_of
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.runner.attempt.launching import config_digest
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.executor import EffectExecutor

SLOW_DISK_S = 5.0  # how long a start waits for a checkpoint directory's listing before it trusts the ledger alone


class PersistedStateStore:
    """Between a program's job, its acts, and what outlives both. What can't be read is as if it had never been."""

    __slots__ = ("_config", "_executor", "_has_restored", "_job", "_last_saved", "_services")

    def __init__(self, config: ProgramConfig, services: Services, job: Job, executor: EffectExecutor) -> None:
        self._config = config
        self._services = services
        self._job = job
        self._executor = executor
        self._has_restored = False
        self._last_saved: tuple[Memory, tuple[OomKillCounter, ...]] | None = None

    async def restore(self, last_attempt: int) -> bool:
        """Sees to it that no attempt's number is used twice, neither one of the ledger's nor one on the disk, and that
        a job goes on with all that was learned of it. Whether that was under the same configuration.

        A checkpoint directory that does not answer is not waited for.
        """
        goes_on, job = False, self._config.job
        self._job.skip_attempts(last_attempt)
        if job is not None and job.on_oom == "microbatch":
            await self._restore_microbatches()
        if job is not None and self._executor.pid is None:
            await self._restore_reliability()
            await self._restore_account(last_attempt)
            goes_on = await self._restore_facts()
            listing = self._services.checkpoints.highest_attempt(job.checkpoint_dir)
            with contextlib.suppress(TimeoutError, OSError):
                self._job.skip_attempts(await asyncio.wait_for(listing, SLOW_DISK_S))
        return goes_on

    def save_if_changed(self, now: float) -> None:
        """Into the ledger with what was learned, once it is another than what is there."""
        if self._config.job is None:
            return
        memory, counters = memory_of(self._job.facts, now), self._executor.oom_counters
        if (memory, counters) != self._last_saved:
            self._last_saved = memory, counters
            self._services.ledger.job_states.store(self._config.name, memory, config_digest(self._config), counters)

    async def _restore_reliability(self) -> None:
        """Of failures and silences; without the ledger, what was seen since this start holds."""
        ledger, name = self._services.ledger, self._config.name
        with contextlib.suppress(LedgerError):
            reliability = Reliability()
            for ran_s, cause in await asyncio.to_thread(ledger.ended_attempts, name):
                reliability = reliability.after(ran_s, cause)
            self._executor.reliability = reliability
            silences = await asyncio.to_thread(ledger.hang_history, name)
            known = {Section(each): s for each, s in silences.items() if each in tuple(Section)}
            self._job.facts.hang_detector.recall(known)

    async def _restore_facts(self) -> bool:
        """What an earlier daemon had learned of failures; with another configuration they may be over."""
        if self._last_saved is not None or self._has_restored:
            return False
        self._has_restored = True
        with contextlib.suppress(LedgerError):
            recalled = await asyncio.to_thread(self._services.ledger.job_states.load, self._config.name)
            if recalled is not None:
                self._job.recall(recalled.memory, asyncio.get_running_loop().time(), recalled.ago_s)
                is_last = recalled.memory.attempt == self._job.facts.attempt
                self._executor.oom_counters = recalled.counters if is_last else ()
                return recalled.digest == config_digest(self._config)
        return False

    async def _restore_account(self, last_attempt: int) -> None:
        """The account that an earlier daemon kept of this job."""
        kept = None
        with contextlib.suppress(LedgerError):
            kept = await asyncio.to_thread(self._services.ledger.accounts.load_last, self._config.name)
        self._executor.goodput.open_account(kept, last_attempt)

    async def _restore_microbatches(self) -> None:
        """Into how many parts the last attempt divided its batches; twice as many if that was not enough."""
        with contextlib.suppress(LedgerError):
            last = await asyncio.to_thread(self._services.ledger.next_microbatches, self._config.name)
            self._job.facts.microbatches = min(last, MAX_MICROBATCHES)
