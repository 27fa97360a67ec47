"""Reads what a process printed before it died: its last exception, the ones that led to it, and its last line.

All of it is text of a stranger's: it is cut to MAX_CHARACTERS and MAX_LINES first, and nothing here takes more than
linear time. What TensorFlow prints when it starts, progress bars and warnings are not what anybody died of.
"""

import re
from dataclasses import dataclass

MAX_CHARACTERS = 65_536
MAX_LINES = 400
MAX_LINE = 2000  # characters that are looked at
MAX_SHOWN = 200  # characters of a line that people read
MAX_BLOCK = 60  # lines of the message of an exception
PREFIXES = ("]<stderr>:", "]<stdout>:", "]:")
"""What ends the prefix of a rank: of mpirun, and of torchrun (`[rank3]:`, with a space)."""
HEADER = "Traceback (most recent call last):"
LINKS = ("During handling of the above exception", "The above exception was the direct cause")
IGNORED = ("Exception ignored ", "--- Logging error ---")
_SUFFIXES = ("Error", "Exception", "Interrupt", "Warning", "Exit", "Group", "Iteration")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,20}[@-~]")
_NUMBERED = re.compile(r"[IW]\d{4} \d\d:\d\d:\d{2,10}\.")  # absl, with severity
_DATED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: [IW] ")  # TensorFlow's
_NOISE = (
    "Unable to register cu",  # of libraries that are linked twice
    "Attempting to register factory",
    "computation placer already registered",
    "All log messages before absl::InitializeLog()",
    "oneDNN custom operations are on",
    "To enable the following instructions",
    "This TensorFlow binary is optimized",
    "TF-TRT Warning",
    "warnings.warn(",
    "resource_tracker: There appear to be",
    "CUDA kernel errors might be asynchronously reported",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING",
    "Compile with `TORCH_USE_CUDA_DSA`",
    " from device: CUDA_ERROR_OUT_OF_MEMORY",  # TensorFlow asks again for a tenth less, which may do
)
_WARNINGS = ("Warning: ",)


@dataclass(frozen=True, slots=True)
class RaisedException:
    """An exception as it was printed. `lines`: its own line and what follows of its message."""

    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its class, without modules."""
        return self.lines[0].partition(":")[0].strip().rpartition(".")[2]

    @property
    def headline(self) -> str:
        """Its class and the part of its message that says most."""
        first = self.lines[0].strip()
        if first.endswith((":", "root error(s) found.")) or ":" not in first:
            more = _telling(self.lines[1:], in_node=first.endswith("Graph execution error:"))
            return f"{first} {more}".strip() if more is not None and first.endswith((":", ".")) else first
        return first


@dataclass(frozen=True, slots=True)
class Output:
    """What it printed last. `exception`: the last one; `causes`: those that led to it, the nearest first; `fatal`: the
    line of a fatal error of Python's, with the innermost frame; `last`: the last line that says something."""

    lines: tuple[str, ...]
    exception: RaisedException | None
    causes: tuple[RaisedException, ...]
    fatal: str | None
    last: str | None


def read_output(text: str) -> Output:
    """Reads the end of what was printed."""
    raw = text[-MAX_CHARACTERS:].split("\n")
    cleaned = [_clean(line[:MAX_LINE] if "\r" not in line else line) for line in raw[-MAX_LINES:]]
    lines = [line for line in cleaned if not is_noise(line)]
    exceptions = _exceptions(lines)
    exception, causes = _chain(lines, exceptions)
    return Output(tuple(lines), exception, causes, _fatal(lines), _last(lines))


def shown(line: str) -> str:
    """A line as people may read it: printable, and not too long."""
    text = line[:MAX_LINE]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    text = text.strip()
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def is_noise(line: str) -> bool:
    """Whether a line says nothing about a death: severity I or W of TensorFlow, or known not to matter."""
    return bool(_NUMBERED.match(line) or _DATED.match(line)) or any(noise in line for noise in _NOISE)


def _clean(line: str) -> str:
    """Without progress bars before a carriage return, escapes, the prefix of a rank, and the frame of a group."""
    line = line.rstrip("\r")
    line = line[line.rfind("\r") + 1 :][:MAX_LINE]
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    for mark in PREFIXES if line.startswith("[") else ():
        if mark in line[:20]:
            line = line.partition(mark)[2].removeprefix(" ")
            break
    stripped = line.lstrip(" ")
    while stripped.startswith(("| ", "+ Exception Group")) or stripped == "|":
        line = stripped[2:]
        stripped = line.lstrip(" ")
    return "" if stripped.startswith(("+-+--", "+-----")) else line


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an exception was printed."""

    header: int
    line: int
    is_group: bool = False


def _exceptions(lines: list[str]) -> list[_Place]:
    places: list[_Place] = []
    number = 0
    while number < len(lines):
        if HEADER in lines[number]:
            header, number = number, number + 1
            while number < len(lines) and _is_of_traceback(lines[number]):
                number += 1
            if number < len(lines) and HEADER not in lines[number]:
                if not _is_ignored(lines, header):
                    places.append(_Place(header, number, "Exception Group" in lines[header]))
                number += 1
        elif number and lines[number - 1].startswith(" ") and is_exception(lines[number]):
            places.append(_Place(number, number))  # a SyntaxError has no header
            number += 1
        else:
            number += 1
    return places


def _is_of_traceback(line: str) -> bool:
    return not line or line[0] in " \t"


def _is_ignored(lines: list[str], header: int) -> bool:
    before = next((lines[number] for number in range(header - 1, max(-1, header - 3), -1) if lines[number]), "")
    return before.startswith(IGNORED)


def is_exception(line: str) -> bool:
    """Whether a line begins with the name of an exception, as Python prints it."""
    name = line.partition(":")[0]
    return len(name) < 200 and name.endswith(_SUFFIXES) and all(part.isidentifier() for part in name.split("."))


def _chain(lines: list[str], places: list[_Place]) -> tuple[RaisedException | None, tuple[RaisedException, ...]]:
    if not places:
        return None, ()
    ends = [place.header for place in places[1:]] + [len(lines)]
    raised = [
        RaisedException(tuple(lines[place.line : min(end, place.line + MAX_BLOCK)]) or ("",))
        for place, end in zip(places, ends, strict=True)
    ]
    groups = [number for number, place in enumerate(places) if place.is_group]
    if groups and not any(_is_linked(lines, places, number) for number in range(groups[0] + 1, len(places))):
        return _group(lines, places[groups[0]]), ()
    causes = []
    number = len(places) - 1
    while number > 0 and _is_linked(lines, places, number):
        number -= 1
        causes.append(raised[number])
    return raised[-1], tuple(causes)


def _group(lines: list[str], place: _Place) -> RaisedException:
    """An ExceptionGroup, with the first exception in it that is no group."""
    following = lines[place.line : place.line + MAX_BLOCK]
    members = [line for line in following[1:] if is_exception(line) and "Group: " not in line]
    return RaisedException((": ".join([following[0].strip(), *members[:1]]), *following[1:]))


def _is_linked(lines: list[str], places: list[_Place], number: int) -> bool:
    between = lines[places[number - 1].line : places[number].header]
    return any(line.startswith(LINKS) for line in between[-6:])


def _telling(lines: tuple[str, ...], in_node: bool) -> str | None:
    """The line of a message that says what was wrong: TensorFlow's is before the name of the node."""
    if in_node:
        for number, line in enumerate(lines):
            if line.lstrip().startswith("[[{{node") and number:
                return lines[number - 1].strip()
    return next((line.strip() for line in lines if line.strip(" =-")), None)


def _fatal(lines: list[str]) -> str | None:
    """A fatal error that Python or its faulthandler printed, and where the thread was that had it."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("Fatal Python error: "):
            frames = lines[number + 1 :]
            at = next((n for n, line in enumerate(frames) if line.startswith("Current thread")), -1)
            frame = (
                next((line.strip() for line in frames[at + 1 :] if line.startswith("  File ")), None)
                if at >= 0
                else None
            )
            return lines[number] if frame is None else f"{lines[number]}, in {frame}"
    return None


def _last(lines: list[str]) -> str | None:
    for line in reversed(lines):
        if line.strip() and not any(warning in line for warning in _WARNINGS):
            return line
    return None
