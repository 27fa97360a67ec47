"""Watches the GPUs of this host, once a job needs them, and carries out what `core/gpus/guard.py` decides.

Nothing here runs on a host without NVIDIA's driver, or for plain programs alone.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from supervisor.core.failures.gpu_activity import GpuLoad
from supervisor.core.gpus import faults
from supervisor.core.gpus.decisions import AskOperator, Decision, GiveUp, GpuUse, Incident, Restart, Returned
from supervisor.core.gpus.guard import Guard
from supervisor.core.gpus.health import VERSION_MISMATCH
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.gpus.xid import XidLine
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.gpu_guard import messages
from supervisor.host.gpu_guard.client import GpuHelper, GuardClient, HelperHangs
from supervisor.host.gpu_guard.store import GuardStore, read_boot_id
from supervisor.host.hooks import HookRunner
from supervisor.runner.gpus.fault_reports import FaultReports
from supervisor.runner.listeners.hub import ListenerHub

LOCK = "gpu_guard.lock"
HOOKS_EVERY_S = 1.0  # while a hook waits for its GPU to be free
FIRST_LIST_S = 3.0  # the helper takes half a second to start
MEMORY_WITHIN_S = 2.0  # how often `top` draws
LOADS_WITHIN_S = 3.0  # less than lies between two looks at a silent job

log = structlog.get_logger()


class GpuFleet(Protocol):
    """The jobs of this daemon, as far as GPUs are concerned."""

    def uses(self) -> Sequence[GpuUse]:
        """The jobs that have a process."""

    def owner_of(self, pid: int) -> str | None:
        """The job to which a process belongs."""

    def restart(self, restart: Restart) -> None:
        """Ends an attempt, so that another one begins."""

    def hook_commands(self, event: str, programs: Iterable[str]) -> set[tuple[str, ...]]:
        """What the operator wants to be run for an event of these programs, or of none."""


@dataclass(frozen=True, slots=True)
class GpuLook:
    """All GPUs at one moment. `seen`: the ids of all that are to be there; `unusable`: why none can be used."""

    gpus: tuple[Gpu, ...]
    seen: frozenset[str]
    unusable: str | None = None


class GpuGuard:
    """All GPUs of this host. `acts`: False to report only (`on_gpu_fault = report`)."""

    def __init__(
        self, helper: GpuHelper, state_dir: Path, fleet: GpuFleet, hooks: HookRunner, listeners: ListenerHub, acts: bool
    ) -> None:
        self._fleet = fleet
        self._reports = FaultReports(fleet.hook_commands, hooks, listeners)
        self._store = GuardStore(state_dir)
        self._path = state_dir / LOCK
        self._threads = BlockingCalls()
        self._client = GuardClient(helper, self._path, lambda: self.guard.records.content.log_number, self._on_news)
        self.guard = Guard(acts=acts)
        """What is known and decided; for reading only."""
        self.sources: messages.Sources = messages.Sources()
        """What can't be followed, and why."""
        self._given_up: dict[str, GiveUp] = {}
        self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._hook_timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None

    # --- its helper ---

    @property
    def is_started(self) -> bool:
        """Whether GPUs are watched."""
        return self._client.is_started

    @property
    def hangs(self) -> str | None:
        """Why the driver can't be asked; None if it can, as far as known."""
        return self._client.hangs

    async def start_once(self) -> None:
        """Watches GPUs from now on, if this host has NVIDIA's driver."""
        if self._starting is None:
            if not self._client.has_driver:
                return
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        records = await self._threads.run(self._path, self._store.load)
        boot_id = read_boot_id()
        is_same_boot = records.boot_id == boot_id
        log_number = records.log_number if is_same_boot else None
        self.guard.records.content = replace(records, boot_id=boot_id, log_number=log_number)
        if not is_same_boot:
            self._carry_out(self.guard.on_boot_changed(time.time()))
        self._client.start()
        self._arm_hooks()

    def on_change(self) -> None:
        """A program's state is another one. The driver may be loaded by the first job that needs it."""
        if self.is_started:
            self._client.set_pace(bool(self._fleet.uses()))
        elif self._starting is None and self._fleet.uses() and self._client.has_driver:
            self._starting = asyncio.create_task(self._start())

    def close(self) -> None:
        """Ends the helper, or leaves it behind."""
        self._client.close()
        if self._hook_timer is not None:
            self._hook_timer.cancel()

    async def flush(self) -> None:
        """Waits until what is known is on the disk."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=1.0)

    # --- what is asked of it ---

    async def await_first_list(self) -> None:
        """Waits for a moment until it is known which GPUs there are, if the helper was only just started."""
        if self.is_started and not self.guard.listed:
            with contextlib.suppress(HelperHangs):
                await self._client.list_gpus(FIRST_LIST_S)

    def uses(self) -> list[GpuUse]:
        """The jobs that run."""
        return list(self._fleet.uses())

    async def look(self) -> GpuLook:
        """All GPUs now, with the processes that hold their memory. Raises HelperHangs."""
        answer = await self._client.list_gpus()
        if answer.error and answer.is_from_nvml:
            return GpuLook((Gpu(0, "", trouble=answer.why),), frozenset())
        seen = self.guard.seen if answer.is_from_nvml else frozenset[str]()
        return GpuLook(tuple(self.guard.gpus(answer.gpus)), seen, self.guard.host_fault)

    def last_look(self) -> GpuLook:
        """All GPUs as they were last heard of, without asking the driver."""
        gpus = (replace(gpu, pids=frozenset()) for gpu in self.guard.gpus())
        return GpuLook(tuple(gpus), self.guard.seen, self.guard.host_fault)

    async def memory_by_pid(self) -> Mapping[int, int] | None:
        """GPU memory in bytes by process id; None if nobody can tell."""
        await self.start_once()
        if not self.is_started:
            return None
        try:
            held = await self._client.memory_held(MEMORY_WITHIN_S)
        except HelperHangs:
            return None
        if held.by_pid is None:
            return None
        return {int(pid): size for pid, size in held.by_pid.items() if pid.isdecimal()}

    async def loads_of(self, program: str) -> tuple[GpuLoad, ...] | None:
        """What each GPU of a job has done in the last second; None if nobody can tell that of all of them."""
        use = next((use for use in self._fleet.uses() if use.program == program), None)
        if use is None or not self.is_started:
            return None
        try:
            answer = await self._client.loads(LOADS_WITHIN_S)
        except HelperHangs:
            return None
        own = self.guard.gpus_of(use)
        loads = tuple(load for load in answer.loads if load.uuid in own)
        return loads if loads and {load.uuid for load in loads} == own else None

    async def catch_up(self) -> None:
        """Returns once all is known that the kernel's log has by now; that takes milliseconds."""
        await self._client.catch_up()

    def recent_faults(self, pids: Iterable[int], since: float, program: str | None = None) -> tuple[str, ...]:
        """What was found since then (Unix time, at most a minute ago) about these processes or a program's GPUs."""
        return self.guard.recent_faults(pids, since, program)

    def take_verdict(self, program: str, attempt: int) -> str | None:
        """Why a program is wrong and not its GPUs, so that this attempt is not to begin; None if nobody says so.

        That holds for the attempt after the one that failed: an operator may start the program again.
        """
        given_up = self._given_up.pop(program, None)
        return given_up.text if given_up is not None and attempt == given_up.attempt + 1 else None

    def give_back(self, gpu: str) -> bool:
        """Uses a GPU again; False if it is not left out."""
        decisions = self.guard.give_back(gpu)
        self._carry_out(decisions)
        return bool(decisions)

    # --- what it hears ---

    def _on_news(self, message: messages.News) -> None:
        now = time.time()
        match message:
            case messages.XidSeen():
                self._carry_out(self._judge_line(message, now))
            case messages.NameSeen():
                self.guard.records.on_named(message.address, message.uuid)
                self._carry_out([])
            case messages.GpuList():
                self._carry_out(self._judge_list(message, now))
            case messages.Sources():
                self.sources = message
                if message.kernel_log:
                    effect = "faults of GPUs are seen only when NVML is asked; give the daemon CAP_SYSLOG"
                    log.warning("gpu.log_unread", why=message.kernel_log, effect=effect)

    def _judge_line(self, seen: messages.XidSeen, now: float) -> list[Decision]:
        line = XidLine(seen.number, seen.address, seen.pid, seen.recovery, seen.is_fatal, seen.text)
        log.info("gpu.kernel_line", text=seen.text, times=seen.times)
        owner = self._fleet.owner_of(seen.pid) if seen.pid is not None else None
        if seen.log_number is not None:
            self.guard.records.note_log_number(seen.log_number)
        return self.guard.on_line(line, self._fleet.uses(), now, owner, now - seen.age_s)

    def _judge_list(self, listed: messages.GpuList, now: float) -> list[Decision]:
        if listed.error == VERSION_MISMATCH:
            return self.guard.on_host_fault(faults.VERSION_MISMATCH, listed.why, now)
        if listed.error and listed.is_from_nvml:
            return []
        if not listed.is_from_nvml and listed.why != self.sources.nvml:
            self.sources = replace(self.sources, nvml=listed.why)
            log.warning("gpu.nvml_unused", why=listed.why, effect="faults of GPUs are seen only in the kernel's log")
        elif listed.is_from_nvml:
            self.sources = replace(self.sources, nvml="")
        return self.guard.on_health(listed.gpus, self._fleet.uses(), now, is_complete=listed.is_from_nvml)

    # --- what it does ---

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Incident():
                    self._reports.report(decision)
                case Restart():
                    self._fleet.restart(decision)
                case GiveUp():
                    self._given_up[decision.program] = decision
                case AskOperator():
                    self._reports.run_hooks(decision, self.guard.records.gpus)
                case Returned():
                    self._reports.report_return(decision)
        if self.guard.records.revision != self._written and self._writing is None:
            self._writing = asyncio.create_task(self._write())
        self._arm_hooks()

    def _arm_hooks(self) -> None:
        if self._hook_timer is None and self.guard.acts and self.guard.has_hooks_to_run:
            self._hook_timer = asyncio.get_running_loop().call_later(HOOKS_EVERY_S, self._look_for_hooks)

    def _look_for_hooks(self) -> None:
        self._hook_timer = None
        self._carry_out(self.guard.due_hooks(self._fleet.uses(), time.time()))

    async def _write(self) -> None:
        try:
            records = self.guard.records
            while records.revision != self._written:
                revision = records.revision
                await self._threads.run(self._path, self._store.write, records.content)
                self._written = revision
        finally:
            self._writing = None
