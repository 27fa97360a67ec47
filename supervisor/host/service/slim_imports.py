"""Imports asyncio, hashlib and structlog without the libraries that they load only because they find them.

The daemon uses none: its clients and the clouds' metadata servers speak plain HTTP (`ssl`), exceptions become text
(`rich`), nothing runs in greenlets, and Python's own code hashes the few short texts there are (`_hashlib`, which is
OpenSSL; `config/schema/secret.py` loads it for hashed passwords). Left out, they save 10 of 47 MiB. So this has to be
the first import of the daemon. In a process that has loaded one of them already, it changes nothing.
"""

import sys
from importlib.util import find_spec

UNUSED = {"greenlet", "rich", "ssl"}
OWN_HASHES = (("_md5",), ("_sha1",), ("_sha256", "_sha2"), ("_sha512", "_sha2"), ("_sha3",), ("_blake2",))
"""Python's modules of hashes; the second names are those of Python 3.12. Some distributions build it without them."""

if all(any(map(find_spec, names)) for names in OWN_HASHES):
    UNUSED.add("_hashlib")
if UNUSED.isdisjoint(sys.modules):
    for name in UNUSED:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import NAME` raise ImportError
    try:
        import asyncio  # noqa: F401 - loaded here for all later imports
        import hashlib  # noqa: F401
        import hmac  # noqa: F401

        import structlog  # noqa: F401
    finally:
        for name in UNUSED:
            del sys.modules[name]
