"""The page's files: those in static/, and the plotting library where it is installed.

Every answer forbids scripts, styles, frames and connections of other origins (Content-Security-Policy).
"""

import asyncio
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
    for path in ("/", "/index.html"):
        routes.add("GET", path, partial(_respond, "index.html"))
    for file in sorted(STATIC.iterdir()):
        if file.suffix in _TYPES:
            routes.add("GET", f"/page/{file.name}", partial(_respond, file.name))
    routes.add("GET", f"/page/{PLOTS}", partial(_respond, PLOTS))


async def _respond(name: str, request: web.Request) -> web.Response:
    path = _plots_file() if name == PLOTS else STATIC / name
    if path is None:
        raise web.RequestRefused(HTTPStatus.NOT_FOUND)
    body = await asyncio.to_thread(path.read_bytes)
    return web.Response(body, content_type=_TYPES[path.suffix], headers=SAFETY)


def _plots_file() -> Path | None:
    """The plotting library for browsers, from the Python package that carries it; None: it is not installed."""
    spec = importlib.util.find_spec("plotly")  # finds it without importing it
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (file := Path(folder, "package_data", PLOTS)).is_file():
            return file
    return None
