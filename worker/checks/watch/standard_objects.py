"""What objects of Python's standard library hold that training can change: settings, queues, buffers, shared memory;
and data frames.

Most of that library's objects are tools (locks, loggers, threads) whose insides change all the time and influence no
training, so they are not searched. Those that hold values for a script are listed here. Imports no framework.
"""

import argparse
import array
import collections
import contextvars
import ctypes
import functools
import io
import itertools
import mmap
import os
import sys
import threading
import types
import weakref
from _queue import SimpleQueue as _SimpleQueue
from collections.abc import Callable, Iterable
from typing import Any

from worker.checks.reachability import closure_of, globals_of
from worker.checks.watch import digests
from worker.checks.watch.script_objects import names_in_code
from worker.state.random_generators import GENERATORS

NAMESPACES = (types.SimpleNamespace, argparse.Namespace, threading.local)
"""Classes of which scripts use the attributes as names of their own."""


def _some_values(mapping: Any) -> tuple[int, list[Any]]:
    return len(mapping), list(itertools.islice(mapping.values(), digests.ENTRIES))


def _part_of_bytes(buffer: io.BytesIO) -> tuple[int, bytes]:
    with buffer.getbuffer() as view:
        return digests.part_of_buffer(view)


def _part_of_text(buffer: io.StringIO) -> tuple[int, str]:
    """Where it is read or written next, and how it begins: all of it could be had as a copy only."""
    at = buffer.tell()
    buffer.seek(0)
    try:
        return at, buffer.read(digests.WHOLE_TEXT)
    finally:
        buffer.seek(at)


_CONTENT: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((collections.UserDict, collections.UserList, collections.UserString), lambda value: value.data),
    (collections.ChainMap, lambda value: value.maps),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), _some_values),
    (array.array, digests.part_of_buffer),
    (io.BytesIO, lambda value: None if value.closed else _part_of_bytes(value)),
    (io.StringIO, lambda value: None if value.closed else _part_of_text(value)),
    (contextvars.ContextVar, lambda value: value.get(None)),
    (contextvars.Context, lambda value: list(value.values())),
    ((ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData), digests.part_of_buffer),
    (ctypes._Pointer, lambda value: value.contents if value else None),
    ((memoryview, mmap.mmap), lambda value: None if _is_for_reading(value) else digests.part_of_buffer(value)),
)
"""Kinds, and how to read what one holds, or of much a part, without changing it."""
_HASHES = frozenset({"_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3"})
"""Modules of objects that hash what they are fed with."""
_DRAWING = frozenset({
    "random", "rand", "randn", "randint", "randperm", "normal", "uniform", "shuffle", "sample", "choice", "permutation",
})  # fmt: skip
"""Names of what draws random numbers, in every library."""


_SEEDING = frozenset({
    "default_rng", "RandomState", "Random", "manual_seed", "PRNGKey", "fold_in", "SeedSequence", "from_seed",
})  # fmt: skip
"""Names of what makes a generator from a number: the same numbers come again."""


def content_of(value: Any) -> Any:
    """What an object of the standard library or a data frame holds, as values or containers; None if it holds nothing
    for a script."""
    for kind, read in _CONTENT:
        if isinstance(value, kind):
            return read(value)
    if is_queue(value):
        return waiting_in(value)
    shared = sys.modules.get("multiprocessing.sharedctypes")
    if shared is not None and isinstance(value, shared.SynchronizedBase):
        return digests.part_of_buffer(value.get_obj())
    blocks = sys.modules.get("multiprocessing.shared_memory")
    if blocks is not None and isinstance(value, blocks.SharedMemory):
        return value.buf
    if type(value).__module__ in _HASHES and not value.name.startswith("shake"):
        return value.digest()
    return digests.part_of_frame(value)


def _is_for_reading(buffer: Any) -> bool:
    with memoryview(buffer) as view:
        return view.readonly


def is_queue(value: Any) -> bool:
    """Whether it is a queue of the standard library, which another thread or task may fill."""
    queues = [module.Queue for name in ("queue", "asyncio") if (module := sys.modules.get(name)) is not None]
    return isinstance(value, (*queues, _SimpleQueue))


def waiting_in(queue: Any) -> Any:
    """What waits in such a queue, as a container; of a SimpleQueue, which does not show that, how much."""
    if isinstance(queue, _SimpleQueue):
        return [queue.qsize()]
    return queue.queue if hasattr(queue, "queue") else queue._queue  # asyncio's


def changes_of_database(value: Any) -> int | None:
    """How many rows a connection or a cursor has changed in a SQLite database that is in memory; None for others."""
    sqlite3 = sys.modules.get("sqlite3")
    if sqlite3 is None or not isinstance(value, sqlite3.Connection | sqlite3.Cursor):
        return None
    try:
        connection = value if isinstance(value, sqlite3.Connection) else value.connection
        is_file = any(place for _, _, place in sqlite3.Cursor(connection).execute("PRAGMA database_list"))
        return None if is_file else connection.total_changes
    except (sqlite3.Error, TypeError, ValueError):  # it is closed, of another thread, or gives rows of its own kind
        return None


def position_of_file(value: Any) -> int | None:
    """How far a file is read, in the file's own measure; None if it is no open file that can be read, or only a pipe.
    One that is written too is a store, not data to go through."""
    if not isinstance(value, io.IOBase) or isinstance(value, io.BytesIO | io.StringIO):
        return None
    try:
        if value.closed or value.writable() or not (value.readable() and value.seekable()):
            return None
        return value.tell()
    except (OSError, ValueError):  # amid `for line in file` a text file does not tell, but what is below it does
        below = getattr(value, "buffer", None)
        return None if below is None else position_of_file(below)


def is_cache(value: Any) -> bool:
    """Whether it is a function with `functools.lru_cache`."""
    return isinstance(value, functools._lru_cache_wrapper)


def cached_draws(cached: Any) -> int | None:
    """How many results a cache holds that a restart would not give again, as the function draws random numbers for
    them; None if it draws none."""
    function = cached.__wrapped__
    if not isinstance(function, types.FunctionType):
        return None
    names = names_in_code(function.__code__)
    draws = (not names.isdisjoint(_DRAWING) and names.isdisjoint(_SEEDING)) or any(
        isinstance(part, GENERATORS) for _, part in (*closure_of(function), *globals_of(function))
    )
    return cached.cache_info().currsize if draws else None


def environment_of(codes: Iterable[types.CodeType]) -> dict[str, str]:
    """The environment variables that code names, if it uses `os.environ`."""
    names: set[str] = set()
    for code in codes:
        names_there = names_in_code(code)
        if not names_there.isdisjoint(("environ", "getenv", "putenv")):
            names |= names_there
    return {name: value for name in sorted(names) if (value := os.environ.get(name)) is not None}
