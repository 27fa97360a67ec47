"""Makes the recordings in docs/images, of `make demo` and of a proof: `python -m tests.recording`.

The commands run in a pseudo-terminal, and the pictures show what they printed, as it came; only pauses are shorter. The
argument `demo` or `prove` makes only the one or the other. Needs nothing but what `make demo` installs.

A recording is one SVG: each frame is a picture by rich, shown for its time by a rule of CSS, without a script. Whoever
has asked for less motion sees the last one.
"""

import codecs
import io
import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
BIN = Path(sys.executable).parent
COLUMNS, ROWS = 104, 26
LOOK_EVERY_S = 0.5  # what changes faster is not shown in between
LONGEST_PAUSE_S = 0.9
LAST_S = 8.0  # how long the end is shown before it begins again
COMMANDS = {
    "demo": ("make demo", [sys.executable, "-m", "examples.demo"]),
    "prove": (
        "STEPS=300 supervisord --prove examples/digits.conf",
        [str(BIN / "supervisord"), "--prove", "examples/digits.conf"],
    ),
}

_PIECES = re.compile(
    r"\x1b\[(?P<numbers>[?\d;]*)(?P<letter>[A-Za-z])|(?P<newline>\n)|(?P<return>\r)|(?P<text>[^\x1b\r\n]+)"
)

_CUT = re.compile(r"(\x1b(\[[?\d;]*)?|\r)$")  # what more may follow of, at the end of what was read

_FONTS = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)
"""Fonts that rich would have the browser load from another host."""


class Screen:
    """The lines of a terminal for programs that write whole lines: they go up, erase lines, and write them again."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._style = ""

    def write(self, text: str) -> None:
        """Takes what a program printed; all of an escape sequence."""
        for piece in _PIECES.finditer(text):
            if piece["newline"]:
                self._row += 1
            elif piece["letter"] == "A":
                self._row = max(0, self._row - int(piece["numbers"] or 1))
            elif piece["letter"] in ("K", "J"):
                self.lines[self._row] = ""
                if piece["letter"] == "J":
                    del self.lines[self._row + 1 :]
            elif piece["letter"] == "m":
                self._style = piece[0]
                self.lines[self._row] += piece[0]
            elif piece["return"]:
                self.lines[self._row] = self.lines[self._row] if text[piece.end() : piece.end() + 1] == "\n" else ""
            elif piece["text"]:
                self.lines[self._row] += piece["text"]
            while self._row >= len(self.lines):
                self.lines.append("")


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands on the screen from a time on, in seconds from the beginning."""

    at: float
    lines: tuple[str, ...]


def record(command: list[str], environment: dict[str, str]) -> list[Frame]:
    """Runs it in a terminal of its own. Raises RuntimeError if it fails."""
    terminal, slave = pty.openpty()
    size = {
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **size, **environment}, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    began, screen, frames, looked_at = time.monotonic(), Screen(), [Frame(0.0, ())], 0.0
    decoder, held = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    while True:
        ready, _, _ = select.select([terminal], [], [], LOOK_EVERY_S)
        now = time.monotonic() - began
        if ready:
            try:
                held += decoder.decode(os.read(terminal, 65536))
            except OSError:  # the last writer has closed it
                break
            cut = _CUT.search(held)
            end = len(held) if cut is None else cut.start()
            screen.write(held[:end])
            held = held[end:]
        if now - looked_at >= LOOK_EVERY_S:
            looked_at = now
            frames.append(Frame(now, tuple(screen.lines[-ROWS:])))
    frames.append(Frame(time.monotonic() - began, tuple(screen.lines[-ROWS:])))
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(screen.lines))
    return frames


def changed(frames: list[Frame], most: int = 22) -> Iterator[Frame]:
    """At most about that many that differ from the one before, those with a new line first of all."""
    step = max(1, len(frames) // most)
    shown: tuple[str, ...] | None = None
    for number, frame in enumerate(frames):
        is_new_line = shown is None or len(frame.lines) != len(shown) or number == len(frames) - 1
        if frame.lines != shown and (is_new_line or number % step == 0):
            shown = frame.lines
            yield frame


def picture(frame: Frame, title: str, number: int, rows: int, name: str) -> str:
    """One frame of so many rows as an SVG."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ {title}"))
    lines = [*frame.lines, *[""] * (rows - len(frame.lines))]
    for line in lines[:rows]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    drawn = console.export_svg(title=title, unique_id=f"{name}{number}")
    return _FONTS.sub("", drawn[drawn.index("<svg") :])


def animate(frames: list[Frame], title: str, name: str) -> str:
    """All frames in one SVG, each shown for its time."""
    pauses = [min(later.at - frame.at, LONGEST_PAUSE_S) for frame, later in itertools.pairwise(frames)]
    pauses.append(LAST_S)
    whole_s, rows = sum(pauses), max(len(frame.lines) for frame in frames)
    rules, pictures, at = [], [], 0.0
    for number, (frame, pause) in enumerate(zip(frames, pauses, strict=True)):
        begin, end = 100 * at / whole_s, 100 * (at + pause) / whole_s
        rules.append(
            f"@keyframes f{number} {{ 0%, {begin:.3f}% {{ visibility: hidden }} {begin:.3f}%, {end:.3f}% "
            f"{{ visibility: visible }} {end:.3f}%, 100% {{ visibility: hidden }} }}\n"
            f".f{number} {{ animation: f{number} {whole_s:.2f}s step-end infinite; visibility: hidden }}"
        )
        pictures.append(f'<g class="f{number}">{picture(frame, title, number, rows, name)}</g>')
        at += pause
    last = len(frames) - 1
    rules.append(
        "@media (prefers-reduced-motion: reduce) { g[class^=f] { animation: none } "
        f".f{last} {{ visibility: visible }} }}"
    )
    size = re.search(r'viewBox="([^"]+)"', pictures[0])
    assert size is not None
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size[1]}" role="img" aria-label="{title}">\n'
        f"<style>\n{chr(10).join(rules)}\n</style>\n{chr(10).join(pictures)}\n</svg>\n"
    )


def main() -> None:
    for name in sys.argv[1:] or COMMANDS:
        title, command = COMMANDS[name]
        frames = list(changed(record(command, {"STEPS": "300"} if name == "prove" else {})))
        (IMAGES / f"{name}.svg").write_text(animate(frames, title, name))
        print(f"{name}.svg: {len(frames)} frames, {(IMAGES / f'{name}.svg').stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
