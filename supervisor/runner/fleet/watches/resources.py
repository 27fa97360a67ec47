"""Looks at running programs from outside: how much memory they hold, and whether they say that they are well."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from supervisor.core.failures.restart import Cause
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.blocking_calls import ThreadsOfUsers
from supervisor.host.health_checks import HealthChecks, NotRun
from supervisor.host.processes import marks
from supervisor.host.resources import usage
from supervisor.protocol.plurals import counted
from supervisor.runner.attempt.launching import command_beside
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.runner import Runner

LOOK_EVERY_S = 1.0  # a limit is for what grows; what takes a gigabyte within a second is the kernel's to stop
CHECKS_AT_ONCE = 8  # threads for each user; a check that takes its whole timeout holds one

log = structlog.get_logger()


@dataclass(slots=True)
class _HealthRecord:
    """What is known of one attempt. `due_at`: monotonic, when it is asked next."""

    attempt: int
    due_at: float
    failures: int = 0
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class _LimitExceeded:
    """What an attempt held when it was first seen above its limit."""

    attempt: int
    memory_bytes: int


class ResourceWatch:
    """All programs, by `runners`, until cancelled. `services`: what programs share."""

    def __init__(self, runners: Mapping[str, Runner], services: Services) -> None:
        self._runners = runners
        self._services = services
        self._health: dict[str, _HealthRecord] = {}
        self._over: dict[str, _LimitExceeded] = {}
        self._needed = asyncio.Event()
        self._is_update_due = False
        self._checks = HealthChecks()
        self._threads = ThreadsOfUsers(CHECKS_AT_ONCE, "healthcheck")
        self._tasks: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Looks once a second while something runs that has to be looked at, and sleeps otherwise."""
        try:
            while True:
                await self._needed.wait()
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    await self._check_memory()
                except (OSError, RuntimeError) as error:  # the latter: the host has no thread to spare
                    log.error("memory.unread", error=str(error), effect="memory_limit holds nobody at the moment")
                self._start_due_checks()
                self._update_needed()
        finally:
            for task in self._tasks:
                task.cancel()
            self._checks.close()
            self._threads.close()

    def on_change(self) -> None:
        """To be called when a program's state is another one; looks at them all soon, once for many changes."""
        if not (self._needed.is_set() or self._is_update_due):
            self._is_update_due = True
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._update_needed)

    def _update_needed(self) -> None:
        self._is_update_due = False
        for known in (self._health, self._over):
            for name in known.keys() - self._runners.keys():
                del known[name]
        if any(_is_watched(runner) for runner in self._runners.values()):
            self._needed.set()
        else:
            self._needed.clear()

    async def _check_memory(self) -> None:
        limited = [
            (runner, runner.attempt, runner.pid, runner.config.memory_limit)
            for runner in self._runners.values()
            if runner.config.memory_limit is not None and runner.pid is not None
        ]
        if not limited:
            return
        used = await asyncio.to_thread(usage.usage_of_trees, {pid for _, _, pid, _ in limited if pid is not None})
        for runner, attempt, pid, limit in limited:
            its = used.get(pid) if pid is not None else None
            if its is not None and limit is not None and its.memory_bytes > limit:
                self._on_limit_exceeded(runner, attempt, its, limit)

    def _on_limit_exceeded(self, runner: Runner, attempt: int, its: usage.ResourceUsage, limit: int) -> None:
        """It is stopped, a job after a flush; but what grows on meanwhile could take all that the host has."""
        at_first = self._over.get(runner.name)
        if at_first is None or at_first.attempt != attempt:
            self._over[runner.name] = _LimitExceeded(attempt, its.memory_bytes)
        elif its.memory_bytes > at_first.memory_bytes + limit / 2 and runner.is_stopping:
            log.warning("memory.grows_on", program=runner.name, attempt=attempt, memory_bytes=its.memory_bytes)
            runner.post(events.ShutdownHurried())
        held = f"held {its.memory_bytes} bytes in {counted(its.processes, 'process', 'processes')}"
        text = f"{held}, more than memory_limit = {limit}"
        runner.post(events.RestartRequired(attempt, Cause.MEMORY_LIMIT, text))

    def _start_due_checks(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, runner in self._runners.items():
            if runner.config.healthcheck_command is None or runner.state is not State.RUNNING:
                continue
            known = self._health.get(name)
            if known is None or known.attempt != runner.attempt:
                known = self._health[name] = _HealthRecord(runner.attempt, now + runner.config.healthcheck_interval)
            if now >= known.due_at and not known.is_asked:
                known.is_asked = True
                task = asyncio.create_task(self._check_health(runner, known))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _check_health(self, runner: Runner, known: _HealthRecord) -> None:
        config, loop = runner.config, asyncio.get_running_loop()
        command = config.healthcheck_command or ()
        check = command_beside(config, "healthcheck_command", command, runner.pid, self._services)
        if (attempt := runner.current.attempt) is not None:  # what it leaves behind ends with the program
            environment = {**check.environment, marks.VARIABLE: attempt.mark}
            check = replace(check, environment=environment, cgroup=runner.current.cgroup)
        try:
            why = await self._threads.run(check.user, self._checks.failure_of, check)
        except NotRun as error:  # its user's directory may be away, or the host has no process to spare
            if runner.attempt == known.attempt and runner.records.process.health_unknown != str(error):
                runner.records.process.health_unknown = str(error)
                log.error("health.unknown", program=runner.name, why=str(error), effect="the program goes on")
            return
        finally:
            known.is_asked, known.due_at = False, loop.time() + config.healthcheck_interval
        runner.records.process.health_unknown = None
        known.failures = 0 if why is None else known.failures + 1
        if why is None:
            return
        log.warning("program.unwell", program=runner.name, why=why, in_a_row=known.failures)
        if known.failures >= config.healthcheck_retries:
            known.failures = 0
            runner.post(events.RestartRequired(known.attempt, Cause.UNHEALTHY, why))


def _is_watched(runner: Runner) -> bool:
    config = runner.config
    return runner.pid is not None and not (config.memory_limit is None and config.healthcheck_command is None)
