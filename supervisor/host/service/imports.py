"""Imports asyncio and structlog without what they take along wherever it is there, and the daemon never uses.

That is `ssl`, 4 MiB: its clients come without TLS, and so do the clouds' notices. And `rich`, 3 MiB, here for
supervisorctl: exceptions are text before structlog could have it draw them. Both do without either. So this is
the first import of the daemon; in a process that has one of the two already nothing is left out.
"""

import sys

LEFT_OUT = ("rich", "ssl")

if not any(name in sys.modules for name in LEFT_OUT):
    for name in LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]  # how the import system knows what can't be imported
    try:
        import asyncio  # noqa: F401 - this and the next for all that come after

        import structlog  # noqa: F401
    finally:
        for name in LEFT_OUT:
            del sys.modules[name]
