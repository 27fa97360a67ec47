"""One run of the daemon: opens what it needs, starts or adopts the programs, and stops them or hands them over."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import structlog

from supervisor import __version__
from supervisor.assembly import DaemonParts, build_daemon, notice_sources
from supervisor.config import Config
from supervisor.config.several_nodes import training_nodes
from supervisor.control.endpoints import open_endpoints
from supervisor.control.server import serve
from supervisor.core.fleet.exit_conditions import DaemonExit, ExitOn, daemon_exit, exit_status
from supervisor.core.gang.steps import daemon_status
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.gpu_guard.client import GpuHelper
from supervisor.host.ledger.ledger import LEDGER, Ledger
from supervisor.host.ledger.pruning import Pruning
from supervisor.host.processes import limits, orphans
from supervisor.host.service import heap
from supervisor.host.service.background import Background, Foreground
from supervisor.host.service.folder_claims import keep_folders
from supervisor.host.service.loop_errors import LoopErrors
from supervisor.host.service.next_daemon import NextDaemon
from supervisor.host.service.reloading import Reload
from supervisor.host.service.single_instance import StateFolder
from supervisor.host.service.systemd import SystemdNotifier
from supervisor.preflight import places_of_others
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.summary import status_line
from supervisor.signals import SIGNALS, ExitRequest

STATUS_EVERY_S = 10.0  # often enough for people who look at `systemctl status`
OTHER_FILES = 128  # of a daemon with one program, beside the connections of its gang; it has 40 to 60 open
HOOKS_TIMEOUT_S = 5.0  # enough for the last hooks on a good day; a slow command must not keep the daemon
EXTEND_EVERY_S = 5.0  # well within TimeoutStopSec= of the unit

log = structlog.get_logger()


class DaemonLifecycle:
    """One run of the daemon, from opening the ledger to the end of the last process.

    `read_config` reads the configuration again. `background` is told when the daemon is ready for clients.
    `gpu_helper`: what asks about GPUs. `state`: the state folder, locked. `reload`: what the daemon before left.
    `next_daemon`: the one that a reload executes.
    """

    def __init__(
        self,
        config: Config,
        read_config: Callable[[], Config],
        background: Background | Foreground,
        daemon_log: DaemonLog,
        gpu_helper: GpuHelper,
        state: StateFolder,
        reload: Reload,
        next_daemon: NextDaemon,
    ) -> None:
        self._config = config
        self._reload = reload
        self._next_daemon = next_daemon
        self._state = state
        self._settings = config.supervisord
        self._read_config = read_config
        self._background = background
        self._daemon_log = daemon_log
        self._gpu_helper = gpu_helper
        self._systemd = SystemdNotifier(os.environ)
        self._exit_request = ExitRequest()

    async def run(self) -> int | None:
        """Supervises until asked to exit; returns the exit status, or None if a fresh daemon is to follow (reload)."""
        asyncio.get_running_loop().set_exception_handler(LoopErrors().on_error)
        ledger = self._open_ledger()
        place = await asyncio.to_thread(self._find_place)
        parts = build_daemon(
            self._config,
            self._read_config,
            ledger,
            place,
            self._exit_request,
            self._daemon_log,
            self._systemd,
            self._gpu_helper,
            self._next_daemon,
        )
        parts.signals.trap(leaves_allocation=place is not None)
        try:
            async with self._serve_clients(parts):
                self._background.report_ready()
                self._feed_watchdog()
                parts.notices.watch_sources(notice_sources(self._settings))
                with orphans.reaping_orphans(parts.programs.has_worker, parts.signals.loop_signals):
                    await self._supervise(parts)
                parts.services.listeners.close()
        finally:
            await self._close(parts)
        return await self._exit_status(parts, place)

    def _open_ledger(self) -> Ledger:
        settings = self._settings
        for key, why in places_of_others(settings, os.environ).items():
            log.warning("folder.of_others", key=key, reason=why, effect="the daemon believes what is in there")
        ledger = Ledger(settings.state_dir / LEDGER, Pruning(settings.history_attempts, settings.history_days))
        effect = "the history begins anew; what is wanted is known"
        if ledger.set_aside is not None:
            log.error("ledger.set_aside", moved_to=str(ledger.set_aside), effect=effect)
        if ledger.is_lost:
            log.error("ledger.lost", reason="its file was deleted or emptied", effect=effect)
        if ledger.repaired:
            log.error("ledger.repaired", attempts=ledger.repaired, reason="no attempt can have their numbers")
        return ledger

    def _find_place(self) -> Allocation | None:
        """Among the nodes that were given to the job; None if nobody gave any.

        Raises AllocationError, SlurmError or LimitError.
        """
        match self._settings.engine:
            case "alone":
                return None
            case "slurm":
                from supervisor.host import slurm  # only here: most daemons are alone

                place = slurm.find_allocation(os.environ)
            case "jobset":
                place = allocation.read_jobset(os.environ)
        training_nodes(self._config, place.size)
        if place.rank == 0 and place.size > 1:
            limits.require_files(place.size + OTHER_FILES, f"hold the connections of {place.size} nodes")
        return place

    async def _close(self, parts: DaemonParts) -> None:
        """Once nothing is supervised any more."""
        await parts.notices.stop_watching()
        parts.context.gpus.close()
        await parts.context.gpus.flush()
        if self._exit_request.is_reload:
            parts.services.logs.detach()
        else:
            parts.services.logs.close()
        parts.services.ledger.close()
        await asyncio.to_thread(parts.services.hooks.close, HOOKS_TIMEOUT_S)
        await parts.signals.release()

    async def _exit_status(self, parts: DaemonParts, place: Allocation | None) -> int | None:
        """What is told to who started this daemon; None: a fresh one follows."""
        requested, outcomes = self._exit_request, parts.watches.exits.outcomes()
        if requested.is_reload:
            return None
        if place is None:
            return exit_status(requested.exit_status, parts.watches.exits.exit_on, outcomes)
        are_done = daemon_exit([ExitOn.DONE], outcomes) is DaemonExit.DONE
        ends_with = parts.watches.gang.ends_with if parts.watches.gang is not None else None
        status = daemon_status(requested.exit_status, are_done, parts.signals.allocation_ends, ends_with)
        if parts.watches.gang is not None:
            await parts.watches.gang.close(status)
        return status

    async def _start(self, parts: DaemonParts) -> None:
        """Starts or adopts the programs; a gang's once all its daemons are there."""
        environment = parts.services.environment
        if parts.watches.gang is not None:
            if await parts.watches.gang.gather() is None:
                return
        elif self._settings.engine != "alone":
            from supervisor.runner.gang.agent import cluster_of_one  # only here: most daemons are alone

            for name, value in cluster_of_one(parts.programs.runners.values()).items():
                environment.setdefault(name, value)
        await parts.programs.start_all()

    async def _supervise(self, parts: DaemonParts) -> None:
        """Starts or adopts the programs, waits for the request to exit, and stops them; also if starting them fails."""
        start = asyncio.create_task(self._start(parts))
        background = BackgroundTasks(log)  # an error that ends one of these is said at once
        recall = background.start(parts.proofs.recall())
        exit_requested = asyncio.create_task(self._exit_request.wait())
        loops = (parts.watches.resources, parts.watches.descendants, parts.watches.speed)
        watches = [background.start(watch.watch()) for watch in loops]
        watches.append(
            background.start(keep_folders(self._state, self._settings.runtime_dir, parts.services.blocking_calls))
        )
        try:
            while not (start.done() or exit_requested.done()):
                self._systemd.extend_timeout(2 * EXTEND_EVERY_S)  # ending an earlier daemon's workers may take long
                await asyncio.wait({start, exit_requested}, timeout=EXTEND_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                self._on_started(parts)
            await exit_requested
        finally:
            for task in (exit_requested, *watches):
                task.cancel()
            parts.watches.suspend.stop()
            await self._stop_programs(parts)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # after a reload the fresh daemon receives them
            start.cancel()
            recall.cancel()
            await asyncio.gather(recall, *watches, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await start

    def _on_started(self, parts: DaemonParts) -> None:
        runners = parts.programs.runners
        log.info("daemon.ready", pid=os.getpid(), programs=len(runners), version=__version__)
        self._systemd.send_ready(status_line(runners.values()))
        self._report_status(parts.programs)
        parts.watches.exits.begin()
        heap.return_free_memory()

    async def _stop_programs(self, parts: DaemonParts) -> None:
        """Flushes and stops all programs while systemd waits; each program's own limits bound how long that takes."""
        programs, proofs, is_reload = parts.programs, parts.proofs, self._exit_request.is_reload
        log.info("daemon.leaving", programs=len(programs.runners), reload=is_reload)
        if is_reload:  # workers run on, and the next daemon adopts them
            await proofs.close()
            await programs.hand_over()
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
    async def _serve_clients(self, parts: DaemonParts) -> AsyncIterator[None]:
        with open_endpoints(self._config, self._reload, lambda: self._exit_request.is_reload) as endpoints:
            if not endpoints:
                reason = "supervisorctl can't reach this daemon: there is no [unix_http_server] or [inet_http_server]"
                log.warning("control.off", reason=reason)
            async with serve(endpoints, parts.context, until_adopted=parts.programs.until_adopted):
                yield
