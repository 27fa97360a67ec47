"""Brings the configuration last read into use, program by program, and says what that did to each."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from supervisor.config import ProgramConfig
from supervisor.config.load import start_order
from supervisor.core.listeners import event_types
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet import takeover
from supervisor.runner.fleet.configuration import ConfigurationReader
from supervisor.runner.fleet.ordering import StartTurns
from supervisor.runner.fleet.replacement import ProgramReplacement, UpdateAction
from supervisor.runner.fleet.takeover import Takeover
from supervisor.runner.fleet.under_way import ChangesUnderWay
from supervisor.runner.fleet.update_losses import Foreseen, foresee, left_in_memory
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

log = structlog.get_logger()


class StepsInMemory(Exception):
    """A program can't be removed, as steps of a job that no disk has would be lost; the text says what to do."""


class Updating:
    """Changes which programs are in use (`runners`), and their configuration; each of them by one order at a time.

    `configuration`: as it was last read. `on_added`, `on_state_change`: as for `ProgramReplacement`.
    `adoption_settled`: set once all are taken up; before, one that came into use would be started beside a worker that
    an earlier daemon left.
    """

    def __init__(
        self,
        configuration: ConfigurationReader,
        services: Services,
        runners: dict[str, Runner],
        takeover: Takeover,
        adoption_settled: asyncio.Event,
        *,
        on_state_change: Callable[[], None],
        on_added: Callable[[Runner], None],
    ) -> None:
        self._configuration = configuration
        self._services = services
        self._runners = runners
        self._adoption_settled = adoption_settled
        self._under_way = ChangesUnderWay()
        self._replacement = ProgramReplacement(
            services,
            runners,
            self._under_way.coming,
            takeover,
            on_state_change=on_state_change,
            on_added=on_added,
        )

    async def update(
        self, names: Iterable[str] | None = None, *, discard: bool = False, waits: bool = False
    ) -> list[UpdateAction]:
        """Makes the programs what the configuration last read says, side by side, touching only what differs.

        `names` limits it to some. Gives what was done, programs by name. New ones start, and old ones stop, in
        the order of their priority. A program that was stopped by its operator is changed and stays stopped. A job that
        would lose steps, or a program that runs and could not be started again, is left as it is (refused), unless
        `discard`; and so is one that another order is changing, unless it `waits` for that, and one that would save
        where another job does. One of which an earlier daemon's processes are still to end starts later.
        """
        await self._adoption_settled.wait()
        if waits:
            await self._under_way.until_free()
        configured, changes = self._configuration.programs, self._configuration.changes()
        differing = {*changes.added, *changes.changed, *changes.removed}
        chosen = sorted(differing if names is None else differing & set(names))
        taken = {name: self._under_way.refusal(name) for name in chosen if name in self._under_way}
        free = [name for name in chosen if name not in taken]
        before = self._replacement.groups()
        with self._under_way.change({name: configured.get(name) for name in free}) as let_go:
            actions = await self._apply(free, configured, before, discard, let_go)
        actions |= {name: [UpdateAction(name, "refused", why)] for name, why in taken.items()}
        return [action for name in chosen for action in actions[name]]

    async def _apply(
        self,
        chosen: list[str],
        configured: Mapping[str, ProgramConfig],
        before: set[str],
        discard: bool,
        let_go: Callable[[Iterable[str]], None],
    ) -> dict[str, list[UpdateAction]]:
        """Gives these programs, which no other order changes, the sections that are configured. What that did, by name.

        `before`: the groups that were in use; `let_go`: called with what stays as it is.
        """
        foreseen = Foreseen() if discard else await self.foresee(chosen)
        refused = dict(foreseen.losses)
        refused |= self._find_shared([name for name in chosen if name not in refused], configured)
        for name, why in refused.items():
            if name in self._runners:
                self._runners[name].not_applied = why
            log.error("configuration.not_applied", program=name, why=why)
        let_go(refused)
        actions = {name: [UpdateAction(name, "refused", why)] for name, why in refused.items()}
        applied = [name for name in chosen if name not in refused]
        used = await asyncio.to_thread(takeover.used_attempts, self._services)
        begin = {configured[name].group for name in applied if name in configured} - before
        self._services.listeners.publish([event_types.group_added(group) for group in sorted(begin)])
        in_order = sorted(applied, key=lambda name: start_order(configured.get(name) or self._runners[name].config))
        turns = StartTurns(len(in_order))
        retired = {name: asyncio.Event() for name in applied if name in self._runners}
        renewals = {
            name: self._replacement.replace(name, configured.get(name), used[name], turn, retired)
            for name, turn in zip(in_order, turns, strict=True)
        }
        stops_first = list(reversed(renewals))
        done = await turns.run_all(renewals[name] for name in stops_first)
        for name, last in zip(stops_first, done, strict=True):
            actions[name] = [*last[:-1], replace(last[-1], remark=foreseen.remarks.get(name))]
        return actions

    def _find_shared(self, chosen: list[str], configured: Mapping[str, ProgramConfig]) -> dict[str, str]:
        """By program that is to be changed, why not: another one saves where it is to save, and goes on.

        As that one may wait for a third, and so on, until none is left that does.
        """
        found: dict[str, str] = {}
        while True:
            changed = [name for name in chosen if name not in found]
            sharing = {
                name: other
                for name in changed
                for other in self._replacement.users_of_directory(configured.get(name))
                if other not in changed
            }
            if not sharing:
                return found
            for name, other in sharing.items():
                found[name] = (
                    f"cannot apply the section of {name}: {other} has its checkpoint_dir as long as its own section is "
                    f"not applied, and two jobs in one folder would restore and delete each other's checkpoints; "
                    f"run update {other} {name} once nothing stands in the way of {other}"
                )

    async def foresee(self, names: Iterable[str], *, by_next_daemon: bool = False) -> Foreseen:
        """What the configuration last read would do to programs: lose steps, or end them for good.

        `by_next_daemon`: it is applied nevertheless, after a reload.
        """
        runners = [self._runners[name] for name in names if name in self._runners]
        return await foresee(runners, self._configuration.programs, self._services, by_next_daemon=by_next_daemon)

    async def remove(self, names: Iterable[str], *, discard: bool = False) -> str | None:
        """Takes programs out of use until they are added again, also after a restart of the daemon.

        If one of them runs, waits to be started again or is being changed, nothing is done and its name is given.
        Raises StepsInMemory, unless they are to be discarded.
        """
        runners = [self._runners[name] for name in names if name in self._runners]
        if (taken := next((runner.name for runner in runners if runner.name in self._under_way), None)) is not None:
            return taken
        with self._under_way.change({runner.name: None for runner in runners}):
            return await self._remove(runners, discard)

    async def _remove(self, runners: list[Runner], discard: bool) -> str | None:
        for runner in runners:
            await runner.takeover.until(TakeoverStage.STARTABLE)
        if (running := _find_running(runners)) is not None:
            return running
        left = {} if discard else {runner.name: await left_in_memory(runner) for runner in runners}
        if (running := _find_running(runners)) is not None:  # meanwhile
            return running
        for name, text in left.items():
            if text is not None:
                remedy = f"let the disk of its checkpoint_dir be written, or run remove --discard {name}"
                raise StepsInMemory(f"cannot remove {name}: {text}; {remedy}")
        # a mirror works on without a worker: it would get in the way of the program once that is added again
        await asyncio.gather(*(retire(runner, "removed") for runner in runners))
        for runner in runners:
            self._replacement.forget(runner)
            self._services.ledger.wanted.record_removed(runner.name)
        return None


def _find_running(runners: Iterable[Runner]) -> str | None:
    """The first of them that runs or waits to be started again."""
    for runner in runners:
        if not runner.is_down or runner.waits_for is not None:
            return runner.name
    return None
