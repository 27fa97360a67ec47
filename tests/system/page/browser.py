"""What tests of the page ask a browser for."""

import shutil
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


def row(page: Any, name: str) -> Any:
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator(".programs .row").filter(has=link)


def server(port: int, more: str = "") -> str:
    return f"[inet_http_server]\nport=127.0.0.1:{port}\n{more}"


def violations_of(page: Any, axe: str) -> list[tuple[str, str]]:
    """What axe-core finds wrong with the page as it is: the rule, and the first element."""
    page.evaluate(f"{axe};0")
    violations = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [(violation["id"], violation["nodes"][0]["html"]) for violation in violations]
