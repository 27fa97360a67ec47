"""The jobs of this daemon, as the guard of the GPUs sees them: which run, whose a process is, and how they restart."""

from collections.abc import Iterable, Mapping, Sequence

from supervisor.core.failures.restart import Cause
from supervisor.core.gpus.decisions import GpuUse, Restart
from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE, ENDING
from supervisor.host.resources import usage
from supervisor.runner.program.gpu_gate import visible_to
from supervisor.runner.program.runner import Runner

MAX_PARENTS = 10  # between a process that computes and its worker; one or two, as a rule


class JobsOnGpus:
    """All jobs among `runners` (a GpuFleet). `environment`: what programs inherit; `commands`: hooks by event."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        environment: Mapping[str, str],
        commands: Mapping[str, tuple[str, ...] | None],
    ) -> None:
        self._runners = runners
        self._environment = environment
        self._commands = commands

    def uses(self) -> Sequence[GpuUse]:
        """The jobs that have a process, or whose process' end is just being explained."""
        return [
            GpuUse(
                runner.name,
                runner.attempt,
                runner.records.training.step,
                runner.current.last_pid,
                runner.current.visible_gpus or visible_to(runner.config.environment, self._environment),
                runner.records.process.started_wall_at or 0.0,
                runner.state in ENDING,
            )
            for runner in self._runners.values()
            if runner.config.job is not None and runner.state in ALIVE and not runner.current.waits_for_gpus
        ]

    def owner_of(self, pid: int) -> str | None:
        """The job to which a process belongs: its worker, or what that has started.

        By its session and its parents: who reads the environment of a process that is stuck in a driver may get stuck,
        too.
        """
        workers = {job.current.last_pid: job.name for job in self._runners.values() if job.config.job is not None}
        for _ in range(MAX_PARENTS):
            kin = usage.parent_and_session(pid) if pid not in workers else None
            if kin is None:
                break
            parent, session = kin
            pid = session if session in workers else parent
        return workers.get(pid)

    def restart(self, restart: Restart) -> None:
        """Ends an attempt, after a flush if it can still save; the gate decides with which GPUs the next one begins."""
        runner = self._runners.get(restart.program)
        if runner is not None:
            runner.post(events.RestartRequired(restart.attempt, Cause.GPU, restart.text, restart.can_save))

    def hook_commands(self, event: str, programs: Iterable[str]) -> set[tuple[str, ...]]:
        """The commands of these programs, or of [supervisord]; each once."""
        default = self._commands.get(event)
        runners = [self._runners[name] for name in programs if name in self._runners]
        commands = {runner.config.hooks().get(event) or default for runner in runners} or {default}
        return {command for command in commands if command is not None}
