"""What no checkpoint of a run holds: said on stderr as it is found, and in the report of the next checkpoint."""

from collections.abc import Collection, Sequence

from supervisor.protocol.wire.exits import WorkerExit
from worker.checks.findings import Finding, describe
from worker.process.attempt import Attempt


class UnsavedState:
    """Of one run. `strict`: whether to end training that has some."""

    def __init__(self, attempt: Attempt, strict: bool) -> None:
        self.names: tuple[str, ...] = ()
        """All that was found."""
        self.unreported: tuple[str, ...] = ()
        """What was in no report of a checkpoint yet. More may be found while one is written."""
        self._attempt = attempt
        self._strict = strict

    def report(self, findings: Sequence[Finding], step: int, missing: Sequence[str], remedy: str) -> None:
        """See `SaveScheduler.report_findings`."""
        texts = [f"checkpoints do not include {', '.join(missing)}; {remedy}"] if missing else []
        texts += describe(findings)
        if (proof := self._attempt.proof) is not None:
            proof.name_findings(
                [*((name, remedy) for name in missing), *((finding.name, finding.remedy) for finding in findings)]
            )
        names = (*missing, *dict.fromkeys(finding.name for finding in findings))
        self.names, self.unreported = (*self.names, *names), (*self.unreported, *names)
        if texts and self._strict and proof is None:  # a proof shows what follows from it
            self._attempt.exit_with_error(
                WorkerExit.INCOMPLETE, f"cannot train, as strict is set: {'. '.join(texts)}", step
            )
        for text in texts:
            self._attempt.reporter.show_message(text)

    def mark_reported(self, names: Collection[str]) -> None:
        """These were in the report of a checkpoint."""
        self.unreported = tuple(name for name in self.unreported if name not in names)
