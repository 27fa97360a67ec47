"""Text of a stranger's, as a terminal may be given it."""

import codecs
import io
import re
import sys


def printable(text: str) -> str:
    """`text` without what a terminal would obey, which is shown instead: `^[`, `\\x9b`, `\\u202e`.

    Tabs and line breaks stay, and so does all other text, also what joins emoji and letters.
    """
    return text if text.isascii() and text.isprintable() else _OBEYED.sub(_notation, text)


_OBEYED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)"  # control characters
    "|[\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # order; unseen
    "|[\ud800-\udfff]"  # halves of characters
)


def _notation(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def accept_any_text() -> None:
    """Has what the locale's encoding lacks, such as `…` in Latin-1, printed as an escape, not end the output."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
