"""A password as the configuration holds it: hashed with scrypt, as Supervisor's `{SHA}`, or in clear text."""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

LOG_N, R, P = 15, 8, 3  # 32 MiB and about 0.1 s for each guess: OWASP's Password Storage Cheat Sheet lists this choice
MAX_LOG_N = 20  # 1 GiB at R = 8: a hash from outside must not take all memory
SALT_BYTES, KEY_BYTES = 16, 32

_SCRYPT = re.compile(r"\{SCRYPT\}(\d{1,2}):(\d{1,2}):(\d{1,2})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)")
_SHA = re.compile(r"\{SHA\}([0-9a-fA-F]{40})")


@dataclass(frozen=True, slots=True)
class _Scrypt:
    derive: Callable[..., bytes]
    log_n: int
    r: int
    p: int
    salt: bytes

    def of(self, password: bytes) -> bytes:
        n = 1 << self.log_n
        memory = 128 * self.r * (n + self.p + 2)
        return self.derive(password, salt=self.salt, n=n, r=self.r, p=self.p, maxmem=memory, dklen=KEY_BYTES)


class Secret:
    """What a password is compared with. Never shows it."""

    def __init__(self, text: str) -> None:
        """`text` as written: `{SCRYPT}…`, `{SHA}…`, or the password itself. Raises ValueError if it is malformed."""
        self._scrypt: _Scrypt | None = None
        self._sha1 = False
        if text.startswith("{SCRYPT}"):
            self._scrypt, self._wanted = _scrypt(text)
        elif text.startswith("{SHA}"):
            match = _SHA.fullmatch(text)
            if match is None:
                raise ValueError("begins with {SHA}, but what follows is not the 40 hex digits of a SHA-1")
            self._sha1, self._wanted = True, bytes.fromhex(match[1])
        else:
            self._wanted = text.encode()
        self._text = text

    @property
    def is_slow(self) -> bool:
        """Whether a comparison takes as long as guessing is meant to take: do it in a thread."""
        return self._scrypt is not None

    def matches(self, password: str) -> bool:
        """Whether it is the password; takes the same time wherever they differ."""
        tried = password.encode(errors="surrogatepass")
        if self._scrypt is not None:
            tried = self._scrypt.of(tried)
        elif self._sha1:
            tried = hashlib.sha1(tried, usedforsecurity=False).digest()  # Supervisor's form, accepted and not offered
        return hmac.compare_digest(tried, self._wanted)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"


def hash_password(password: str) -> str:
    """The password as it may stand in a file: salted and slow to guess."""
    how = _Scrypt(_load_scrypt(), LOG_N, R, P, os.urandom(SALT_BYTES))
    salt, key = (base64.b64encode(part).decode() for part in (how.salt, how.of(password.encode())))
    return f"{{SCRYPT}}{LOG_N}:{R}:{P}${salt}${key}"


def _scrypt(text: str) -> tuple[_Scrypt, bytes]:
    match = _SCRYPT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        log_n, r, p = int(match[1]), int(match[2]), int(match[3])
        salt, key = base64.b64decode(match[4], validate=True), base64.b64decode(match[5], validate=True)
        if not (1 <= log_n <= MAX_LOG_N and 1 <= r <= 8 and 1 <= p <= 16 and len(key) == KEY_BYTES):
            raise ValueError
    except (ValueError, binascii.Error) as error:
        raise ValueError(
            "begins with {SCRYPT}, but what follows is no such hash; make one with supervisord --hash-password"
        ) from error
    return _Scrypt(_load_scrypt(), log_n, r, p, salt), key


def _load_scrypt() -> Callable[..., bytes]:
    """OpenSSL's scrypt, loaded only for a hashed password: it takes 3.5 MiB, and the daemon's hashlib lacks it."""
    from _hashlib import scrypt

    return scrypt
