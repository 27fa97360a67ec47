"""What each worker of a gang tells its own daemon of the saves: the chief alone makes them, and all were asked."""

from dataclasses import astuple, dataclass

from supervisor.protocol import layout
from supervisor.protocol.wire.messages import Committed, SaveFailed
from worker.data.collectives import Gang
from worker.process.attempt import Attempt


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest checkpoint of the chief. `save_ms`: how long its save took; 0: it was not saved, but restored.
    `age_s`: how long ago it was committed."""

    step: int
    attempt: int
    size_bytes: int
    save_ms: int
    age_s: int = 0


NO_CHECKPOINT = NewestCheckpoint(0, 0, 0, 0)


class RankReports:
    """The reports of one worker. The chief's saves are reported by whatever makes them."""

    def __init__(self, gang: Gang, attempt: Attempt) -> None:
        self._gang = gang
        self._attempt = attempt
        self._waiting: list[tuple[int, tuple[int, ...]]] = []  # flushes of this worker's daemon: step, ids
        self._reported_step = -1  # the newest saved step that this worker's daemon was told of

    def add_flushes(self, step: int, ids: tuple[int, ...]) -> None:
        """This worker's daemon has asked for flushes, and training is at `step`."""
        self._waiting.append((step, ids))

    def pop_flushes(self) -> tuple[int, ...]:
        """The flushes that wait, which somebody else answers from now on."""
        flushes = self._all_flushes()
        self._waiting.clear()
        return flushes

    def report_commit(self, newest: NewestCheckpoint) -> None:
        """Reports a commit of the chief to this worker's daemon, with the flushes that it answers.

        The daemon plans the last flush before its host goes with the time that the save took. What all have restored is
        no commit, and is reported only if a flush waits for it.
        """
        if self._gang.is_chief or newest == NO_CHECKPOINT:
            return
        answered = tuple(flush for step, ids in self._waiting if step <= newest.step for flush in ids)
        is_new = newest.step > self._reported_step and newest.save_ms > 0
        if not (is_new or answered):
            return
        self._waiting = [entry for entry in self._waiting if entry[0] > newest.step]
        self._reported_step = newest.step
        name, save_s = str(layout.CheckpointName(newest.step, newest.attempt)), newest.save_ms / 1000
        ago_s = None if is_new else float(newest.age_s)
        self._attempt.reporter.send_message(
            Committed(self._attempt.number, newest.step, name, newest.size_bytes, save_s, 0.0, answered, ago_s=ago_s)
        )

    def report_stop(self, step: int, newest: NewestCheckpoint, failed: bool) -> None:
        """Reports the last save to this worker's daemon: no later agreement follows that would do it.

        `newest`: as the chief knows it. All workers call this together.
        """
        of_chief = NewestCheckpoint(*self._gang.from_chief(astuple(newest)))
        if self._gang.is_chief:
            return
        if failed:
            text = "the chief worker could not save; see its log"
            self._attempt.reporter.send_message(SaveFailed(self._attempt.number, step, text, self._all_flushes()))
            return
        self.report_commit(of_chief)

    def _all_flushes(self) -> tuple[int, ...]:
        return tuple(flush for _, ids in self._waiting for flush in ids)
