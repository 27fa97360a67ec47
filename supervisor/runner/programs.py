"""All programs of the daemon: adding, removing, updating to a new configuration, leaving together."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from supervisor.config import Config, ProgramConfig
from supervisor.core import events as fact
from supervisor.core.facts import ALIVE, State
from supervisor.host import leftover
from supervisor.host.ledger import OpenAttempt
from supervisor.runner.acts import Services
from supervisor.runner.runner import Runner

FORGOTTEN_PATIENCE_S = 30.0  # for the worker of a program that is no longer configured; its flush_timeout is unknown

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new configuration would change, by program name."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


class Programs:
    """The runners by name. `read` gives the configuration file's present content; it raises ConfigError."""

    def __init__(self, config: Config, read: Callable[[], Config], services: Services) -> None:
        self.runners = {name: Runner(each, services) for name, each in config.programs.items()}
        self.closing = False
        self._configured: Mapping[str, ProgramConfig] = config.programs
        self._read = read
        self._services = services
        self._updating = asyncio.Lock()

    @property
    def configured(self) -> Mapping[str, ProgramConfig]:
        """The programs of the configuration as it was last read, whether in use or not."""
        return self._configured

    async def begin(self) -> None:
        """Takes up every configured program, side by side; what was wanted before, or starts by itself, is started."""
        ledger = self._services.ledger
        wanted, last, unfinished = await asyncio.gather(
            asyncio.to_thread(ledger.wanted),
            asyncio.to_thread(ledger.last_attempts),
            asyncio.to_thread(ledger.unfinished),
        )
        leftovers = {each.program: each for each in unfinished}
        async with asyncio.TaskGroup() as group:
            for name, runner in self.runners.items():  # in the order of their priority
                begin = wanted.get(name, runner.config.autostart)
                group.create_task(self._take_up(runner, leftovers.pop(name, None), last.get(name, 0), begin))
            for forgotten in leftovers.values():
                group.create_task(self._end_leftover(forgotten, FORGOTTEN_PATIENCE_S))

    async def reread(self) -> Changes:
        """Reads the configuration and says what is different; nothing is touched. Raises ConfigError."""
        self._configured = (await asyncio.to_thread(self._read)).programs
        return self._changes()

    async def update(self, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """Makes the programs what the configuration last read says, touching only what differs.

        `names` limits it to some. Gives (name, what was done) in the order it was done.
        """
        async with self._updating:
            changes, done = self._changes(), list[tuple[str, str]]()
            chosen = set(names) if names is not None else {*changes.added, *changes.changed, *changes.removed}
            for name in (*changes.removed, *changes.changed):
                if name in chosen:
                    await self._remove(self.runners[name])
                    done.append((name, "stopped"))
                    done.append((name, "removed" if name in changes.removed else "updated"))
            for name in (*changes.added, *changes.changed):
                if name in chosen:
                    await self._add(self._configured[name])
                    if name in changes.added:
                        done.append((name, "added"))
            return done

    async def remove(self, name: str) -> bool:
        """Takes a program out of use; False, with nothing done, if it runs or waits to be started again."""
        async with self._updating:
            runner = self.runners.get(name)
            if runner is None:
                return True
            await runner.taken_up.wait()
            if runner.state in ALIVE or runner.state is State.BACKOFF:
                return False
            del self.runners[name]
            return True

    async def leave(self) -> None:
        """Flushes and stops all programs side by side; returns when no process is left."""
        self.closing = True
        runners = list(self.runners.values())
        for runner in runners:
            runner.post(fact.ShutdownStarted())
        await asyncio.gather(*(_until_gone(runner) for runner in runners))

    def hurry(self) -> None:
        """Somebody asked a second time: every program takes the next harder way to stop."""
        for runner in self.runners.values():
            runner.post(fact.Hurried())

    def _changes(self) -> Changes:
        used, configured = self.runners, self._configured
        return Changes(
            added=tuple(sorted(configured.keys() - used.keys())),
            changed=tuple(
                sorted(name for name in configured.keys() & used.keys() if configured[name] != used[name].config)
            ),
            removed=tuple(sorted(used.keys() - configured.keys())),
        )

    async def _add(self, config: ProgramConfig) -> None:
        last = (await asyncio.to_thread(self._services.ledger.last_attempts)).get(config.name, 0)
        runner = self.runners[config.name] = Runner(config, self._services)
        await self._take_up(runner, None, last, config.autostart)

    async def _remove(self, runner: Runner) -> None:
        await runner.taken_up.wait()
        runner.post(fact.StopRequested())
        await _until_gone(runner)
        del self.runners[runner.name]

    async def _take_up(self, runner: Runner, found: OpenAttempt | None, last_attempt: int, begin: bool) -> None:
        if found is not None:
            await self._end_leftover(found, runner.patience_s)
        await runner.learn_attempts(last_attempt)
        runner.taken_up.set()
        if begin and not self.closing:
            runner.post(fact.StartRequested())

    async def _end_leftover(self, found: OpenAttempt, patience_s: float) -> None:
        """An attempt without an end: the daemon died under it. Two workers for one job must never be."""
        text = await leftover.end(found.pid, found.start_time, patience_s)
        log.warning("worker.left_over", program=found.program, attempt=found.attempt, pid=found.pid, how=text)
        self._services.ledger.attempt_ended(
            found.program, found.attempt, "daemon-lost", text, None, None, None, leftover.wall_now()
        )


async def _until_gone(runner: Runner) -> None:
    """Waits until there is no process and none to come."""
    await runner.until(lambda: True if runner.state not in ALIVE and runner.state is not State.BACKOFF else None)
