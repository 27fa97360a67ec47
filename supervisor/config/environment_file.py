"""Files of environment variables, as systemd's EnvironmentFile= and dotenv have them: one KEY=VALUE a line.

Nothing in a value is replaced: `$HOME` is these five characters. Messages name lines and never repeat what is in them,
as such files hold passwords.
"""

import errno
import re
from pathlib import Path

from supervisor.protocol.durable import open_regular

MAX_BYTES = 64 * 1024  # the kernel takes 128 KiB a variable and 2 MiB in all
_LINE = re.compile(r"(?:export\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_QUOTED = re.compile(r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)')\s*(?:[#;].*)?""")
_COMMENT = re.compile(r"(?:^|\s+)#.*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_environment_file(path: Path) -> dict[str, str]:
    """The variables in a file. Raises ValueError, whose text goes on after the key's name."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise ValueError(f"is {path}, which is not a regular file; name a file of KEY=VALUE lines") from error
        remedy = "correct the path, or begin it with - if the file may be missing"
        raise ValueError(f"cannot be read: {path}: {error.strerror}; {remedy}") from error
    if len(content) > MAX_BYTES:
        raise ValueError(f"is {path}, which is larger than {MAX_BYTES} bytes; name a file of KEY=VALUE lines")
    try:
        return parse_environment_file(content.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        raise ValueError(f"is {path}, which is not UTF-8; save it as UTF-8") from error


def parse_environment_file(text: str, path: Path) -> dict[str, str]:
    """The variables in a text; of two lines for one variable the later holds. Raises ValueError."""
    variables: dict[str, str] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        bare = line.strip()
        if not bare or bare.startswith(("#", ";")):
            continue
        match = _LINE.fullmatch(bare)
        value = _value(match["value"]) if match is not None else None
        if match is None or value is None or "\0" in bare:
            raise ValueError(
                f'is {path}, whose line {number} can\'t be read; write KEY=VALUE or KEY="VALUE" in one line, and '
                f"# before a remark"
            )
        variables[match["key"]] = value
    return variables


def _value(text: str) -> str | None:
    """The value of a line; None if a quotation mark is not closed, or something follows it."""
    if not text.startswith(("'", '"')):
        return _COMMENT.sub("", text, count=1).rstrip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return None
    if quoted["single"] is not None:
        return quoted["single"]
    return re.sub(r"\\(.)", lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), quoted["double"])
