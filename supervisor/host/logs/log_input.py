"""What is written before each line of a log: the time, and whose line it is. Standard library only, for the logger."""

import re
import time


class LinePrefix:
    """Puts the prefix of one pipe before its lines, whatever bytes are in them. Belongs to one thread.

    `template`: a text with `{time}`, `{program}`, `{attempt}` and `{channel}`. The time is that of reading, the same
    for all lines that were read together.
    """

    def __init__(self, template: str, program: str, attempt: int, channel: str) -> None:
        words = {"program": program, "attempt": str(attempt), "channel": channel}
        parts = f"{template} ".split("{time}")
        filled = (re.sub(r"\{(program|attempt|channel)\}", lambda found: words[found[1]], each) for each in parts)
        self._parts = [each.encode(errors="replace") for each in filled]  # the time stands between two of them
        self._is_line_start = True

    def add_to(self, data: bytes) -> bytes:
        """The next piece, with the prefix at the start of each line in it; the piece may end within a line."""
        if not data:
            return data
        prefix = _now().join(self._parts) if len(self._parts) > 1 else self._parts[0]
        ends_line = data.endswith(b"\n")
        inside = (data[:-1] if ends_line else data).replace(b"\n", b"\n" + prefix)
        begin, self._is_line_start = (prefix if self._is_line_start else b""), ends_line
        return b"".join((begin, inside, b"\n" if ends_line else b""))


def _now() -> bytes:
    """Local time with milliseconds and the distance from UTC, as RFC 3339 has it."""
    now = time.time()
    local = time.localtime(now)
    zone = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(now % 1 * 1000):03d}{zone[:3]}:{zone[3:]}".encode()
