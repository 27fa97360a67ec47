"""The daemon's end of the control API, with answers that a test sets: a real HTTP server on a real socket."""

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]


class Fault(Exception):
    """An answer that refuses."""

    def __init__(self, code: str, message: str = "", status: int = 400, *, is_whole: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status
        self.is_whole = is_whole  # of a request for many programs, not of each of them


class DaemonEnd:
    """Answers `POST /api/v1/COMMAND` from `answers`, logs from `logs`; `asked` is what came in."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.url = f"unix://{socket}"
        self.answers: dict[str, Answer | Fault] = {}
        self.logs: dict[tuple[str, ...], bytes] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.grow = threading.Event()
        """While followed, a log gets one more line when this is set."""
        self.login: str | None = None
        """`USER:PASSWORD` without which nothing is answered."""
        self.loses: str | None = None
        """A program of which nothing is told where many are asked."""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "DaemonEnd":
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._listening.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        app = web.Application(middlewares=[self._admit])
        app.router.add_post("/api/v1/each", self._each)
        app.router.add_post("/api/v1/{command}", self._command)
        app.router.add_get("/api/v1/tail", self._tail)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        wanted = None if self.login is None else f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if wanted not in (None, request.headers.get("Authorization")):
            return _refused(Fault("UNAUTHORIZED", "who are you", 401))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _command(self, request: web.Request) -> web.Response:
        command, arguments = request.match_info["command"], await request.json()
        self.asked.append((command, arguments))
        answer = self.answers.get(command, Fault("UNKNOWN_COMMAND", command, 404))
        try:
            if isinstance(answer, Fault):
                raise answer
            result = await asyncio.to_thread(answer, arguments) if callable(answer) else answer
        except Fault as fault:
            return _refused(fault)
        return web.json_response({"result": result})

    async def _each(self, request: web.Request) -> web.StreamResponse:
        """Each name is asked of `answers` as if it came alone, all side by side."""
        if isinstance(whole := self.answers.get("each"), Fault):
            return _refused(whole)
        body = await request.json()
        command, names = body["command"], body["names"]
        asked = [{**body["arguments"], "name": name} for name in names]
        self.asked += [(command, arguments) for arguments in asked]
        answer = self.answers.get(command, Fault("UNKNOWN_COMMAND", command, 404))
        if isinstance(answer, Fault) and answer.is_whole:
            return _refused(answer)
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        for outcome in asyncio.as_completed(
            [_outcome(answer, arguments) for arguments in asked if arguments["name"] != self.loses]
        ):
            await stream.write(json.dumps(await outcome).encode() + b"\n")
        return stream

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        self.asked.append(("tail", dict(query)))
        log = self.logs.get((query["name"], query["channel"], *([query["attempt"]] if "attempt" in query else ())))
        if log is None:
            known = {key[0] for key in self.logs}
            return _refused(Fault("NO_FILE", "keeps no log") if query["name"] in known else Fault("BAD_NAME"))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(log[-int(query["bytes"]) :])
        if query.get("follow") == "1":
            await asyncio.to_thread(self.grow.wait, 20)
            await response.write(b"one more line\n")
            await asyncio.sleep(20)
        return response


async def _outcome(answer: Answer | Fault, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        if isinstance(answer, Fault):
            raise answer
        result = await asyncio.to_thread(answer, arguments) if callable(answer) else answer
    except Fault as fault:
        error = {"code": fault.code, "message": fault.message}
        return {"name": arguments["name"], "result": None, "error": error}
    return {"name": arguments["name"], "result": result, "error": None}


def _refused(fault: Fault) -> web.Response:
    return web.json_response({"error": {"code": fault.code, "message": fault.message}}, status=fault.status)


def program(name: str, **other: Any) -> dict[str, Any]:
    """A running plain program, as `status` tells it; `other` says what is different."""
    return {
        "name": name,
        "group": name.partition(":")[0],
        "process": name.rpartition(":")[2],
        "group_priority": 999,
        "priority": 999,
        "state": "RUNNING",
        "wire_state": "RUNNING",
        "wire_code": 20,
        "description": "pid 4242, uptime 0:00:05",
        "pid": 4242,
        "uptime_s": 5.0,
        "started_wall_at": 1_000.0,
        "ended_wall_at": None,
        "exit_code": None,
        "signal": None,
        "reason": None,
        "wanted": True,
        "stdout_logfile": None,
        "stderr_logfile": None,
        "job": None,
        **other,
    }


def job(**other: Any) -> dict[str, Any]:
    """What `status` tells of a job that trains."""
    return {
        "attempt": 3,
        "step": 250,
        "total_steps": 1000,
        "epoch": 1,
        "step_s": 0.5,
        "metrics": {"loss": 0.25},
        "checkpoint": {"name": "step-0000000200.a3", "step": 200, "size_bytes": 4096, "committed_wall_at": 990.0},
        "restored": None,
        "checkpoint_dir": "/data/ckpt",
        "save_error": None,
        **other,
    }


def down(name: str, **other: Any) -> dict[str, Any]:
    """A stopped program, as `status` tells it."""
    stopped = {"state": "STOPPED", "wire_state": "STOPPED", "wire_code": 0, "description": "Not started", "pid": None}
    return program(name, **{**stopped, **other})
