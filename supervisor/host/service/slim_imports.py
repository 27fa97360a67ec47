"""Imports libraries of the daemon without others that they load only because they find them.

The daemon uses none of these: its clients and the clouds' metadata servers speak plain HTTP (`ssl`), exceptions become
text (`rich`), nothing runs in greenlets, `shutil` unpacks no archives (`bz2`, `lzma`), and Python's own code hashes the
few short texts there are (`_hashlib`, which is OpenSSL; `config/schema/secret.py` loads it for hashed passwords). That
saves 11 of 47 MiB. So this has to be the first import of the daemon. What is loaded already stays as it is.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

OWN_HASHES = (("_md5",), ("_sha1",), ("_sha256", "_sha2"), ("_sha512", "_sha2"), ("_sha3",), ("_blake2",))
"""Python's modules of hashes; the second names are those of Python 3.12. Some distributions build it without them."""

OPENSSL = ("_hashlib",) if all(any(map(find_spec, names)) for names in OWN_HASHES) else ()
UNUSED = {
    "hashlib": OPENSSL,
    "hmac": OPENSSL,
    "shutil": ("bz2", "lzma"),
    "asyncio": ("ssl",),
    "structlog": ("greenlet", "rich"),
}
"""By the library that would load them. The order is that of their imports: structlog loads asyncio."""

for library, unused in UNUSED.items():
    if library in sys.modules or not sys.modules.keys().isdisjoint(unused):
        continue
    for name in unused:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import NAME` raise ImportError
    try:
        import_module(library)  # loaded here for all later imports
    finally:
        for name in unused:
            del sys.modules[name]
