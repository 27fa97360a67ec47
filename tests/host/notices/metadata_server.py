"""A metadata server: AWS, Alibaba, Google and Azure on one port of 127.0.0.1, with a control side and faults.

It answers as the providers document it; the clients of test_foreign_clients.py, which are not ours, agree.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from enum import StrEnum

from aiohttp import web

GOOGLE = "/computeMetadata/v1"
AWS_TOKEN = "X-aws-ec2-metadata-token"
ALIBABA_TOKEN = "X-aliyun-ecs-metadata-token"
HUGE = b"x" * (1 << 20)


class Fault(StrEnum):
    """What every request meets, instead of its answer."""

    REFUSED = "connection refused"
    RESET = "connection reset"
    CLOSED = "closed without an answer"
    SILENT = "accepted, nothing sent"
    DRIP = "one byte at a time"
    HALF_OPEN = "headers, then nothing"
    CUT = "cut in the middle"
    NOT_HTTP = "not HTTP"
    LONG_HEADER = "endless header"
    REDIRECT = "redirect"
    BAD_REQUEST = "400"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    NOT_FOUND = "404"
    TOO_MANY = "429"
    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    EMPTY = "empty body"
    NOT_TEXT = "not text"
    TRUNCATED = "truncated JSON"
    WRONG_TYPE = "JSON of another shape"
    HTML = "a page for people"
    HUGE = "1 MB"


_STATUS = {
    Fault.BAD_REQUEST: 400,
    Fault.UNAUTHORIZED: 401,
    Fault.FORBIDDEN: 403,
    Fault.NOT_FOUND: 404,
    Fault.TOO_MANY: 429,
    Fault.SERVER_ERROR: 500,
    Fault.UNAVAILABLE: 503,
}
_BODY = {
    Fault.EMPTY: b"",
    Fault.NOT_TEXT: b"\xff\xfe\x00\xd8",
    Fault.TRUNCATED: b'{"action": "terminate", "ti',
    Fault.WRONG_TYPE: b'{"a": [1, null, {"b": 1e400}]}',
    Fault.HTML: b"<!doctype html><title>Please log in</title>",
    Fault.HUGE: HUGE,
}


class MetadataServer:
    """The server and its control side: set what it says, raise a fault, look at what it was asked."""

    def __init__(self) -> None:
        self.requests: list[str] = []  # "GET /path 200", in the order of their answers
        self.redirected: list[str] = []
        self.fault: Fault | None = None
        self.fault_path = ""  # only requests whose path begins so meet the fault
        # AWS and Alibaba
        self.spot: dict[str, str] | None = None
        self.rebalance: str | None = None
        self.scheduled: list[dict[str, str]] = []
        self.lifecycle: str | None = "InService"
        self.released: str | None = None
        self.token_ttl_s: int | None = None  # what tokens last, if not what was asked for
        self.token_body: bytes | None = None  # what comes instead of a token
        self.tokens: set[str] = set()
        self.tokens_made = 0
        # Google
        self.google: dict[str, str] = {
            "preempted": "FALSE",
            "maintenance-event": "NONE",
            "hostname": "trainer.internal",
        }
        self.upcoming: str | None = None
        self.flavor: str | None = "Google"
        self.waits = True
        # Azure
        self.events: list[dict[str, object]] = []
        self.machine: str | None = "trainer_0"
        self.acknowledged: list[str] = []
        self.refuse_posts = 0  # so many are answered 503
        self._etags: dict[str, int] = {}
        self._etag = itertools.count(0x5A17C29B)
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    # --- control ----------------------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens, on the same port as before if it did."""
        self._closing.clear()
        app = web.Application(middlewares=[self._record, self._fail], handler_args={"access_log": None})
        self._add_routes(app.router)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Listens no more."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    async def raise_fault(self, fault: Fault, path: str = "") -> None:
        """From now on every request, or those below `path`, meets `fault`; those that wait do as well."""
        self.fault, self.fault_path = fault, path
        if fault is Fault.REFUSED:
            await self.stop()
        await self._tell()

    async def cure(self) -> None:
        """All is well again."""
        was, self.fault = self.fault, None
        if was is Fault.REFUSED:
            await self.start()

    async def set_google(self, key: str, value: str) -> None:
        """Changes a value of the instance, and answers who waits for it."""
        self.google[key] = value
        self._etags[key] = next(self._etag)
        await self._tell()

    def expire_tokens(self) -> None:
        """Tokens given so far are no good any more."""
        self.tokens.clear()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- all requests -----------------------------------------------------------------------------------------------

    @web.middleware
    async def _record(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            self.requests.append(f"{request.method} {request.path} {error.status}")
            raise
        self.requests.append(f"{request.method} {request.path} {response.status}")
        return response

    @web.middleware
    async def _fail(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path.startswith("/redirected"):
            self.redirected.append(request.path)
        if self._is_faulty(request):
            return await self._faulty(request)
        response = await handler(request)
        return await self._faulty(request) if self._is_faulty(request) else response

    def _is_faulty(self, request: web.Request) -> bool:
        return self.fault is not None and request.path.startswith(self.fault_path)

    async def _faulty(self, request: web.Request) -> web.StreamResponse:
        fault, way = self.fault, request.transport
        assert fault is not None
        headers = {"Metadata-Flavor": self.flavor} if self.flavor else {}
        if fault in _STATUS:
            return web.Response(status=_STATUS[fault], headers=headers)
        if fault in _BODY:
            return web.Response(body=_BODY[fault], headers=headers)
        if fault is Fault.REDIRECT:
            return web.Response(status=302, headers={**headers, "Location": f"{self.base}/redirected"})
        if way is None:
            return web.Response()
        if fault is Fault.RESET:
            way.abort()
        elif fault is Fault.NOT_HTTP:
            way.write(b"SSH-2.0-OpenSSH_9.2\r\n")  # type: ignore[attr-defined]
        elif fault is Fault.LONG_HEADER:
            way.write(b"HTTP/1.1 200 OK\r\nX: " + HUGE + b"\r\n\r\n")  # type: ignore[attr-defined]
        elif fault in (Fault.HALF_OPEN, Fault.CUT):
            way.write(b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 60\r\n\r\n{")  # type: ignore[attr-defined]
        if fault in (Fault.SILENT, Fault.HALF_OPEN):
            await self._closing.wait()
        if fault is Fault.DRIP:
            return await self._drip(request)
        way.close()
        return web.Response()

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Metadata-Flavor": "Google", "Content-Length": "60"})
        await response.prepare(request)
        for _ in range(60):
            await response.write(b" ")
            await asyncio.sleep(0.02)
        return response

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_put("/latest/api/token", self._token)
        meta = "/latest/meta-data"
        router.add_get(f"{meta}/spot/instance-action", self._aws(lambda: self.spot and json.dumps(self.spot)))
        rebalance = self._aws(lambda: self.rebalance and json.dumps({"noticeTime": self.rebalance}))
        router.add_get(f"{meta}/events/recommendations/rebalance", rebalance)
        router.add_get(f"{meta}/events/maintenance/scheduled", self._aws(lambda: json.dumps(self.scheduled)))
        router.add_get(f"{meta}/autoscaling/target-lifecycle-state", self._aws(lambda: self.lifecycle))
        roles = f"{meta}/iam/security-credentials/"
        router.add_get(roles, self._aws(lambda: "trainer-role"))
        router.add_get(roles + "trainer-role", self._aws(_credentials))
        router.add_get(f"{meta}/instance/spot/termination-time", self._alibaba)
        router.add_get("/", self._google_root)
        router.add_get(f"{GOOGLE}/instance", self._google_instance)
        router.add_get(f"{GOOGLE}/instance/upcoming-maintenance", self._google_upcoming)
        router.add_get(GOOGLE + "/instance/{key}", self._google_value)
        router.add_get("/metadata/scheduledevents", self._azure_events)
        router.add_post("/metadata/scheduledevents", self._azure_start)
        router.add_get("/metadata/instance/compute/name", self._azure_name)

    # --- AWS and Alibaba --------------------------------------------------------------------------------------------

    async def _token(self, request: web.Request) -> web.Response:
        prefix = AWS_TOKEN if f"{AWS_TOKEN}-ttl-seconds" in request.headers else ALIBABA_TOKEN
        ttl = request.headers.get(f"{prefix}-ttl-seconds", "")
        if not (ttl.isdecimal() and 1 <= int(ttl) <= 21600):
            raise web.HTTPBadRequest
        if self.token_body is not None:
            return web.Response(body=self.token_body)
        self.tokens_made += 1
        token = f"TOKEN-{self.tokens_made}=="
        self.tokens.add(token)
        lasts = str(self.token_ttl_s or ttl)
        return web.Response(text=token, headers={f"{prefix}-ttl-seconds": lasts})

    def _aws(self, said: Callable[[], str | None]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            return self._tokened(request, AWS_TOKEN, said())

        return answer

    async def _alibaba(self, request: web.Request) -> web.Response:
        return self._tokened(request, ALIBABA_TOKEN, self.released)

    def _tokened(self, request: web.Request, header: str, said: str | None) -> web.Response:
        if request.headers.get(header) not in self.tokens:
            raise web.HTTPUnauthorized
        if said is None:
            raise web.HTTPNotFound
        return web.Response(text=said)

    # --- Google -----------------------------------------------------------------------------------------------------

    def _flavored(self, request: web.Request, said: str, etag: str = "") -> web.Response:
        headers = {"Server": "Metadata Server for VM", **({"ETag": etag} if etag else {})}
        if self.flavor is not None:
            headers["Metadata-Flavor"] = self.flavor
        if request.path != "/" and request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.", headers=headers)
        return web.Response(text=said, content_type="application/text", headers=headers)

    async def _google_root(self, request: web.Request) -> web.Response:
        return self._flavored(request, "computeMetadata/\n")

    async def _google_instance(self, request: web.Request) -> web.Response:
        return self._flavored(request, "hostname\nmaintenance-event\npreempted\n")

    async def _google_value(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if key not in self.google:
            raise web.HTTPNotFound(headers={"Metadata-Flavor": "Google"})
        self._etags.setdefault(key, next(self._etag))
        if request.query.get("wait_for_change") == "true" and self.waits:
            seen = request.query.get("last_etag") or self._tag(key)
            limit_s = float(request.query.get("timeout_sec", "3600"))
            await self._until_changed(key, seen, limit_s)
        return self._flavored(request, self.google[key], self._tag(key))

    async def _until_changed(self, key: str, seen: str, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s), self._changed:
                await self._changed.wait_for(lambda: self._tag(key) != seen or self.fault is not None)
        except TimeoutError:
            return

    def _tag(self, key: str) -> str:
        return f"{self._etags[key]:x}"

    async def _google_upcoming(self, request: web.Request) -> web.Response:
        if self.upcoming is None:
            raise web.HTTPNotFound(headers={"Metadata-Flavor": "Google"})
        return self._flavored(request, self.upcoming)

    # --- Azure ------------------------------------------------------------------------------------------------------

    async def _azure_events(self, request: web.Request) -> web.Response:
        _require_azure(request)
        return web.json_response({"DocumentIncarnation": len(self.events) + 1, "Events": self.events})

    async def _azure_start(self, request: web.Request) -> web.Response:
        _require_azure(request)
        if self.refuse_posts > 0:
            self.refuse_posts -= 1
            raise web.HTTPServiceUnavailable
        wanted = [request["EventId"] for request in (await request.json())["StartRequests"]]
        if not set(wanted) <= {event["EventId"] for event in self.events}:
            raise web.HTTPBadRequest
        self.acknowledged += wanted
        return web.Response()

    async def _azure_name(self, request: web.Request) -> web.Response:
        _require_azure(request)
        if self.machine is None:
            raise web.HTTPInternalServerError
        return web.Response(text=self.machine)


def _require_azure(request: web.Request) -> None:
    if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
        raise web.HTTPBadRequest


def _credentials() -> str:
    return json.dumps(
        {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIAEXAMPLE",
            "SecretAccessKey": "not-a-secret",
            "Token": "not-a-token",
            "Expiration": "2099-01-01T00:00:00Z",
        }
    )
