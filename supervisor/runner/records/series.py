"""Records the metrics of a job over its steps, from its worker's reports, and keeps them in the ledger."""

from time import monotonic, time

from supervisor.core.program.facts import ALIVE, ProgramFacts, State
from supervisor.core.series import MetricSeries
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

SAVE_EVERY_S = 120.0  # so much of the curves a daemon that is killed loses


class SeriesRecorder(ProgramObserver):
    """The series of one job. Nothing is recorded before `open`, which gives what an earlier daemon kept."""

    def __init__(self, program: str, ledger: Ledger) -> None:
        self.series = MetricSeries()
        self._program = program
        self._ledger = ledger
        self._is_open = self._has_news = False
        self._saved_at = monotonic()

    def open(self, kept: MetricSeries) -> None:
        """Continues the series of an earlier daemon. Later calls do nothing."""
        if not self._is_open:
            self._is_open, self.series = True, kept

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if not (self._is_open and isinstance(message, messages.Progress)):
            return
        self.series.add(message.step, time(), message.attempt, message.metrics, message.step_s)
        self._has_news = True
        if now - self._saved_at >= SAVE_EVERY_S:
            self.save()

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        if facts.state is not before and facts.state not in ALIVE:
            self.save()

    def save(self) -> None:
        """Stores what is new."""
        if self._has_news:
            self._has_news, self._saved_at = False, monotonic()
            self._ledger.series.store(self._program, self.series)
