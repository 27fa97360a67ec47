"""Who is told of faults of GPUs, and how: the log, event listeners, and the operator's hooks."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from supervisor.core.gpus.decisions import AskOperator, Incident, Returned
from supervisor.core.gpus.faults import Follows
from supervisor.core.gpus.records import GpuRecord, gpu_words
from supervisor.core.listeners.event_types import EventValue, PublishedEvent
from supervisor.host.hooks import HookEvent, HookFact, HookRunner
from supervisor.runner.listeners.hub import ListenerHub

HOOK = "gpu_fault"

log = structlog.get_logger()


class FaultReports:
    """`commands_of`: what the operator wants to be run for an event of these programs, or of none."""

    def __init__(
        self,
        commands_of: Callable[[str, Iterable[str]], set[tuple[str, ...]]],
        hooks: HookRunner,
        listeners: ListenerHub,
    ) -> None:
        self._commands_of = commands_of
        self._hooks = hooks
        self._listeners = listeners

    def report(self, incident: Incident) -> None:
        """A GPU has failed."""
        facts: dict[str, EventValue] = {
            "gpu": incident.gpu,
            "address": incident.address,
            "fault": incident.fault,
            "text": incident.text,
            "follows": str(incident.follows),
            "programs": ", ".join(incident.programs),
            "count": incident.count,
        }
        if incident.is_dry_run:
            facts["done"] = "nothing (on_gpu_fault = report)"
        write = log.warning if incident.follows in (Follows.NOTE, Follows.RETRY_IF_IT_DIES) else log.error
        write("gpu.fault", **facts)
        self._publish("GPU_FAULT", **facts)

    def report_return(self, returned: Returned) -> None:
        """A GPU is used again."""
        log.info("gpu.returned", gpu=returned.gpu, why=returned.why)
        self._publish("GPU_RETURNED", gpu=returned.gpu, text=returned.why)

    def run_hooks(self, asked: AskOperator, records: Mapping[str, GpuRecord]) -> None:
        """Runs what the operator wants to be run for a GPU. `records`: of all GPUs, for its name."""
        program = asked.programs[0] if asked.programs else None
        facts: dict[str, HookFact] = {
            "event": HOOK,
            "program": program,
            "programs": ", ".join(asked.programs),
            "host": platform.node(),
            "wall_at": time.time(),
            "gpu": asked.gpu,
            "pci_address": asked.address,
            "fault": asked.fault,
            "text": f"{gpu_words(records, asked.gpu, asked.address)}: {asked.text}",
            "action": str(asked.remedy),
            "in_use": asked.is_in_use,
        }
        for command in sorted(self._commands_of(HOOK, asked.programs)):
            self._hooks.run_hook(HookEvent(command, HOOK, program or "", facts))

    def _publish(self, name: str, **facts: EventValue) -> None:
        self._listeners.publish([PublishedEvent(name, None, facts)])
