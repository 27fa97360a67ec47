"""Everything that happens goes through here: to the event listeners, and to whoever watches."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from supervisor.config.keys.groups import ListenerConfig
from supervisor.core.listeners import event_types
from supervisor.core.listeners import pool as listeners
from supervisor.core.listeners.event_types import PublishedEvent
from supervisor.core.listeners.pool import Listener, ListenerPool, ListenerState
from supervisor.protocol.plurals import counted
from supervisor.runner.listeners.event_log import EventLog

LOG_EVERY_S = 10.0  # how often the log says that events are dropped, while they are

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """What `status` says of a listener. The counts are the pool's, since the daemon's start."""

    standing: ListenerState | None
    why: str | None
    waiting: int
    dropped: int
    accepted: int
    refused: int

    def __str__(self) -> str:
        said = [] if self.standing is None else [str(self.standing)]
        if self.why is not None:
            said = [f"UNKNOWN: it {self.why}; restart it"]
        if self.waiting:
            said.append(f"{counted(self.waiting, 'event')} waiting")
        if self.dropped:
            said.append(f"{counted(self.dropped, 'event')} dropped")
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """How many events wait in a pool now, and what became of those before, since the daemon's start."""

    waiting: int
    accepted: int
    refused: int
    dropped: int


@dataclass(slots=True)
class _PoolEntry:
    """A pool, what it subscribes to, and how its listeners are written to."""

    pool: ListenerPool
    events: frozenset[str]
    writers: dict[str, Callable[[bytes], None]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    logged_at: float = float("-inf")


class ListenerHub:
    """The pools by name, and the stream. All of it belongs to the event loop's thread. `server`: the identifier."""

    def __init__(self, server: str = "supervisor") -> None:
        self.log = EventLog()
        self._server = server
        self._serials = 0  # of what listeners are told; watchers count otherwise, as ticks are not for them
        self._pools: dict[str, _PoolEntry] = {}
        self._changed = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None

    # --- what happens -------------------------------------------------------------------------------------------------

    def publish(self, occurrences: Iterable[PublishedEvent]) -> None:
        """Something happened."""
        for occurrence in occurrences:
            if occurrence.is_for_all:
                self.log.append(occurrence)
            self._offer(occurrence)

    def _offer(self, occurrence: PublishedEvent) -> None:
        if occurrence.payload is None:
            return
        serial, self._serials = self._serials, self._serials + 1
        payload = occurrence.payload
        if isinstance(payload, str):
            payload = payload.encode(errors="replace")
        for desk in self._pools.values():
            if event_types.is_kind_of(occurrence.name, desk.events):
                self._execute(desk, desk.pool.add_event(serial, occurrence.name, payload, _now(), occurrence.program))

    def subscribe(self, pool: str, config: ListenerConfig) -> None:
        """There is such a pool from now on, or it asks for something else now."""
        events = frozenset(config.events)
        desk = self._pools.get(pool)
        if desk is None:
            made = ListenerPool(pool, self._server, config.buffer_size, takes_data=config.has_foreign_handler)
            self._pools[pool] = _PoolEntry(made, events)
        else:
            desk.events, desk.pool.buffer.capacity = events, config.buffer_size
            desk.pool.takes_data = config.has_foreign_handler
        self._start_or_stop_ticks()

    def unsubscribe(self, pool: str) -> None:
        """Nothing of the pool is in use any more; what waits there is forgotten."""
        desk = self._pools.pop(pool, None)
        if desk is None:
            return
        if desk.timer is not None:
            desk.timer.cancel()
        if desk.pool.waiting:
            log.warning("listener.removed", pool=pool, events_not_delivered=desk.pool.waiting)
        self._start_or_stop_ticks()

    # --- listeners ----------------------------------------------------------------------------------------------------

    def add_listener(self, pool: str, name: str, write: Callable[[bytes], None]) -> None:
        """A listener's process was started; `write` reaches its standard input."""
        if (desk := self._pools.get(pool)) is not None:
            desk.writers[name] = write
            desk.pool.listener_started(name)

    def set_running(self, pool: str, name: str, is_up: bool) -> None:
        """A listener runs, or does not."""
        if (desk := self._pools.get(pool)) is not None:
            self._execute(desk, desk.pool.set_listener_up(name, is_up, _now()))

    def on_output(self, pool: str, name: str, data: bytes) -> None:
        """A listener wrote something."""
        if (desk := self._pools.get(pool)) is not None:
            self._execute(desk, desk.pool.listener_wrote(name, data, _now()))

    def on_stdin_closed(self, pool: str, name: str) -> None:
        """A listener reads no more."""
        if (desk := self._pools.get(pool)) is not None:
            self._execute(desk, desk.pool.listener_stdin_closed(name, _now()))

    def remove_listener(self, pool: str, name: str) -> None:
        """A listener's process is gone."""
        if (desk := self._pools.get(pool)) is not None:
            desk.writers.pop(name, None)
            self._execute(desk, desk.pool.listener_exited(name, _now()))

    def status_of(self, pool: str, name: str) -> ListenerStatus | None:
        """Where a listener stands; None if there is no such pool."""
        desk = self._pools.get(pool)
        if desk is None:
            return None
        listener: Listener | None = desk.pool.listener(name)
        return ListenerStatus(
            listener.state if listener else None,
            listener.why if listener else None,
            desk.pool.waiting,
            desk.pool.dropped,
            desk.pool.accepted,
            desk.pool.refused,
        )

    def pool_counts(self) -> dict[str, PoolCounts]:
        """How each pool does."""
        pools = [desk.pool for desk in self._pools.values()]
        return {pool.name: PoolCounts(pool.waiting, pool.accepted, pool.refused, pool.dropped) for pool in pools}

    async def wait_until_answered(self, patience_s: float) -> None:
        """Waits until the listeners that work have answered all that happened, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while any(_has_unanswered(pool.pool) for pool in self._pools.values()):
                    self._changed.clear()
                    await self._changed.wait()

    def close(self) -> None:
        """Nothing more happens."""
        self.log.close()
        self._stop_ticks()

    def _stop_ticks(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    # --- underneath ---------------------------------------------------------------------------------------------------

    def _execute(self, desk: _PoolEntry, effects: Iterable[listeners.PoolEffect]) -> None:
        for effect in effects:
            match effect:
                case listeners.SendEvent():
                    desk.writers[effect.listener](effect.data)
                case listeners.ListenerDistrusted():
                    log.error("listener.distrusted", program=effect.listener, why=effect.why, remedy="restart it")
                case listeners.EventRejected():
                    answer = effect.answer[:80].decode(errors="replace")
                    log.warning("listener.refused", program=effect.listener, event_name=effect.event, answer=answer)
                case listeners.EventDropped():
                    self._log_dropped(desk, effect)
        self._arm_timer(desk)
        self._changed.set()

    def _log_dropped(self, desk: _PoolEntry, dropped: listeners.EventDropped) -> None:
        """At once, then every few seconds while it goes on: a flood of events must not become one of the log."""
        if _now() - desk.logged_at < LOG_EVERY_S:
            return
        desk.logged_at = _now()
        log.error(
            "listener.event_dropped",
            pool=desk.pool.name,
            event_name=dropped.event,
            dropped=dropped.total,
            buffer_size=desk.pool.buffer.capacity,
            remedy="its listeners are too slow or down: see `status`, or raise buffer_size",
        )

    def _arm_timer(self, desk: _PoolEntry) -> None:
        if desk.timer is not None:
            desk.timer.cancel()
        deadline_at = desk.pool.deadline()
        loop = asyncio.get_running_loop()
        desk.timer = None if deadline_at is None else loop.call_at(deadline_at, self._on_timer, desk)

    def _on_timer(self, desk: _PoolEntry) -> None:
        desk.timer = None
        self._execute(desk, desk.pool.expire(_now()))

    def _start_or_stop_ticks(self) -> None:
        """Ticks are made only while a listener wants them."""
        is_wanted = any(event_types.wants_ticks(desk.events) for desk in self._pools.values())
        if is_wanted and self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
        elif not is_wanted:
            self._stop_ticks()

    async def _tick(self) -> None:
        due_wall_s: int | None = None
        while True:
            due_wall_s = event_types.next_tick(time.time(), due_wall_s)
            await asyncio.sleep(max(0.0, due_wall_s - time.time()))
            try:
                self.publish(event_types.tick_events(due_wall_s))
            except Exception:
                log.exception("internal.failed", effect="one tick was not sent")


def _has_unanswered(pool: ListenerPool) -> bool:
    """Whether somebody is there to answer what it has not."""
    may_answer = (listener.is_up and listener.state is not ListenerState.UNKNOWN for listener in pool.listeners)
    return pool.unanswered > 0 and any(may_answer)


def _now() -> float:
    return asyncio.get_running_loop().time()
