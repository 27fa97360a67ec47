"""Keys for commands that run when something happens to a program; [supervisord] and every program have them."""

from collections.abc import Mapping
from typing import Annotated

from supervisor.config.schema import texts
from supervisor.config.schema.section import (
    SectionModel,
    key,
    parsed_by,
    section_model,
)

Command = Annotated[tuple[str, ...] | None, parsed_by(texts.command)]


@section_model
class HookKeys(SectionModel):
    """Commands by event; each is run as the daemon's user, with JSON on its standard input (docs/hooks.md)."""

    hook_failed: Command = key(
        None,
        "Command run when a program has failed and is not started again, with JSON on its standard input "
        "(docs/hooks.md).",
        shown="none",
    )
    hook_relaunched: Command = key(
        None, "Run when a program is started again after it ended unexpectedly.", shown="none"
    )
    hook_refused: Command = key(
        None,
        "Run for each checkpoint that is refused: damaged, rolled back, or unfit for the program.",
        shown="none",
    )
    hook_unsaved: Command = key(
        None,
        "Run when a job was to save before it ended (a stop, a shutdown, an update), and could not.",
        shown="none",
    )
    hook_replay_difference: Command = key(
        None,
        "Run when steps that were trained a second time gave other bits (docs/replay.md).",
        shown="none",
    )
    hook_slower: Command = key(
        None,
        "Run when a job has trained a fifth slower than usual for five minutes (docs/hangs.md).",
        shown="none",
    )
    hook_done: Command = key(None, "Run when a job has finished training.", shown="none")
    hook_notice: Command = key(None, "Run when a program is told that the host is going away.", shown="none")

    hook_gpu_fault: Command = key(
        None,
        "Run when a GPU is left out and its reset or a reboot is due, once no job uses it any more (docs/gpus.md).",
        shown="none",
    )

    def hooks(self) -> Mapping[str, tuple[str, ...] | None]:
        """The commands by event."""
        return {
            "failed": self.hook_failed,
            "relaunched": self.hook_relaunched,
            "refused": self.hook_refused,
            "unsaved": self.hook_unsaved,
            "replay_difference": self.hook_replay_difference,
            "slower": self.hook_slower,
            "done": self.hook_done,
            "notice": self.hook_notice,
            "gpu_fault": self.hook_gpu_fault,
        }
