"""The composition root: builds the parts of the daemon, one after another, each complete when it is built."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.config import Config, SupervisordConfig
from supervisor.config.several_nodes import has_own_folders, training_nodes
from supervisor.control.base.context import CommandContext
from supervisor.core.fleet.exit_conditions import ExitOn
from supervisor.core.notices.active import ActiveNotices
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.gpu_guard.client import GpuHelper
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.logs.files.positions import LogPosition
from supervisor.host.logs.messages import AttemptBegan
from supervisor.host.logs.output_events import OutputSubscribers
from supervisor.host.notices.drills import Drills
from supervisor.host.notices.source import NoticeSource
from supervisor.host.notices.sources import NoticeSettings, make_sources
from supervisor.host.notices.store import NoticeStore
from supervisor.host.processes.process_status import read_start_time
from supervisor.host.resources import cgroup
from supervisor.host.service.next_daemon import NextDaemon
from supervisor.host.service.systemd import SystemdNotifier, environment_for_children
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.wire.launch import DaemonIdentity
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.fleet.gpu_jobs import JobsOnGpus
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.fleet.watches.descendants import DescendantWatch
from supervisor.runner.fleet.watches.exits import ExitWatch
from supervisor.runner.fleet.watches.resources import ResourceWatch
from supervisor.runner.fleet.watches.speed import SpeedWatch
from supervisor.runner.fleet.watches.suspends import SuspendWatch
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.listeners.output import OutputPublisher
from supervisor.runner.program.runner import Runner
from supervisor.signals import ExitRequest, SignalHandlers

if TYPE_CHECKING:
    from supervisor.runner.gang.agent import GangAgent


@dataclass(frozen=True, slots=True)
class Watches:
    """What looks at all programs after every change. `gang`: of a rank of one; None if programs are alone."""

    resources: ResourceWatch
    suspend: SuspendWatch
    speed: SpeedWatch
    descendants: DescendantWatch
    gang: "GangAgent | None"
    exits: ExitWatch
    gpus: GpuGuard

    def on_change(self) -> None:
        """The state of a program is another one."""
        self.resources.on_change()
        self.suspend.on_change()
        self.speed.on_change()
        self.descendants.on_change()
        if self.gang is not None:
            self.gang.on_change()
        self.exits.on_change()
        self.gpus.on_change()


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """The parts of one daemon."""

    services: Services
    programs: Programs
    proofs: Proofs
    notices: NoticeDispatcher
    signals: SignalHandlers
    context: CommandContext
    watches: Watches


def build_daemon(
    config: Config,
    read_config: Callable[[], Config],
    ledger: Ledger,
    place: Allocation | None,
    exit_request: ExitRequest,
    daemon_log: DaemonLog,
    systemd: SystemdNotifier,
    gpu_helper: GpuHelper,
    next_daemon: NextDaemon,
) -> DaemonParts:
    """Builds all parts, and starts the capture of what programs print. To be called in the event loop.

    `place`: this node's among those that were given to the job; None if nobody gave any.
    """
    settings, runners = config.supervisord, dict[str, Runner]()
    active_notices = ActiveNotices(settings.notice_grace)
    expected_times = ExpectedTimes(active_notices, runners)
    expected_times.load_history(ledger)
    output, store = OutputPublisher(), NoticeStore(settings.runtime_dir)
    logs = _capture_output(settings, ledger, output)
    hooks, listeners = HookRunner(settings.hook_timeout), ListenerHub(settings.identifier)
    environment = {**allocation.without_secrets(environment_for_children(os.environ)), **settings.environment}
    on_gpus = JobsOnGpus(runners, environment, settings.hooks())
    gpus = GpuGuard(gpu_helper, settings.state_dir, on_gpus, hooks, listeners, settings.on_gpu_fault == "act")
    services = _build_services(config, ledger, logs, expected_times, place, environment, gpus, hooks, listeners)
    watches = _build_watches(config, services, runners, exit_request, gpus)
    notices = NoticeDispatcher(active_notices, expected_times, runners, services.loop_share, store)
    programs = Programs(config, read_config, services, runners, watches.on_change, notices.post_current_notice)
    output.start(programs.on_output)
    signals = SignalHandlers(exit_request, programs, notices, logs, daemon_log, systemd, settings.power_timeout)
    context = CommandContext(
        programs,
        ledger,
        logs,
        services.checkpoints,
        shut_down=exit_request.request_exit,
        reload=exit_request.request_reload,
        settings=settings,
        is_reloading=lambda: exit_request.is_reload,
        next_daemon=next_daemon,
        notices=notices,
        expected_times=expected_times,
        hooks=services.hooks,
        drills=Drills(notices.add, notices.withdraw),
        listening=services.listeners,
        proofs=Proofs(runners, services),
        gpus=gpus,
    )
    return DaemonParts(services, programs, context.proofs, notices, signals, context, watches)


def _build_services(
    config: Config,
    ledger: Ledger,
    logs: LogCapture,
    expected_times: ExpectedTimes,
    place: Allocation | None,
    environment: dict[str, str],
    gpus: GpuGuard,
    hooks: HookRunner,
    listeners: ListenerHub,
) -> Services:
    """What all programs share."""
    settings = config.supervisord
    rank = place if place is not None and place.size > 1 else None
    return Services(
        ledger=ledger,
        logs=logs,
        checkpoints=CheckpointStore(),
        state_dir=settings.state_dir,
        runtime_dir=settings.runtime_dir,
        environment=environment,
        lowest_attempt=place.lowest_attempt if place is not None else 1,
        daemon=None if place is None else DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 1),
        gang=GangPlace(rank) if rank is not None else None,
        is_chief=rank is None or rank.rank == 0,
        server_url=_server_url(config),
        save_durations=expected_times.saves,
        upload_durations=expected_times.uploads,
        notice_grace=settings.notice_grace,
        cgroups=cgroup.prepare_cgroups(),
        gpus=gpus,
        hooks=hooks,
        hook_commands=settings.hooks(),
        listeners=listeners,
    )


def _build_watches(
    config: Config,
    services: Services,
    runners: Mapping[str, Runner],
    exit_request: ExitRequest,
    gpus: GpuGuard,
) -> Watches:
    settings, place, gang = config.supervisord, services.gang, None
    leave, is_leaving = exit_request.request_exit, lambda: exit_request.is_made
    if place is not None:
        from supervisor.runner.gang.agent import GangAgent, GangSettings  # most daemons are alone

        secret, verdict = os.environ.get(allocation.SECRET, ""), os.environ.get(allocation.VERDICT)
        how = GangSettings(
            secret,
            settings.rendezvous_timeout,
            wanted=training_nodes(config, place.nodes),
            has_own_folders=has_own_folders(config),
            verdict=Path(verdict) if verdict else None,
            stops_alone=settings.engine == "jobset",
        )
        gang = GangAgent(place, how, runners, leave, is_leaving)
    exit_on = list(ExitOn) if settings.engine != "alone" else [ExitOn(word) for word in settings.exit_on]
    return Watches(
        ResourceWatch(runners, services),
        SuspendWatch(runners),
        SpeedWatch(runners),
        DescendantWatch(runners),
        gang,
        ExitWatch(runners, exit_on, place is not None, leave, is_leaving),
        gpus,
    )


def _capture_output(settings: SupervisordConfig, ledger: Ledger, output: OutputPublisher) -> LogCapture:
    def on_attempt_began(began: AttemptBegan) -> None:
        ledger.output_begins.store(*began[:3], LogPosition(*began[3:]))

    logs = LogCapture(settings.state_dir, OutputSubscribers(output.on_output, output.on_missed, on_attempt_began))
    logs.start()
    return logs


def _server_url(config: Config) -> str | None:
    """Where programs find this daemon's API ($SUPERVISOR_SERVER_URL); None if nothing is served."""
    for unix in config.unix_http_servers:
        return f"unix://{unix.file}"
    for inet in config.inet_http_servers:
        host, port = inet.address
        return f"http://{f'[{host}]' if host and ':' in host else host or 'localhost'}:{port}"
    return None


def notice_sources(settings: SupervisordConfig) -> tuple[NoticeSource, ...]:
    """The configured sources of notices about this host. Raises UnknownSourceError."""
    return make_sources(
        settings.notices,
        NoticeSettings(
            notice_dir=settings.notice_dir,
            owner_uids=settings.notice_owners,
            azure_acknowledge=settings.azure_acknowledge,
            google_preemption_notice_s=settings.google_preemption_notice,
        ),
    )
