"""What can be seen of one program, by whoever supervises, shows or changes programs."""

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.failures.restart import Cause, allowed_retries
from supervisor.core.job import Job
from supervisor.core.listeners.wire_states import WireState, wire_state
from supervisor.core.program import account
from supervisor.core.program.facts import ALIVE, ENDING, PendingFlush, ProgramFacts, State
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.launching import policy_of
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.changes import ChangeWaiters
from supervisor.runner.program.takeover_progress import TakeoverProgress
from supervisor.runner.records.program import ProgramRecords


class ProgramView:
    """One program as others see it; what changes it is in `Runner`."""

    def __init__(self, config: ProgramConfig, services: Services, log: FilteringBoundLogger) -> None:
        self.config = config
        self._services = services
        self._changes = ChangeWaiters()
        self.wait_until = self._changes.wait_until
        """Waits until what it is given gives something; that is called after every change."""
        self.takeover = TakeoverProgress(self._changes)
        """How far it is taken over from an earlier daemon; nothing starts before."""
        self.waits_for: str | None = None
        """What has to be ready before it is started, in words, while it is held back."""
        self.not_applied: str | None = None
        """Why the last update did not apply its section, which has changed."""
        self.is_hurried = False
        """Whether somebody asked a second time to stop."""
        self.records = ProgramRecords(config, services.ledger, services.save_durations, log)
        """What is known of its process and its training, for clients."""
        self._log = log
        self._job = Job(policy_of(config, services.notice_grace, services.generation is not None))

    @property
    def place(self) -> Allocation | None:
        """This node's, in the gang that trains it; None if it is not a rank of one."""
        return self._services.place

    @property
    def left_nodes(self) -> tuple[str, ...]:
        """On the chief's node: those that have left the gang because their hosts go away."""
        return self._services.gang.left if self._services.gang is not None else ()

    @property
    def spare_of(self) -> tuple[str, ...] | None:
        """The nodes that train the job while this one is a spare node; None if it has a rank, or no gang."""
        return self._services.gang.spare_of if self._services.gang is not None else None

    @property
    def name(self) -> str:
        """The program's name."""
        return self.config.name

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._job.state

    @property
    def wanted(self) -> bool:
        """Whether it is to run."""
        return self._job.facts.wanted

    @property
    def facts(self) -> ProgramFacts:
        """All that is known of it; for reading only."""
        return self._job.facts

    @property
    def reason(self) -> str | None:
        """Why it waits, ended or failed."""
        return self._job.facts.reason

    @property
    def attempt(self) -> int:
        """Number of the present or last attempt; 0 before the first."""
        return self._job.facts.attempt

    @property
    def flush(self) -> PendingFlush | None:
        """The flush that is being waited for."""
        return self._job.facts.current.flush if self.state is State.FLUSHING else None

    @property
    def is_stopping(self) -> bool:
        """Whether its process is on its way out, though it may flush first, or has not said yet where it stands."""
        facts = self._job.facts
        stops = self.flush is not None and self.flush.then is messages.Then.STOP
        is_to = facts.closing or not facts.wanted or facts.current.decided_end is not None
        waits = self.state is State.ADOPTING and is_to  # for the answer
        return stops or waits or self.state in ENDING

    @property
    def is_down(self) -> bool:
        """Whether it has no process, and does not pause before the next one."""
        return self.state not in ALIVE and self.state is not State.BACKOFF

    @property
    def is_due(self) -> bool:
        """Whether it starts by itself, once what an earlier daemon left of it is gone."""
        facts = self._job.facts
        is_down = self.state is State.STOPPED and not facts.closing
        return is_down and facts.wanted and not self.takeover.is_startable

    @property
    def wire_state(self) -> WireState:
        """Where it stands in Supervisor's words."""
        return wire_state(self.state, is_stopping=self.is_stopping, is_held_back=self.waits_for is not None)

    @property
    def pid(self) -> int | None:
        """The pid of its process, until its exit is handled."""
        return self.records.process.pid

    @property
    def stop_limit_s(self) -> float:
        """How long its worker may take to flush and leave."""
        policy = self._job.facts.policy
        return policy.stopwaitsecs + (policy.flush_timeout if policy.is_job else 0.0)

    def restarts_left(self, cause: Cause) -> int:
        """How many more failures of this cause, without progress between them, are followed by another attempt."""
        facts = self._job.facts
        return max(0, allowed_retries(cause, facts.policy.startretries) - facts.failures.by_cause.get(cause, 0))

    @property
    def progress(self) -> SavedProgress | None:
        """How far the present attempt, or the last one, has come, and what of that is saved; None: no job."""
        return account.saved_progress(self._job.facts)

    def progress_of(self, attempt: int) -> SavedProgress | None:
        """How far an attempt that has ended had come; None for a plain program, or if it is long past."""
        ended = self._job.facts.ended
        if ended is not None and ended.attempt == attempt:
            return ended
        return self.progress if self.attempt == attempt else None

    @property
    def divergence(self) -> SeenDivergence | None:
        """What this rank of a gang has seen, and the next start has to begin before; None once one has restored."""
        return self._job.facts.divergence

    async def until_gone(self) -> None:
        """Returns when no process of it is left."""
        await self.wait_until(lambda: None if self.state in ALIVE else True)
