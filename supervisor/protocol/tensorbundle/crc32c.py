"""The checksum inside TensorFlow's checkpoints and event files, 10 GB/s a core.

The library is loaded with the first checksum or by `load_library`: it brings C++'s own, 1 MiB that a daemon without
jobs never needs.
"""

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def checksum(content: bytes) -> int:
    """The crc32c of some bytes."""
    return extend(0, content)


def extend(crc: int, content: "ReadableBuffer") -> int:
    """The crc32c of what `crc` is that of, and then these bytes, which must be read-only."""
    extended: int = load_library().extend(crc, content)
    return extended


@cache
def load_library() -> ModuleType:
    """Loads it now: for a process that runs on while another version may be installed beneath it."""
    import google_crc32c

    return google_crc32c  # type: ignore[no-any-return]
