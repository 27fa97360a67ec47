"""What makes several processes of sections: numprocs, [group:NAME], and pools of event listeners."""

import re
from typing import Annotated

from supervisor.config.schema import quantities, texts
from supervisor.config.schema.section import (
    Count,
    Positive,
    Priority,
    SectionModel,
    key,
    parsed_by,
    required,
    section_model,
)
from supervisor.core.listeners.event_types import TYPES
from supervisor.ini.problems import nearest_word

BUFFER_SIZE = 1000  # Supervisor's 10 are lost while a listener starts; 1000 state changes are some 300 KB
DEFAULT_HANDLER = "supervisor.dispatchers:default_handler"
MAX_NUMPROCS = 10_000  # more are a typing error: each is a process, two pipes and two logs


@section_model
class ProcessesConfig(SectionModel):
    """How many processes a program's section stands for, and what they are called. More than one make a group."""

    numprocs: Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 0, MAX_NUMPROCS))] = key(
        1,
        "How many processes to run (0: none), each with its own `%(process_num)s` and, of a job, its own "
        "checkpoint_dir.",
    )
    numprocs_start: Count = key(0, "Number of the first process.")
    process_name: str = key(
        "%(program_name)s",
        "Name of each process. If there are several, it must contain `%(process_num)s`, as in "
        "`%(program_name)s_%(process_num)02d`.",
    )


@section_model
class GroupConfig(SectionModel):
    """Programs that are started, stopped and shown together, as `GROUP:*`; each is then called `GROUP:NAME`."""

    programs: Annotated[tuple[str, ...], parsed_by(texts.name_list)] = required(
        "Names of the programs' sections, separated by commas. A program can be in only one group."
    )
    priority: Priority = key(
        999,
        "Groups with lower numbers start first and stop last; within a group, the programs' own numbers decide.",
    )


def _events(text: str) -> tuple[str, ...]:
    """Names of event types, separated by commas."""
    names = tuple(name.upper() for name in texts.name_list(text))
    for name in names:
        if name not in TYPES:
            meant = nearest_word(name, TYPES)
            raise ValueError(
                f"names {name!r:.80}, which is no event type; "
                + (f"did you mean {meant}?" if meant else "EVENT stands for all of them")
            )
    return names


def _handler(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError(f"is {text!r:.80}, not MODULE:FUNCTION; delete the line")
    return text


@section_model
class ListenerConfig(SectionModel):
    """A program that is told what happens, on its standard input, and answers on its standard output."""

    events: Annotated[tuple[str, ...], parsed_by(_events)] = required(
        "Event types that the listener gets, separated by commas. EVENT stands for all, PROCESS_STATE for every "
        "change of a program's state."
    )
    buffer_size: Positive = key(
        BUFFER_SIZE,
        "How many events may wait for the listener's processes. Beyond that, the oldest is dropped, as the log and "
        "`status` report.",
    )
    result_handler: Annotated[str, parsed_by(_handler)] = key(
        DEFAULT_HANDLER,
        "With this value, an event is finished if the answer is OK, and sent again if not. With any other, whose "
        "code is not loaded, it is sent again only after FAIL.",
    )

    @property
    def has_foreign_handler(self) -> bool:
        """Whether its answers are for code that the daemon does not load."""
        return self.result_handler != DEFAULT_HANDLER
