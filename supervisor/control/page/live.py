"""What open pages show, as it changes: server-sent events (WHATWG HTML, 9.2).

One look a second serves all pages, and nothing is done while none is open. A page gets what changed since it last read;
one that reads slowly gets the newest state later, and delays nothing else.
"""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, fields
from http import HTTPStatus

import structlog

from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.control.base.json_types import fields_of, to_json
from supervisor.control.commands import gpus
from supervisor.control.commands.status import ProgramStatus, StatusAnswer, status
from supervisor.control.http import web
from supervisor.static import SAFETY

LOOK_EVERY_S = 1.0
LOOK_SHARE = 0.05  # of the event loop's time at most, so that a thousand programs are looked at less often
ALIVE_EVERY_S = 15.0  # a line without meaning, on which a connection that is gone fails
RETRY_MS = 2000  # after which a page that lost its daemon asks again
MAX_PAGES = 50  # open at once

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Shown:
    """What pages show of a program, and in which look it became so. `content`: None once the program is removed."""

    look: int
    content: bytes | None


class LivePages:
    """The state that all open pages show."""

    def __init__(
        self,
        context: CommandContext,
        look_every_s: float = LOOK_EVERY_S,
        max_pages: int = MAX_PAGES,
        look: Callable[[CommandContext], Awaitable[StatusAnswer]] = status,
    ) -> None:
        self._context = context
        self._look_every_s = look_every_s
        self._max_pages = max_pages
        self._read_status = look
        self._pages = 0
        self._look = 0
        self._shown: dict[str, _Shown] = {}
        self._daemon = b"{}"
        self._daemon_look = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def respond(self, request: web.Request) -> web.Response:
        """A stream that begins with everything and continues with what changes. Refuses too many pages (503)."""
        if self._pages >= self._max_pages:
            raise web.RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"})
        headers = {**SAFETY, "X-Accel-Buffering": "no"}
        return web.Response(self._stream(), content_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        self._pages += 1
        try:
            if self._task is None:  # no wait before it is set: pages that come back together would each begin one
                self._task = asyncio.create_task(self._look_on())
            seen = 0
            yield f"retry: {RETRY_MS}\n\n".encode()
            while True:
                if self._look > seen:
                    since, seen = seen, self._look
                    yield self._event(since)
                    continue
                try:
                    async with asyncio.timeout(ALIVE_EVERY_S):
                        await self._changed.wait()
                except TimeoutError:
                    yield b": alive\n\n"
        finally:
            self._pages -= 1
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None
                self._shown.clear()
                self._daemon, self._daemon_look, self._look = b"{}", 0, 0  # the next page waits for a look of its own

    def _event(self, since: int) -> bytes:
        """What changed after the look `since`; all of it for 0."""
        changed = {name: shown.content for name, shown in self._shown.items() if shown.look > since}
        programs = b",".join(to_json(name) + b":" + content for name, content in changed.items() if content is not None)
        removed = to_json([name for name, content in changed.items() if content is None] if since else [])
        daemon = self._daemon if self._daemon_look > since else b"null"
        return b'event: status\ndata: {"all":%s,"at":%f,"daemon":%s,"removed":%s,"programs":{%s}}\n\n' % (
            b"false" if since else b"true",
            time.time(),
            daemon,
            removed,
            programs,
        )

    async def _look_on(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._look_once()
            except Exception:  # the next look may succeed
                log.exception("internal.failed", path="/page/live")
            await asyncio.sleep(max(self._look_every_s, (time.monotonic() - began) / LOOK_SHARE))

    async def _look_once(self) -> None:
        answer, look = await self._read_status(self._context), self._look + 1
        present = {program.name: _content(program) for program in answer.programs}
        daemon = to_json(
            {
                "ledger_error": answer.ledger_error,
                "hooks_error": answer.hooks_error,
                "identifier": self._context.settings.identifier,
                "host": socket.gethostname(),
                "closing": self._context.programs.closing,
                "utc_offset_s": time.localtime().tm_gmtoff,
                "gpus": gpus.answer_of(self._context).gpus,
                "remarks": self._context.programs.configuration.remarks,
                "logfile": str(self._context.settings.logfile or ""),
            }
        )
        is_changed = daemon != self._daemon
        if is_changed:
            self._daemon, self._daemon_look = daemon, look
        for name in self._shown.keys() | present.keys():
            shown, content = self._shown.get(name), present.get(name)
            if shown is None or shown.content != content:
                self._shown[name], is_changed = _Shown(look, content), True
        if is_changed:
            self._look = look
            self._changed.set()
            self._changed = asyncio.Event()


def _content(program: ProgramStatus) -> bytes:
    """What pages get of a program; of one of which something can't be written, why."""
    try:
        return to_json(_visible(program))
    except Exception as error:  # noqa: BLE001 - it must not hide the others
        known = ("name", "group", "process", "state", "wire_state", "wire_code", "wanted")
        shown: dict[str, object] = dict.fromkeys(field.name for field in fields(ProgramStatus))
        shown |= {key: getattr(program, key) for key in known}
        return to_json({**shown, "description": not_shown(program.name, error)})


def _visible(program: ProgramStatus) -> dict[str, object]:
    """The fields of a program. Its description grows older every second while it runs; pages count that themselves."""
    shown = fields_of(program)
    if program.wire_state == "RUNNING":
        shown["description"] = None
    return shown
