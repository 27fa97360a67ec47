"""What the parts of one program share."""

from collections.abc import Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.program.events import Event
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.runner.attempt.services import Services
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords


@dataclass(frozen=True, slots=True)
class ProgramServices:
    """One program, for whatever works for it: what it is, what it may use, whom it tells.

    `records`: what is known of it. `observers`: who follow it, as one. `post`: takes what happens to it. `tasks`: what
    takes a while and nobody waits for. `log`: names the program in each line.
    """

    config: ProgramConfig
    services: Services
    records: ProgramRecords
    observers: ProgramObserver
    post: Callable[[Event], None]
    tasks: BackgroundTasks
    log: FilteringBoundLogger
