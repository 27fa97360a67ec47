"""Imports asyncio, aiohttp and structlog without what they take along wherever it is there, and the daemon never uses.

That is `ssl`, 4 MiB: its clients come without TLS, and so do the clouds' notices. And `rich`, 3 MiB, here for
supervisorctl: exceptions are text before structlog could have it draw them. All three do without either. So this is
the first import of the daemon; in a process that has one of the two already nothing is left out.
"""

import sys

LEFT_OUT = ("rich", "ssl")
PARTIAL = ("http.client", "urllib.request")
"""Modules of the standard library that are made without their HTTPS half where there is no `ssl`."""

if not any(name in sys.modules for name in (*LEFT_OUT, *PARTIAL)):
    for name in LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]  # how the import system knows what can't be imported
    try:
        import asyncio  # noqa: F401 - this and the next for all that come after

        import aiohttp.web  # noqa: F401
        import structlog  # noqa: F401
    finally:
        for name in LEFT_OUT:
            del sys.modules[name]
        for name in PARTIAL:  # who asks for them from now on (prometheus_client) gets whole ones
            sys.modules.pop(name, None)
