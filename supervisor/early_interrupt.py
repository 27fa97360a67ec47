"""Ctrl-C while a command still loads its modules ends it with the status of an interrupted command, and no traceback.

Nothing is made by then, so there is nothing to clean up. A command imports this before anything else, and calls `end`
where it takes care of Ctrl-C itself. A process that is no such command, and only imports its modules, is left alone.
"""

import contextlib
import os
import signal
import sys
from pathlib import PurePath

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_COMMANDS = frozenset({"supervisord", "supervisorctl"})
_MODULES = frozenset({"supervisor.daemon", "supervisor.prove.__main__"})  # that `python -m` runs as commands


def begin() -> None:
    """From now on Ctrl-C ends this process at once, unless it is ignored or somebody takes care of it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # another thread than the main one imports this
            signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _is_command() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return PurePath(sys.argv[0]).name in _COMMANDS or (spec is not None and spec.name in _MODULES)


if _is_command():
    begin()
