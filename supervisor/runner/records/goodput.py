"""Keeps a job's account: what happens goes into it, and it goes into the ledger, seldom enough to cost nothing."""

import time
from collections.abc import Mapping

from supervisor.core.program import effects as order
from supervisor.core.program.accounting import (
    STEPPING,
    Account,
    Spent,
    Standing,
)
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.ledger.accounts import StoredAccount
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol import messages

KEEP_EVERY_S = 10.0  # a daemon that is killed loses track of no more; one row a job, so no load


class GoodputRecorder:
    """The account of one job. Monotonic seconds."""

    __slots__ = ("_account", "_adopting", "_kept_as", "_kept_at", "_ledger", "_program", "_silent")

    def __init__(self, program: str, ledger: Ledger) -> None:
        self._program = program
        self._ledger = ledger
        self._account: Account | None = None
        self._kept_at = 0.0
        self._kept_as: tuple[int, Spent] | None = None
        self._adopting = False
        self._silent = False  # adopted, and not heard of: perhaps a zombie

    def open_account(self, kept: StoredAccount | None, last_attempt: int) -> None:
        """Goes on where an earlier daemon left off; nothing is booked before. Later calls do nothing."""
        if self._account is None:
            now = time.monotonic()
            since = now if kept is None else now - kept.ago_s
            self._account = Account(since, Standing(last_attempt) if kept is None else kept.standing)

    def on_adopted(self, attempt: int, age_s: float) -> None:
        """The worker of an earlier daemon lives: what it did meanwhile, it will say."""
        account = self._account
        if account is not None:
            self._adopting = self._silent = True
            if account.attempt != attempt:
                account.begun(attempt, time.monotonic() - age_s)

    def on_worker_lost(self, wanted: bool, step: int | None, lived_for_s: float | None) -> None:
        """No worker was found. It made `step`, as far as its checkpoints tell, and lived until so many seconds ago."""
        if self._account is not None:
            self._account.found_dead(wanted, step, None if lived_for_s is None else time.monotonic() - lived_for_s)

    # --- what happens -------------------------------------------------------------------------------------------------

    def on_effect(self, effect: order.Effect, now: float) -> None:
        """The core gave an order."""
        account = self._account
        if account is None:
            return
        match effect:
            case order.RecordEnd() if self._silent:
                self._silent = False
                account.found_dead(True, None, None)
            case order.Spawn():
                account.ended(now)
                self._save(now)
                account.begun(effect.attempt, now)
                self._save(now)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        """The worker said something."""
        account = self._account
        if account is None:
            return
        self._silent = self._silent and isinstance(message, messages.Done | messages.Failed)
        match message:
            case messages.Restored():
                account.restored(message.step, message.restore_s, now, self._adopting)
            case messages.Progress():
                account.progressed(message.step, now, message.step_s, message.data_s)
            case messages.Committed() if message.ago_s is None:
                account.committed(message.stall_s)

    def on_settled(self, facts: ProgramFacts, now: float) -> None:
        """Where the program stands, after anything that may have changed it."""
        account = self._account
        if account is None:
            return
        self._adopting = facts.state is State.ADOPTING
        account.stood(facts, now)
        standing_as = account.attempt, Spent.TRAINING if account.open_as in STEPPING else account.open_as
        if standing_as != self._kept_as or now - self._kept_at >= KEEP_EVERY_S:
            self._save(now)

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def total_s(self) -> Mapping[Spent, float]:
        """Seconds since the daemon took it up; each only grows."""
        if self._account is None:
            return {}
        self._account.passed(time.monotonic())
        return self._account.total_s

    def save(self) -> tuple[Spent, float] | None:
        """Into the ledger with it; gives what is going on, and for how many seconds that is not booked yet."""
        if self._account is None:
            return None
        now = time.monotonic()
        self._account.passed(now)
        self._save(now)
        return self._account.open_as, max(0.0, now - self._account.since)

    def _save(self, now: float) -> None:
        account = self._account
        if account is not None:
            standing = account.standing
            self._ledger.accounts.store(self._program, standing, max(0.0, now - account.since))
            self._kept_at = now
            self._kept_as = account.attempt, Spent.TRAINING if account.open_as in STEPPING else account.open_as
