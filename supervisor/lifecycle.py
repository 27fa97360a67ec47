"""The composition root: builds the parts of the daemon, connects them, and runs them from start to exit."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import structlog

from supervisor import __version__
from supervisor.config import Config, SupervisordConfig
from supervisor.config.several_nodes import refuse_several_nodes
from supervisor.control.base.context import CommandContext
from supervisor.control.endpoints import open_endpoints
from supervisor.control.server import serve
from supervisor.core.fleet.exit_conditions import EXIT_FATAL, DaemonExit, ExitOn, daemon_exit, exit_status
from supervisor.core.fleet.steps import daemon_status
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import LEDGER, Ledger
from supervisor.host.ledger.pruning import Pruning
from supervisor.host.logs.capture import LogCapture
from supervisor.host.logs.files.positions import LogPosition
from supervisor.host.notices.drills import Drills
from supervisor.host.notices.source import NoticeSource
from supervisor.host.notices.sources import NoticeSettings, make_sources
from supervisor.host.notices.store import NoticeStore
from supervisor.host.processes import orphans
from supervisor.host.processes.process_status import read_start_time
from supervisor.host.resources import cgroup
from supervisor.host.resources.gpus import Gpus
from supervisor.host.service.background import Background, Foreground
from supervisor.host.service.systemd import SystemdNotifier, environment_for_children
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.wire.launch import DaemonIdentity
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.descendant_watch import DescendantWatch
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.fleet.summary import status_line
from supervisor.runner.fleet.suspend_watch import SuspendWatch
from supervisor.runner.fleet.watch import ResourceWatch
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.listeners.output import OutputPublisher
from supervisor.signals import SIGNALS, ExitRequest, SignalHandlers

if TYPE_CHECKING:
    from supervisor.runner.fleet.gang_agent import GangAgent

STATUS_EVERY_S = 10.0  # often enough for people who look at `systemctl status`
HOOKS_TIMEOUT_S = 5.0  # enough for the last hooks on a good day; a slow command must not keep the daemon
EXTEND_EVERY_S = 5.0  # well within TimeoutStopSec= of the unit

log = structlog.get_logger()


class DaemonLifecycle:
    """One run of the daemon, from opening the ledger to the end of the last process.

    `read_config` reads the configuration again. `background` is told when the daemon is ready for clients.
    """

    def __init__(
        self,
        config: Config,
        read_config: Callable[[], Config],
        background: Background | Foreground,
        daemon_log: DaemonLog,
    ) -> None:
        self._config = config
        self._settings = config.supervisord
        self._read_config = read_config
        self._background = background
        self._daemon_log = daemon_log
        self._systemd = SystemdNotifier(os.environ)
        self._exit_request = ExitRequest()
        self._gang: GangAgent | None = None

    async def run(self) -> int | None:
        """Supervises until asked to exit; returns the exit status, or None if a fresh daemon is to follow (reload)."""
        settings, exit_request = self._settings, self._exit_request
        ledger = Ledger(settings.state_dir / LEDGER, Pruning(settings.history_attempts, settings.history_days))
        if ledger.set_aside is not None:
            effect = "the history begins anew; what is wanted is known"
            log.error("ledger.set_aside", moved_to=str(ledger.set_aside), effect=effect)
        if ledger.is_lost:
            effect = "the history begins anew; what is wanted is known"
            log.error("ledger.lost", reason="its file was deleted or emptied", effect=effect)
        if ledger.repaired:
            log.error("ledger.repaired", attempts=ledger.repaired, reason="no attempt can have their numbers")
        output = OutputPublisher()
        place = await asyncio.to_thread(self._find_place)
        found = place if place is not None and place.size > 1 else None
        services = self._make_services(ledger, output, place)
        logs = services.logs
        programs = Programs(self._config, self._read_config, services)
        proofs = Proofs(lambda: programs.runners, services)
        if found is not None:
            from supervisor.runner.fleet.gang_agent import GangAgent  # only here: most daemons are alone

            self._gang = GangAgent(
                found,
                os.environ.get(allocation.SECRET, ""),
                settings.rendezvous_timeout,
                lambda: programs.runners,
                exit_request.request_exit,
                lambda: exit_request.is_made,
            )
        output.start(programs.on_output)
        services.save_durations.load_history(ledger)
        services.upload_durations.load_history(ledger)
        store = NoticeStore(settings.runtime_dir)
        saves, uploads = services.save_durations, services.upload_durations
        notices = NoticeDispatcher(saves, settings.notice_grace, lambda: programs.runners, store, uploads=uploads)
        programs.on_program_added = notices.post_current_notice
        signals = SignalHandlers(
            exit_request, programs, notices, logs, self._daemon_log, self._systemd, settings.power_timeout
        )
        signals.trap(leaves_allocation=place is not None)
        context = CommandContext(
            programs,
            ledger,
            logs,
            services.checkpoints,
            shut_down=exit_request.request_exit,
            reload=exit_request.request_reload,
            settings=settings,
            is_reloading=lambda: exit_request.is_reload,
            notices=notices,
            hooks=services.hooks,
            drills=Drills(notices.add, notices.withdraw),
            listening=services.listeners,
            proofs=proofs,
        )
        try:
            async with self._serve_clients(context):
                self._background.report_ready()
                self._feed_watchdog()
                notices.watch_sources(notice_sources(settings))
                with orphans.reaping_orphans(programs.has_worker, signals.loop_signals):
                    await self._supervise(programs, services, proofs)
                services.listeners.close()
        finally:
            await notices.stop_watching()
            if exit_request.is_reload:
                logs.detach()
            else:
                logs.close()
            ledger.close()
            await asyncio.to_thread(services.hooks.close, HOOKS_TIMEOUT_S)
            await signals.release()
        if exit_request.is_reload:
            return None
        if place is not None:
            return await self._status_of_step(programs, signals.allocation_ends)
        return exit_status(exit_request.exit_status, self._exit_on, programs.exit_conditions())

    def _find_place(self) -> Allocation | None:
        """Among the nodes that were given to the job; None if nobody gave any. Raises AllocationError or SlurmError."""
        match self._settings.engine:
            case "alone":
                return None
            case "slurm":
                from supervisor.host import slurm  # only here: most daemons are alone

                place = slurm.find_allocation(os.environ)
            case "jobset":
                place = allocation.read_jobset(os.environ)
        refuse_several_nodes(self._config, place.size)
        return place

    async def _status_of_step(self, programs: Programs, allocation_ends: bool) -> int:
        """What is told to who started this daemon."""
        are_done = daemon_exit([ExitOn.DONE], programs.exit_conditions()) is DaemonExit.DONE
        is_over = self._gang.ends_with if self._gang is not None else None
        status = daemon_status(self._exit_request.exit_status, are_done, allocation_ends, is_over)
        if self._gang is not None:
            await self._gang.close(status)
        return status

    @property
    def _exit_on(self) -> list[ExitOn]:
        return list(ExitOn) if self._settings.engine != "alone" else [ExitOn(each) for each in self._settings.exit_on]

    def _make_services(self, ledger: Ledger, output: OutputPublisher, place: Allocation | None) -> Services:
        """What all programs share; starts the capture of their output. `place`: this node's in an allocation."""
        gang = place if place is not None and place.size > 1 else None
        settings = self._settings
        logs = LogCapture(settings.state_dir)
        logs.subscribers.on_output, logs.subscribers.on_missed = output.on_output, output.on_missed
        logs.subscribers.on_attempt_began = lambda began: ledger.output_begins.store(
            *began[:3], LogPosition(*began[3:])
        )
        logs.start()
        return Services(
            ledger=ledger,
            logs=logs,
            checkpoints=CheckpointStore(),
            state_dir=settings.state_dir,
            runtime_dir=settings.runtime_dir,
            environment={**allocation.without_secrets(environment_for_children(os.environ)), **settings.environment},
            lowest_attempt=place.lowest_attempt if place is not None else 1,
            daemon=None if place is None else DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 1),
            generation=gang.generation if gang is not None else None,
            place=gang,
            is_chief=gang is None or gang.rank == 0,
            server_url=self._server_url(),
            notice_grace=settings.notice_grace,
            cgroups=cgroup.prepare_cgroups(),
            gpus=Gpus(),
            hooks=HookRunner(settings.hook_timeout),
            hook_commands=settings.hooks(),
            listeners=ListenerHub(settings.identifier),
        )

    async def _start(self, programs: Programs, services: Services) -> None:
        """Starts or adopts the programs; a gang's once all its daemons are there."""
        if self._gang is not None:
            cluster = await self._gang.gather()
            if cluster is None:
                return
            services.environment[allocation.CLUSTER] = cluster
        elif self._settings.engine != "alone":
            from supervisor.runner.fleet.gang_agent import cluster_of_one  # only here: most daemons are alone

            for name, value in cluster_of_one(programs.runners.values()).items():
                services.environment.setdefault(name, value)
        await programs.start_all()

    async def _supervise(self, programs: Programs, services: Services, proofs: Proofs) -> None:
        """Starts or adopts the programs, waits for the request to exit, and stops them; also if starting them fails."""
        start = asyncio.create_task(self._start(programs, services))
        recall = asyncio.create_task(proofs.recall())
        exit_requested = asyncio.create_task(self._exit_request.wait())
        resource_watch = ResourceWatch(lambda: programs.runners, services.environment)
        suspend_watch = SuspendWatch(lambda: programs.runners)
        descendant_watch = DescendantWatch(lambda: programs.runners)
        watch = asyncio.create_task(resource_watch.watch())
        note = asyncio.create_task(descendant_watch.watch())

        def on_change() -> None:
            resource_watch.on_change()
            suspend_watch.on_change()
            descendant_watch.on_change()
            if self._gang is not None:
                self._gang.on_change()
            if start.done():
                self._exit_if_finished(programs)

        programs.on_change = on_change
        try:
            while not (start.done() or exit_requested.done()):
                self._systemd.extend_timeout(2 * EXTEND_EVERY_S)  # ending an earlier daemon's workers may take long
                await asyncio.wait({start, exit_requested}, timeout=EXTEND_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                log.info("daemon.ready", pid=os.getpid(), programs=len(programs.runners), version=__version__)
                self._systemd.send_ready(status_line(programs.runners.values()))
                self._report_status(programs)
                programs.on_change()
            await exit_requested
        finally:
            exit_requested.cancel()
            watch.cancel()
            note.cancel()
            suspend_watch.stop()
            await self._stop_programs(programs, proofs)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # after a reload the fresh daemon receives them
            start.cancel()
            recall.cancel()
            for task in (start, watch, note, recall):
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _exit_if_finished(self, programs: Programs) -> None:
        """Exits by itself if `exit_on` says so."""
        exit_on = self._exit_on
        if (
            not exit_on
            or self._exit_request.is_made
            or (how := daemon_exit(exit_on, programs.exit_conditions())) is None
        ):
            return
        status = 0 if how is DaemonExit.DONE else EXIT_FATAL
        log.warning("daemon.finished", how=how.value, exit_status=status)
        self._exit_request.request_exit(status)

    async def _stop_programs(self, programs: Programs, proofs: Proofs) -> None:
        """Flushes and stops all programs while systemd waits; each program's own limits bound how long that takes."""
        log.info("daemon.leaving", programs=len(programs.runners), reload=self._exit_request.is_reload)
        if self._exit_request.is_reload:  # workers run on, and the next daemon adopts them
            await proofs.close()
            programs.hand_over()
            return
        self._systemd.send_stopping("flushing and stopping all programs")
        stop = asyncio.gather(programs.stop_all(), proofs.close())
        while not stop.done():
            self._systemd.extend_timeout(2 * EXTEND_EVERY_S)  # at once: TimeoutStopSec= may be shorter than our period
            await asyncio.wait({stop}, timeout=EXTEND_EVERY_S)
        await stop

    def _feed_watchdog(self) -> None:
        """Feeds systemd's watchdog from the event loop, at half its period, as sd_watchdog_enabled(3) advises."""
        if self._systemd.watchdog_s is not None:
            self._systemd.send_watchdog()
            asyncio.get_running_loop().call_later(self._systemd.watchdog_s / 2, self._feed_watchdog)

    def _report_status(self, programs: Programs) -> None:
        """Sends systemd the status line now and then, until the daemon exits."""
        if self._systemd.is_connected and not self._exit_request.is_made:
            self._systemd.send_status(status_line(programs.runners.values()))
            asyncio.get_running_loop().call_later(STATUS_EVERY_S, self._report_status, programs)

    @contextlib.asynccontextmanager
    async def _serve_clients(self, context: CommandContext) -> AsyncIterator[None]:
        with open_endpoints(self._config) as endpoints:
            if not endpoints:
                reason = "supervisorctl can't reach this daemon: there is no [unix_http_server] or [inet_http_server]"
                log.warning("control.off", reason=reason)
            async with serve(endpoints, context):
                yield

    def _server_url(self) -> str | None:
        """Where programs find this daemon's API ($SUPERVISOR_SERVER_URL); None if nothing is served."""
        for unix in self._config.unix_http_servers:
            return f"unix://{unix.file}"
        for inet in self._config.inet_http_servers:
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
