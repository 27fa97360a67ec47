"""The page's files: what a browser gets, and what it is forbidden."""

import importlib.util
import re
from pathlib import Path

import pytest

import supervisor
from supervisor.control.http import web
from supervisor.control.page import files
from supervisor.static import PAGE

TEXTS = {path.name: path.read_text() for path in PAGE.iterdir()}


async def got(path: str) -> web.Response:
    routes = web.Routes()
    files.add_routes(routes)
    return await routes.dispatch(web.Request("GET", path, {}, {}, None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_browser_gets_the_page_where_supervisors_users_expect_it(path: str):
    answer = await got(path)

    assert answer.content_type == "text/html; charset=utf-8"
    assert b"<main" in bytes(answer.body)  # type: ignore[arg-type]


async def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r'(?:href|src)="(/page/[^"]+)"', TEXTS["index.html"] + TEXTS["hosts.html"]))
    named |= {
        f"/page/{name}" for text in TEXTS.values() for name in re.findall(r'(?:from |import\()"\./([^"]+)"', text)
    }

    assert len(named) >= 6
    for path in named:
        assert (await got(path)).status == 200, path


def imported_by(name: str) -> set[str]:
    """The modules that a browser needs before it runs this one."""
    direct = re.findall(r'from "\./([^"]+)"', TEXTS[name])
    return {*direct, *(further for module in direct for further in imported_by(module))}


def test_browser_asks_for_all_modules_of_the_list_at_once():
    """And not for one after another, as each is named by the one before; for other views when they are shown."""
    asked = set(re.findall(r'rel="modulepreload" href="/page/([^"]+)"', TEXTS["index.html"]))

    assert asked == imported_by("main.js")
    assert not asked & {"job.js", "curves.js", "logs.js"}


@pytest.mark.parametrize("path", ["/page/../files.py", "/page/__init__.py", "/page/", "/page/%2e%2e/files.py"])
async def test_nothing_else_is_served(path: str):
    with pytest.raises(web.RequestRefused):
        await got(path)


async def test_scripts_styles_and_frames_of_others_are_forbidden():
    policy = (await got("/")).headers["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy


def test_text_never_becomes_html():
    """What a job says is text; a script in it must stay text."""
    for name, text in TEXTS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
    for name in ("index.html", "hosts.html"):
        assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|style=", TEXTS[name]), "nothing inline"
    texts = "".join(TEXTS.values()).replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert "http://" not in texts, "nothing comes from another server"
    assert "https://" not in "".join(TEXTS.values())


async def test_without_the_plotting_library_there_are_no_plots(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(web.RequestRefused):
        await got("/page/plotly.min.js")


async def test_plotting_library_comes_from_the_installed_package():
    pytest.importorskip("plotly")
    answer = await got("/page/plotly.min.js")

    assert answer.content_type.startswith("text/javascript")
    assert len(bytes(answer.body)) > 1_000_000  # type: ignore[arg-type]


def test_files_are_installed_with_the_package():
    assert Path(supervisor.__file__).parent in PAGE.parents
