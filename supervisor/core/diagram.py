"""Draws the transition table as a Mermaid state diagram; docs/state-machine.md holds the result and a test compares."""

import re

from supervisor.core.actions.transitions import TARGETS
from supervisor.core.job import TABLE
from supervisor.core.program.facts import ALIVE, State

_NAME_OF_ALIVE = "PROCESS"


def mermaid() -> str:
    """The text of a `stateDiagram-v2`: one arrow for each pair of states, labelled with the events that lead there.

    The states with a process are inside of one, from which an arrow leads where an event leads from all of them.
    """
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), action in TABLE.items():
        for target in sorted(TARGETS.get(action, frozenset())):
            if target is not state:
                arrows.setdefault((state, target), []).append(_words(event.__name__))
    alive = [state for state in State if state in ALIVE]
    lines = ["stateDiagram-v2", f"    [*] --> {State.STOPPED}", f"    state {_NAME_OF_ALIVE} {{"]
    lines += [*(f"        {state}" for state in alive), "    }"]
    for target in (state for state in State if state not in ALIVE):
        leading = [arrows.get((state, target), []) for state in alive]
        shared = [label for label in leading[0] if all(label in labels for labels in leading)]
        for labels in leading:
            labels[:] = [label for label in labels if label not in shared]
        lines += _arrow(_NAME_OF_ALIVE, target, shared)
    for source in State:
        for target in State:
            lines += _arrow(source, target, arrows.get((source, target), []))
    return "\n".join(lines)


def _arrow(source: str, target: str, labels: list[str]) -> list[str]:
    return [f"    {source} --> {target}: {', '.join(labels)}"] if labels else []


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - the command that refreshes docs/state-machine.md
