"""Imports asyncio and structlog without `ssl` and `rich`, which both load when they find them.

The daemon uses neither: its clients and the clouds' metadata servers speak plain HTTP, and exceptions become text.
Left out, they save 6 of 33 MiB, which keeps the daemon under twice the memory of PyPI's Supervisor. So this has to be
the first import of the daemon. In a process that has loaded one of the two already, it changes nothing.
"""

import sys

UNUSED = ("rich", "ssl")

if not any(name in sys.modules for name in UNUSED):
    for name in UNUSED:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import NAME` raise ImportError
    try:
        import asyncio  # noqa: F401 - loaded here for all later imports

        import structlog  # noqa: F401
    finally:
        for name in UNUSED:
            del sys.modules[name]
