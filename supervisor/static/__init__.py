"""What browsers get as files, for the daemon's own page (`control/page`) and for supervisorctl's page of several hosts
(`ctl/hosts_page.py`).

Every answer forbids scripts, styles, frames and connections of other origins (Content-Security-Policy).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "page"
TYPES: Mapping[str, str] = {
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


@dataclass(frozen=True, slots=True)
class StaticFile:
    """`type`: for the header Content-Type."""

    content: bytes
    type: str


def read_files() -> dict[str, StaticFile]:
    """All files by name, read now: another version of the package may lie there by the time that somebody asks."""
    files = (file for file in sorted(PAGE.iterdir()) if file.suffix in TYPES)
    return {file.name: StaticFile(file.read_bytes(), TYPES[file.suffix]) for file in files}
