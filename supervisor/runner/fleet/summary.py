"""Where all programs stand, in one line: for `systemctl status`."""

from collections import Counter
from collections.abc import Collection

from supervisor.core.program.facts import State
from supervisor.protocol.plurals import counted
from supervisor.runner.program.runner import Runner

JOBS_SHOWN = 4  # what fits a terminal's line

_WORDS = {
    State.RUNNING: "running",
    State.FLUSHING: "flushing",
    State.STARTING: "starting",
    State.ADOPTING: "starting",
    State.STOPPING: "stopping",
    State.KILLING: "stopping",
    State.BACKOFF: "waiting to start again",
    State.FAILED: "failed",
}
"""States that an operator wants counted; the others (stopped, ended) only add to the total."""


def status_line(runners: Collection[Runner]) -> str:
    """As `3 programs: 2 running, 1 failed; digits step 1200/5000, saved 1100`."""
    counts = Counter(_WORDS[runner.state] for runner in runners if runner.state in _WORDS)
    by_state = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    line = counted(len(runners), "program") + (f": {by_state}" if by_state else "")
    training = [runner for runner in runners if runner.records.training.step is not None and runner.pid is not None]
    shown = [_job(runner) for runner in training[:JOBS_SHOWN]]
    if len(training) > JOBS_SHOWN:
        shown.append(f"{len(training) - JOBS_SHOWN} more")
    return "; ".join([line, *shown])


def _job(runner: Runner) -> str:
    training = runner.records.training
    total = f"/{training.total_steps}" if training.total_steps is not None else ""
    saved = f", saved {training.checkpoint.step}" if training.checkpoint is not None else ""
    return f"{runner.name} step {training.step}{total}{saved}"
