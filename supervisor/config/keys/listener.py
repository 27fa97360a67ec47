"""Event listeners: what a section [eventlistener:NAME] has besides a program's keys."""

from typing import Annotated

from supervisor.config.schema import values
from supervisor.config.schema.section import (
    SectionModel,
    key,
    parsed_by,
    required,
    section_model,
)
from supervisor.config.schema.types import Positive
from supervisor.core.listeners.occurrences import TYPES
from supervisor.ini.problems import nearest_word

BUFFER_SIZE = 1000  # Supervisor's 10 are lost while a listener starts; 1000 state changes are some 300 KB
DEFAULT_HANDLER = "supervisor.dispatchers:default_handler"


def _events(text: str) -> tuple[str, ...]:
    """Names of event types, separated by commas."""
    found = tuple(name.upper() for name in values.names(text))
    for name in found:
        if name not in TYPES:
            meant = nearest_word(name, TYPES)
            raise ValueError(
                f"names {name!r:.80}, which is no event type; "
                + (f"did you mean {meant}?" if meant else "EVENT stands for all of them")
            )
    return found


def _handler(text: str) -> str:
    if text != DEFAULT_HANDLER:
        raise ValueError(
            f"is {text!r:.80}, and only {DEFAULT_HANDLER} is known: the daemon loads no code of others; have the "
            f"listener answer RESULT 2 and OK, or RESULT 4 and FAIL"
        )
    return text


@section_model
class ListenerConfig(SectionModel):
    """A program that is told what happens, on its standard input, and answers on its standard output."""

    events: Annotated[tuple[str, ...], parsed_by(_events)] = required(
        "Event types it is told of, separated by commas: EVENT is all, PROCESS_STATE every change of a program's state."
    )
    buffer_size: Positive = key(
        BUFFER_SIZE,
        "How many events wait at most, when its processes are busy or down. Then the oldest is dropped: the log and "
        "`status` say so.",
    )
    result_handler: Annotated[str, parsed_by(_handler)] = key(
        DEFAULT_HANDLER, "Accepted with this value only: an answer of OK is done with, any other is sent again."
    )
