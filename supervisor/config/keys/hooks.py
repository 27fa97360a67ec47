"""The keys for commands that are run when something happened; [supervisord] and every program have them."""

from collections.abc import Mapping
from typing import Annotated

from supervisor.config.schema import values
from supervisor.config.schema.section import (
    SectionModel,
    key,
    parsed_by,
    section_model,
)

Command = Annotated[tuple[str, ...] | None, parsed_by(values.command)]
SHOWN = "none; for a program: that of [supervisord]"


@section_model
class HookKeys(SectionModel):
    """Commands by event; each is run as the daemon's user, with JSON on its standard input (docs/hooks.md)."""

    hook_failed: Command = key(
        None, "Command run when a program is given up, with JSON on its standard input (hooks.md).", shown=SHOWN
    )
    hook_relaunched: Command = key(
        None, "The same when a program is started again after an end that nobody wanted.", shown=SHOWN
    )
    hook_refused: Command = key(None, "The same for each checkpoint that is found damaged.", shown=SHOWN)
    hook_done: Command = key(None, "The same when a job has trained to its end.", shown=SHOWN)
    hook_notice: Command = key(None, "The same when a program hears that the host goes away.", shown=SHOWN)

    def hooks(self) -> Mapping[str, tuple[str, ...] | None]:
        """The commands by event."""
        return {
            "failed": self.hook_failed,
            "relaunched": self.hook_relaunched,
            "refused": self.hook_refused,
            "done": self.hook_done,
            "notice": self.hook_notice,
        }
