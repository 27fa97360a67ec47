"""Imports structlog without rich: it takes rich along wherever that is installed, and here it is for supervisorctl.

The daemon has no use for it, as exceptions are text before structlog renders them, and it would hold 3 MiB. So this
comes before any other module of the daemon that logs.
"""

import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # so the import system knows it as a module that can't be had
    import structlog  # noqa: F401 - imported for all that come after

    del sys.modules["rich"]
