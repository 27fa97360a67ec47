"""A run of a script that goes on from the end of the run before it, as both have one checkpoint directory."""

from pathlib import Path

from worker.process.attempt import Attempt

PARTS_REMEDY = (
    "make it a job of its own, as in train.py --part 2; to train in two parts, make one run of both and choose the "
    "part by the epoch's number, as in for epoch in run.epochs(5): if epoch < 2; without a daemon, directory= can also "
    "give each a folder"
)
"""What to write where several runs of a script go on from each other."""


class FollowingRun:
    """Says of a run in `directory` that it follows another one, if it does. `parts_remedy`: what to write instead.

    After a restart, the runs that had ended before it train nothing, as they should: nothing is said of them.
    """

    def __init__(self, attempt: Attempt, directory: Path | None, parts_remedy: str) -> None:
        self._attempt = attempt
        self._directory = directory
        self._parts_remedy = parts_remedy
        self._begun_at = 0

    def begin(self, step: int) -> None:
        """The run begins at `step`, with the state of the one before it."""
        self._begun_at = step
        self._say_once(
            "follows",
            f"this run goes on from step {step}, where the script's run before it had ended, with the weights "
            f"and all else of that step, as both have the checkpoint directory {self._directory}; if it is to "
            f"begin anew, {self._parts_remedy}",
        )

    def end(self, step: int) -> None:
        """Its training is complete at `step`; one that follows another and has trained nothing says why."""
        if step != self._begun_at:
            self._attempt.trained_in |= {self._directory}
        else:
            self._say_once(
                "no step",
                f"this run made no step: it went on from step {step}, where the script's run before it had ended; "
                f"{self._parts_remedy}",
            )
        self._attempt.ended_in |= {self._directory}

    def _say_once(self, remark: str, text: str) -> None:
        """Once for the runs in this directory, if one before this one has trained there in this process."""
        is_next = self._begun_at > 0 and self._directory in self._attempt.trained_in
        if is_next and (self._directory, remark) not in self._attempt.explained:
            self._attempt.explained |= {(self._directory, remark)}
            self._attempt.reporter.show_message(text)
