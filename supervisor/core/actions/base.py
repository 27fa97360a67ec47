"""What an action is, and how it declares where it may lead."""

from collections.abc import Callable
from typing import Any

from supervisor.core.program.effects import Effect
from supervisor.core.program.facts import ProgramFacts, State

Effects = list[Effect]
Action = Callable[[ProgramFacts, Any, float], Effects]

TARGETS: dict[Action, frozenset[State]] = {}
"""For each action, the states it may lead to; an action that is not here leaves the state unchanged."""


def leads_to(*states: State) -> Callable[[Action], Action]:
    """Declares every state an action may move the program to.

    The diagram is drawn from this, and a test walks the machine at random to hold the declarations to the truth.
    """

    def declare(action: Action) -> Action:
        TARGETS[action] = frozenset(states)
        return action

    return declare
