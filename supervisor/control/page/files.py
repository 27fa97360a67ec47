"""The page's files: those in static/, and the plotting library where it is installed.

Every answer forbids scripts, styles, frames and connections of other origins (Content-Security-Policy).
"""

import asyncio
import contextlib
import importlib.util
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

from supervisor.control.http import web

STATIC = Path(__file__).parent / "static"
PLOTS = "plotly.min.js"
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SAFETY: Mapping[str, str] = {
    # the plotting library sets styles of its own; everything else is ours, from this server
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_routes(routes: web.Routes) -> None:
    """Adds the addresses of the page's files."""
    for file in sorted(STATIC.iterdir()):
        if file.suffix in _TYPES:
            # read now: another version of the package may lie there by the time that somebody asks
            respond = partial(
                _respond, web.Response(file.read_bytes(), content_type=_TYPES[file.suffix], headers=SAFETY)
            )
            for path in ("/", "/index.html") if file.name == "index.html" else (f"/page/{file.name}",):
                routes.add("GET", path, respond)
    routes.add("GET", f"/page/{PLOTS}", _respond_with_plots)


async def _respond(response: web.Response, request: web.Request) -> web.Response:
    return response


async def _respond_with_plots(request: web.Request) -> web.Response:
    body = await asyncio.to_thread(_read_plots)
    if body is None:
        raise web.RequestRefused(HTTPStatus.NOT_FOUND)
    return web.Response(body, content_type=_TYPES[".js"], headers=SAFETY)


def _read_plots() -> bytes | None:
    """The plotting library for browsers (5 MB), from the Python package that carries it; None: it is not installed."""
    spec = importlib.util.find_spec("plotly")  # finds it without importing it
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return Path(folder, "package_data", PLOTS).read_bytes()
    return None
