"""Draws the transition table as a Mermaid state diagram; docs/state-machine.md holds the result and a test compares."""

import re

from supervisor.core.actions.base import TARGETS
from supervisor.core.job import TABLE
from supervisor.core.program.facts import State


def mermaid() -> str:
    """The text of a `stateDiagram-v2`: one arrow for each pair of states, labelled with the events that lead there."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), action in TABLE.items():
        for target in sorted(TARGETS.get(action, frozenset())):
            if target is not state:
                arrows.setdefault((state, target), []).append(_words(event.__name__))
    order = {state: number for number, state in enumerate(State)}
    lines = [
        f"    {source} --> {target}: {', '.join(labels)}"
        for (source, target), labels in sorted(arrows.items(), key=lambda item: (order[item[0][0]], order[item[0][1]]))
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.STOPPED}", *lines])


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - the command that refreshes docs/state-machine.md
