"""Judges the built site: `python -m tests.site build/site`, a part of `make docs`.

MkDocs itself refuses broken links between pages, and anchors that are missing, in what people wrote. This looks at the
pages as a browser gets them: every link and anchor leads somewhere, nothing is loaded from another host, and the API
page has each public name of `worker`.
"""

import ast
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.places import ROOT

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
NOT_LOADED = {"canonical", "prev", "next"}  # of <link rel=...>


class SitePage(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if given.get("rel") not in NOT_LOADED:
            self.loads += [str(given[name]) for name in given if (tag, name) in LOADED]


def problems(site: Path) -> list[str]:
    """What is wrong with the site, a line each."""
    pages = {path: SitePage(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for loaded in page.loads:
            if urlsplit(loaded).netloc:
                found.append(f"{name} loads {loaded} from another host")
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name} links to {link}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {link}, an anchor that is not there")
    text = (ROOT / "worker/__init__.py").read_text()
    public = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    api = pages[site / "api.html"]
    documented = {anchor.removeprefix("worker") for anchor in api.anchors}
    found += [f"api.html lacks worker.{name}" for name in public if name.lower() not in documented]
    return found


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    print("\n".join(found) or f"{site}: every link leads somewhere, and nothing comes from another host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
