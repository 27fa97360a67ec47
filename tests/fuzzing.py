"""Feeds parsers: the one way, and how many cases each such test is run with.

A test says what its parser reads when all is right (`contents` damages that) or which values may stand where (`JSON`),
and what must hold for whatever is read; Hypothesis makes the cases and shrinks what fails. In the suite there are few,
where somebody asks for more there are FUZZ_CASES.
"""

import contextlib
import json
import os
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FUZZ_CASES", "0"))
"""0: as many as each test says."""
QUICK = "QUICK" in os.environ
"""`make quick` sets it: a tenth of the cases, for every edit; `make check` and `make test` run all."""

TOKENS = (
    b"1e999", b"Infinity", b"NaN", b"null", b"true", b"[", b"{", b"}", b"]", b'"', b"\\", b"\\ud800", b"-1", b"0",
    b"9" * 400, b"9" * 19, b"\0", b"\xff\xfe", b"\n", b"\r\n", b":", b",", b"[" * 2000, b"../", b"/", b"\x1b[2J",
    b"\xe2\x80\xa8", b"\xff" * 9, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"x" * 5000,
)  # fmt: skip
"""What parsers of text, of JSON, of numbers of variable length and of terminals may stumble over."""
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 1 << 62, 1 << 63, 10**400, 0.5, 1e300, -0.0, float("nan"), float("inf"), "", "x", "7",
    "../x", "/etc/passwd", "\0", "\ud800", "\x1b[2J", "x" * 14_000, [], [[]], [1, "x"], [None] * 3000, {}, {"": {}},
    {"name": []}, {"step": "7", "epoch": -1},
)  # fmt: skip
"""What may stand where a JSON document has another value."""
ALTERED_SHARE, DEEPER_SHARE = 0.4, 0.8
MAX_SEED = (1 << 62) - 1
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([-1, 0, 1, 1 << 62, 1 << 63, 10**400, 1e300, -0.0])
)


def cases(few: int, **other: Any) -> settings:
    """The settings of a test that feeds a parser; `few`: cases in `make test`, enough to notice a broken parser."""
    return settings(max_examples=CASES or (max(few // 10, 5) if QUICK else few // 2), derandomize=not CASES, **other)


def jsons(*keys: str) -> st.SearchStrategy[Any]:
    """Any value that JSON can hold, in whose objects these keys are frequent; with Infinity and NaN, as many write."""
    words = st.sampled_from(keys) | st.text(max_size=5) if keys else st.text(max_size=5)
    return st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5), max_leaves=8
    )


JSON = jsons()


def written(value: Any) -> bytes:
    """As JSON."""
    return json.dumps(value).encode()


def contents(*samples: bytes, tokens: tuple[bytes, ...] = ()) -> st.SearchStrategy[bytes]:
    """These damaged, or if they are JSON with another value somewhere, or nothing like them.

    `tokens`: words that the parser knows. A case is one number, as drawing all of it would take ten times as long.
    """

    def case(seed: int) -> bytes:
        chance = random.Random(seed)
        sample = chance.choice(samples)
        if chance.random() < ALTERED_SHARE:
            with contextlib.suppress(ValueError):
                return written(_altered(json.loads(sample), chance))
        return _damaged(sample, chance, (*TOKENS, *tokens))

    return st.one_of(st.integers(0, MAX_SEED).map(case), st.integers(0, MAX_SEED).map(case), st.binary(max_size=200))


def _damaged(content: bytes, chance: random.Random, tokens: tuple[bytes, ...]) -> bytes:
    """With one to four changes: other bytes, tokens put in or in the place of something, pieces lost or doubled."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(content))
        end = min(len(content), start + chance.choice((0, 1, 1, 2, 8, 30)))
        piece = chance.choice((b"", content[start:end] * 2, chance.randbytes(end - start or 1), chance.choice(tokens)))
        content = content[:start] + piece + content[end:]
    return content


def _altered(value: Any, chance: random.Random) -> Any:
    """The value with another one at a random depth."""
    if isinstance(value, dict) and value and chance.random() < DEEPER_SHARE:
        key = chance.choice(sorted(value))
        return {**value, key: _altered(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < DEEPER_SHARE:
        return [*value, _altered(value[0], chance)]
    return chance.choice(VALUES)
