"""The page's files: those of `supervisor/static`, and the plotting library where it is installed."""

import asyncio
import contextlib
import importlib.util
from functools import partial
from http import HTTPStatus
from pathlib import Path

from supervisor.control.http import web
from supervisor.static import SAFETY, TYPES, read_files

INDEX = "index.html"
PLOTS = "plotly.min.js"


def add_routes(routes: web.Routes) -> None:
    """Adds the addresses of the page's files."""
    for name, file in read_files().items():
        respond = partial(_respond, web.Response(file.content, content_type=file.type, headers=SAFETY))
        for path in ("/", f"/{INDEX}") if name == INDEX else (f"/page/{name}",):
            routes.add("GET", path, respond)
    routes.add("GET", f"/page/{PLOTS}", _respond_with_plots)


async def _respond(response: web.Response, request: web.Request) -> web.Response:
    return response


async def _respond_with_plots(request: web.Request) -> web.Response:
    body = await asyncio.to_thread(_read_plots)
    if body is None:
        raise web.RequestRefused(HTTPStatus.NOT_FOUND)
    return web.Response(body, content_type=TYPES[".js"], headers=SAFETY)


def _read_plots() -> bytes | None:
    """The plotting library for browsers (5 MB), from the Python package that carries it; None: it is not installed."""
    spec = importlib.util.find_spec("plotly")  # finds it without importing it
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return Path(folder, "package_data", PLOTS).read_bytes()
    return None
