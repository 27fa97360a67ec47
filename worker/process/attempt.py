"""This process as one attempt of a job: how it was launched, whom it reports to, and how it ends."""

import os
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from supervisor.protocol.allocation import CLUSTER
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Control, Launch
from supervisor.protocol.wire.messages import Failed, Promote, Restoring
from worker.process.control_pipe import WorkerChannel
from worker.process.proof_mode import ProofMode
from worker.process.reporting import Reporter, describe_error, is_out_of_memory
from worker.process.requests import PendingRequests

RESTORING_TIMEOUT_S = 1.0  # how long a restore waits for a daemon that doesn't read; it has just sent `go`
DRAIN_TIMEOUT_S = 2.0  # how long a process that ends waits for a daemon that doesn't read
MAX_ERROR = 2000  # characters of an error's text; a line on the pipe is at most 64 KiB
MAX_TRACEBACK = 8000  # characters, the end of it: there the cause stands


class DeliberateExit(SystemExit):
    """This process ends on purpose, with a code of `WorkerExit`, after it has reported why (`Attempt.leave`)."""


@dataclass(slots=True)
class Attempt:
    """One attempt. `channel` is None without a daemon; `number` is then known once the checkpoint directory is open."""

    launch: Launch
    requests: PendingRequests
    reporter: Reporter
    channel: WorkerChannel | None = None
    number: int = 1
    has_begun_run: bool = False
    """Whether a run began from the daemon's checkpoint; a later run of the script selects its own."""
    ended_in: frozenset[Path | None] = frozenset()
    """The checkpoint directories in which a run of the script has come to its end."""
    trained_in: frozenset[Path | None] = frozenset()
    """Those of them in which one of these runs has made steps."""
    explained: frozenset[tuple[Path | None, str]] = frozenset()
    """What this process has said of runs that follow one another there: a directory, and which of the remarks."""
    no_copies: bool = False
    """Whether memory ran out when an earlier attempt copied its state there: this one is not to."""
    failure_sent: bool = False
    """Whether the script's present run, or what follows it, has reported why it fails."""
    leaving: WorkerExit | None = None
    """The code with which this process is to end, also if its script catches the exit."""
    state_home: Path | None = None
    """Where it may remember what it committed; None under a daemon, whose ledger does that."""
    mirror_url: str | None = None
    """The run in a store that it begins from; None under a daemon, which fetches for it."""
    gang_attempt: int | None = None
    """Of several workers with a daemon each: the chief's, after which their checkpoints are named."""
    proof: ProofMode | None = None
    """Set if a proof of exactness runs this process."""

    @property
    def is_standby(self) -> bool:
        """Whether it waits for the daemon to make it an attempt."""
        return self.launch.waits_for is not None

    def promote(self, promotion: Promote) -> None:
        """Makes the standby an attempt."""
        if promotion.cluster is not None:
            os.environ[CLUSTER] = promotion.cluster
        self.number = promotion.attempt
        self.launch = replace(
            self.launch,
            control=Control(promotion.attempt, Path(promotion.pipes)),
            between_failures_s=promotion.between_failures_s,
            microbatches=promotion.microbatches,
            generation=promotion.generation,
            waits_for=None,
        )

    def report_restoring(self, path: Path, from_memory: bool = False) -> None:
        """Reports that the restore of `path` begins, and waits until that is in the pipe: a native crash may follow."""
        if self.channel is not None:
            self.channel.send_message(Restoring(self.number, path.name, from_memory))
            self.channel.drain(RESTORING_TIMEOUT_S)

    def report_failure(
        self,
        error: str,
        step: int | None = None,
        detail: str = "",
        *,
        out_of_memory: bool = False,
        code: int | None = None,
        errno: int | None = None,
    ) -> None:
        """Reports why this attempt fails, unless that was reported before: a later error is a consequence."""
        self._send_failure_once(
            Failed(self.number, step, error[:MAX_ERROR], detail[-MAX_TRACEBACK:], out_of_memory, code=code, errno=errno)
        )

    def report_exception(self, error: BaseException, step: int | None = None) -> None:
        """Reports an exception of the script as the reason for the failure; Python prints its traceback as always."""
        detail = "".join(traceback.format_exception(error))
        self.report_failure(
            describe_error(error), step, detail, out_of_memory=is_out_of_memory(error), code=int(WorkerExit.USER_ERROR)
        )

    def report_member_failure(self, what: str, failure: Failed | None) -> None:
        """Reports that a process which trains together with this one is gone; `failure`: what it reported itself."""
        if failure is None:
            self._send_failure_once(Failed(self.number, None, what))
        else:
            self._send_failure_once(replace(failure, attempt=self.number, error=f"{what}: {failure.error}"[:MAX_ERROR]))
        self.reporter.drain(DRAIN_TIMEOUT_S)

    def exit_with_error(
        self, code: WorkerExit, error: str, step: int | None = None, errno: int | None = None
    ) -> NoReturn:
        """Reports the error and exits with the code that says which kind of failure it is. `errno`: as in `Failed`."""
        self.report_failure(error, step, code=int(code), errno=errno)
        self.reporter.drain(DRAIN_TIMEOUT_S)
        self.leave(code)

    def exit_diverged(self, error: str, step: int, go_back: bool, batches: tuple[str, ...] = ()) -> NoReturn:
        """Exits because training diverged at `step`.

        `go_back`: the next attempt begins from before that step; `batches`: those that it leaves out, as `EPOCH:BATCH`.
        """
        code = WorkerExit.DIVERGED
        self._send_failure_once(
            Failed(
                self.number,
                step,
                error[:MAX_ERROR],
                go_back=go_back,
                batches=batches,
                code=int(code),
                gang_attempt=self.gang_attempt,
            )
        )
        self.reporter.drain(DRAIN_TIMEOUT_S)
        self.leave(code)

    def leave(self, code: WorkerExit) -> NoReturn:
        """Ends this process on purpose; what it has to say is said."""
        self.leaving = code
        raise DeliberateExit(int(code))

    def _send_failure_once(self, failure: Failed) -> None:
        if not self.failure_sent:
            self.failure_sent = True
            self.reporter.send_message(failure)
