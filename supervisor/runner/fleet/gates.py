"""Holds programs back until those they depend on are ready."""

import asyncio
from collections.abc import Mapping

from supervisor.config.section_relations import dependency_graph
from supervisor.core.fleet import dependencies
from supervisor.core.program import events
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.service.loop_share import LoopShare
from supervisor.runner.program.runner import Runner


class DependencyGates:
    """Starts of programs that are in use (`runners`). `recheck_soon` is to be called after every change.

    `share`: of the event loop, for all programs.
    """

    def __init__(self, runners: Mapping[str, Runner], ledger: Ledger, share: LoopShare) -> None:
        self._runners = runners
        self._ledger = ledger
        self._share = share
        self._waiting: set[str] = set()
        self._is_recheck_due = False

    def graph(self) -> dict[str, frozenset[str]]:
        """By program in use: those in use that it depends on."""
        return dependency_graph({name: runner.config for name, runner in self._runners.items()})

    def start_when_ready(self, runner: Runner, anew: bool = True) -> None:
        """Starts it once all it depends on is ready; meanwhile it is wanted and says what it waits for.

        `anew`: an operator wants it, so that earlier failures count no more.
        """
        runner.takeover.is_resuming = runner.takeover.is_resuming and not anew
        if not self._unready(runner):
            runner.post(events.StartRequested(runner.takeover.is_resuming))
            return
        if not runner.wanted:
            runner.set_wanted(True)
            self._ledger.wanted.record_wanted(runner.name, True)
        self._waiting.add(runner.name)
        runner.hold_back(self.describe_wait(runner))
        self.recheck_soon()

    def is_held_back(self, runner: Runner) -> bool:
        """Whether something it depends on is not ready."""
        return bool(self._unready(runner))

    def needed_and_down(self, runner: Runner) -> list[Runner]:
        """What it needs, near or far, that nothing will start but an operator; the farthest first."""
        if not runner.config.needed_names:
            return []
        graph = self.graph()
        down = {other.name: other for other in self._unready_anywhere(runner, graph) if self._is_down(other)}
        return sorted(down.values(), key=lambda other: len(dependencies.all_needed(graph, other.name)))

    def is_hopeless(self, runner: Runner) -> bool:
        """Whether it waits for something that only a person can start."""
        graph = self.graph()
        if any(dependencies.is_hopeless(other.state, other.wanted) for other in self._unready_anywhere(runner, graph)):
            return True
        return any(None in self._unready(waiter).values() for waiter in self._with_needed(runner, graph))

    def recheck_soon(self) -> None:
        """Something is different: who waits is looked at soon, once for many changes."""
        if self._waiting and not self._is_recheck_due:
            self._is_recheck_due = True
            asyncio.get_running_loop().call_soon(self._recheck)

    def _recheck(self) -> None:
        self._is_recheck_due = False
        for name in sorted(self._waiting):
            runner = self._runners.get(name)
            if runner is None or runner.waits_for is None:
                self._waiting.discard(name)
            elif self._unready(runner):
                runner.hold_back(self.describe_wait(runner))
            elif self._share.is_used_up:  # many may wait for one
                self.recheck_soon()
                return
            else:
                self._waiting.discard(name)
                runner.post(events.StartRequested(runner.takeover.is_resuming))

    def _with_needed(self, runner: Runner, graph: dependencies.Graph) -> list[Runner]:
        """The program, and what it needs, near or far."""
        return [runner, *(self._runners[name] for name in dependencies.all_needed(graph, runner.name))]

    def _unready_anywhere(self, runner: Runner, graph: dependencies.Graph) -> list[Runner]:
        """What is not as it, or something that it needs, waits for it to be; a program may be there several times."""
        waiters = self._with_needed(runner, graph)
        return [other for waiter in waiters for other in self._unready(waiter).values() if other is not None]

    def _unready(self, runner: Runner) -> dict[str, Runner | None]:
        """What it waits for, by name; None for a name that is not in use."""
        unready: dict[str, Runner | None] = {}
        conditions = (
            (dependencies.is_ready, runner.config.depends_on),
            (dependencies.has_ended, runner.config.depends_on_end),
        )
        for is_met, names in conditions:
            for name in names:
                meant = [self._runners[name]] if name in self._runners else self._group(name)
                unready |= {other.name: other for other in meant if not is_met(other.state, other.takeover.was_done)}
                if not meant:
                    unready[name] = None
        return unready

    def _group(self, name: str) -> list[Runner]:
        groups = {key: runner.config.group for key, runner in self._runners.items()}
        return [self._runners[member] for member in dependencies.resolve_name(name, groups)]

    def describe_wait(self, runner: Runner) -> str:
        """What it waits for now."""
        unready = self._unready(runner).items()
        return dependencies.describe_unready((name, other.state if other else None) for name, other in unready)

    @staticmethod
    def _is_down(runner: Runner) -> bool:
        return runner.is_down and runner.waits_for is None
