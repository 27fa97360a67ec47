"""How long the next saves and uploads take while a host goes away: each job plans its last flush with that.

The jobs that a notice concerns save at the same time and share disks and the way to the stores. So what one of them can
expect changes with every save of another, with every notice, and with every program that is added.
"""

from collections.abc import Mapping

from supervisor.core.notices.active import ActiveNotices
from supervisor.core.program import events, notice_plan
from supervisor.host.ledger.ledger import Ledger
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.saves import SaveDurations
from supervisor.runner.records.uploads import UploadDurations


class ExpectedTimes:
    """Of the programs in `runners`, while one of `notices` holds. `saves`, `uploads`: what was measured so far."""

    def __init__(self, notices: ActiveNotices, runners: Mapping[str, Runner]) -> None:
        self.saves = SaveDurations(self.post)
        self.uploads = UploadDurations(self.post)
        self._notices = notices
        self._runners = runners

    def load_history(self, ledger: Ledger) -> None:
        """Goes on from what earlier daemons measured."""
        self.saves.load_history(ledger)
        self.uploads.load_history(ledger)

    def post(self) -> None:
        """While a notice holds, tells every job how long its save takes if all jobs that it concerns save at once.

        The same of uploads: all jobs share the way to the stores.
        """
        if not self._notices.by_severity:
            return
        finishing = [
            name
            for name, runner in self._runners.items()
            if self._notices.most_severe(name) is not None and notice_plan.can_flush(runner.facts)
        ]
        for name, save_s in self.saves.expected_s(finishing).items():
            runner = self._runners.get(name)
            if runner is not None and save_s != runner.facts.save_s:
                runner.post(events.SavesMeasured(save_s))
        mirrors = {name: runner.mirror for name, runner in self._runners.items() if runner.mirror is not None}
        uploading = {name for name, mirror in mirrors.items() if name in finishing or mirror.waits}
        for name, upload_s in self.uploads.expected_s(uploading).items():
            if name in mirrors:
                mirrors[name].expect(upload_s)

    def flush_times_s(self) -> dict[str, float]:
        """How long each job's flush takes (s) with one step and the margin, all jobs flushing; measured jobs only.

        With `durable = remote` the upload is part of it, once one was measured.
        """
        flushing = {name: runner for name, runner in self._runners.items() if notice_plan.can_flush(runner.facts)}
        uploads = self.uploads.expected_s([name for name, runner in flushing.items() if runner.mirror is not None])
        times_s = dict[str, float]()
        for name, save_s in self.saves.expected_s(flushing).items():
            if (runner := self._runners.get(name)) is not None:
                is_awaited = runner.mirror is not None and runner.mirror.is_awaited
                upload_s = uploads.get(name, 0.0) if is_awaited else 0.0
                step_s = notice_plan.slowest_step_s(runner.facts)
                times_s[name] = step_s + save_s + upload_s + runner.facts.policy.notice_margin
        return times_s
