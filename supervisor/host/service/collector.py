"""Keeps Python's collector of reference cycles from looking through the daemon's modules, which stay for good.

While they are loaded it would look through all of them again and again, and find nothing. So this is to be imported
before them. What goes soon, as the first draft of every dataclass with slots, is collected all the same.
"""

import gc

_THRESHOLDS = gc.get_threshold()

gc.set_threshold(*_THRESHOLDS[:2], 10_000)


def is_over() -> None:
    """All is loaded: from now on the collector works as ever, but never looks through any of that."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
