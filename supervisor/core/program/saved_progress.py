"""How far a job has come, and what of that is in a checkpoint: what is said to whoever ends its training.

Every answer to a command that ends or replaces training, the attempt's text in the history, the log and the status are
made from this one value, so that none of them says "stopped" where steps are lost. It holds the account of progress
(`account.py`) against the last step that the worker reported.
"""

from dataclasses import dataclass

from supervisor.protocol.plurals import counted


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """The progress of one attempt of a job.

    `step`: the last one that is known of, None if it did none. `safe_step`: at which the next start begins;
    `checkpoint`: the job's newest one, None if there is none, or if newer ones were set aside for an operator, who
    named only a step. `why`: why the steps since then are in no checkpoint, in words; None if nothing failed, or that
    is not known. `is_known`: False if it was ended before it said how far it had come.
    """

    attempt: int
    step: int | None
    safe_step: int
    checkpoint: str | None = None
    why: str | None = None
    is_known: bool = True

    @property
    def is_safe(self) -> bool:
        """Whether nothing would be trained again."""
        return self.is_known and not self.unsaved

    @property
    def unsaved(self) -> int:
        """The number of steps that would be trained again."""
        return max(0, (self.step or 0) - self.safe_step)

    def describe_end(self, ended: str = "stopped") -> str:
        """What is said of training that is over; `ended`: how it ended, in a word or two."""
        if not self.is_safe:
            at = "" if self.step is None else f" at step {self.step}"
            return f"{ended}{at}; {self.consequence(self.why)}"
        if self.step is None:
            return ended if self.checkpoint is None else f"{ended}; its newest checkpoint is of step {self.safe_step}"
        return f"{ended} at step {self.step}" + ("" if self.checkpoint is None else f", saved in {self.checkpoint}")

    def describe_present(self) -> str:
        """What is said of training that goes on, or is about to end."""
        if self.step is None:
            return "it has done no step yet"
        behind = "" if not self.unsaved else f", {counted(self.unsaved, 'step')} behind"
        why = "" if self.why is None else f"; {self.why}"
        return f"it is at step {self.step}; {self._newest}{behind}{why}"

    def consequence(self, why: str | None = None) -> str:
        """What follows from steps that are not saved."""
        because = "" if why is None else f", as {why}"
        again = f"{counted(self.unsaved, 'step')} will be trained again"
        return f"{self._newest}{because}; {again if self.is_known else 'what it did since then will be trained again'}"

    @property
    def _newest(self) -> str:
        if self.checkpoint is not None:
            return f"the newest checkpoint is of step {self.safe_step}"
        return (
            "there is no checkpoint" if not self.safe_step else f"it began at step {self.safe_step} and has saved none"
        )
