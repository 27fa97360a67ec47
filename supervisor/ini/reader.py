"""The sections of an INI file and of the files it includes: every value with its file and line, nothing interpreted."""

import glob
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.ini.placeholders import ExpansionError, common_placeholders, expand_placeholders
from supervisor.ini.problems import ConfigError, Location, Problem

FILE_NAME = "supervisord.conf"
MAX_FILE_BYTES = 1 << 20  # a thousand programs fit; whatever is larger is some other file
MAX_FILES = 1000  # included ones; a pattern that matches more was a mistake

_HEADER = re.compile(r"\[(?P<name>.+)\]")
_DELIMITER = re.compile(r"[=:]")
_INLINE_COMMENT = re.compile(r"(?:^|(?<=\s))[;#].*")
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class IniKey:
    """A value as it is written. `folder`: absolute folder of the file, what relative paths start from.

    `header`: the line of the section's header above it. `continued`: the indented lines that go on with the value.
    """

    value: str
    location: Location
    folder: Path
    header: Location | None = None
    continued: tuple[tuple[Location, str], ...] = ()


@dataclass(slots=True)
class IniSection:
    """All that was written under one name, wherever; a key's last value holds. Keys are in lower case.

    `replaced`: keys with a value that a later line replaced.
    """

    name: str
    location: Location
    entries: dict[str, IniKey] = field(default_factory=dict)
    replaced: list[tuple[str, IniKey]] = field(default_factory=list)


@dataclass(slots=True)
class IniText:
    """What the files say, and what is wrong with how they say it.

    `included`: the files besides `path`. `searched`: the folders in which a file of the right name would be included,
    empty ones too, with the line that says so.
    """

    path: Path
    folder: Path
    sections: dict[str, IniSection] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    included: list[Path] = field(default_factory=list)
    searched: list[tuple[Path, Location]] = field(default_factory=list)


def read_ini(path: Path, environment: Mapping[str, str], *, includes: bool = True, is_lenient: bool = False) -> IniText:
    """The file and, if wanted, those it includes. Raises ConfigError if the file itself can't be read.

    `is_lenient`: for who needs a few values only; bytes that are not UTF-8 become U+FFFD.
    """
    source = IniText(path, _folder(path))
    text, identity = _content(path, "replace" if is_lenient else "strict")
    parse_ini(text, path, source)
    if includes and (section := source.sections.get("include")):
        _include(source, section, environment, {identity})
    return source


def parse_ini(text: str, file: Path, source: IniText) -> None:
    """Adds to `source` what `text`, the content of `file`, says."""
    parser = _IniParser(file, _folder(file), source)
    for number, line in enumerate(_NEWLINE.split(text), 1):
        parser.feed(line, number)
    parser.end_value()


class _IniParser:
    def __init__(self, file: Path, folder: Path, source: IniText) -> None:
        self._file, self._folder, self._source = file, folder, source
        self._section: IniSection | None = None
        self._key = ""
        self._value: list[str] = []
        self._continued: list[tuple[Location, str]] = []
        self._indent = 0
        self._place = self._header = Location(file)

    def feed(self, line: str, number: int) -> None:
        bare = line.strip()
        if bare.startswith((";", "#")):
            return
        if not bare:
            if self._key:
                self._value.append("")
            return
        content = _INLINE_COMMENT.sub("", line).rstrip()
        indent = len(line) - len(line.lstrip())
        if self._key and indent > self._indent:
            self._value.append(content.strip())
            self._continued.append((Location(self._file, number), content.strip()))
            return
        self.end_value()
        self._place, self._indent = Location(self._file, number), indent
        self._begin(content.strip())

    def _begin(self, content: str) -> None:
        name = section_name(content)
        if name is not None:
            self._header = self._place
            self._section = self._source.sections.setdefault(name, IniSection(name, self._place))
            return
        key, *value = _DELIMITER.split(content, maxsplit=1)
        if content.startswith("["):
            self._wrong(f"{content!r:.80} begins like a [section] but has no ]; add it")
        elif not value or not key.strip():
            remedy = "put a ; before it if it is a remark"
            self._wrong(f"{content!r:.80} is neither a [section] nor a 'key = value'; {remedy}")
        elif self._section is None:
            self._wrong(f"{key.strip()!r:.80} stands before the first [section]; move it into the one it belongs to")
        else:
            self._key, self._value = key.strip().lower(), [value[0].strip()]

    def end_value(self) -> None:
        if self._key and self._section is not None:
            value = "\n".join(self._value).strip()
            if (earlier := self._section.entries.get(self._key)) is not None:
                self._section.replaced.append((self._key, earlier))
            self._section.entries[self._key] = IniKey(
                value, self._place, self._folder, self._header, tuple(self._continued)
            )
        self._key, self._continued = "", []

    def _wrong(self, text: str) -> None:
        self._source.problems.append(Problem(self._place, text))


def section_name(line: str) -> str | None:
    """The name of the section whose header a line is; None if it is none. `[program: x]` is program:x."""
    header = _HEADER.match(line)  # what follows the ] is ignored, in Supervisor too
    return None if header is None else ":".join(map(str.strip, header["name"].split(":", maxsplit=1)))


def _folder(file: Path) -> Path:
    return Path(os.path.abspath(file)).parent  # noqa: PTH100 - resolve() would follow links, here is where it is named


def _content(path: Path, errors: str = "strict") -> tuple[str, tuple[int, int]]:
    """The text of a file, and which file it is. Raises ConfigError: not there, not readable, not text."""
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _unusable(path, "it is not a regular file; name the configuration file itself")
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise _unusable(path, f"{cause}; check the name and the file's permissions") from error
    if len(content) > MAX_FILE_BYTES:
        raise _unusable(path, f"it is larger than {MAX_FILE_BYTES} bytes; is it a configuration file?")
    return _text(content, path, errors), (status.st_dev, status.st_ino)


def _text(content: bytes, path: Path, errors: str) -> str:
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise ConfigError(
            [Problem(Location(path, line), "there is a NUL byte; this is not a text file, or it is damaged")]
        )
    try:
        return content.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem(Location(path, line), text)]) from error


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError([Problem(Location(path), f"cannot read the configuration: {why}")])


def _include(source: IniText, section: IniSection, environment: Mapping[str, str], seen: set[tuple[int, int]]) -> None:
    """Reads the files that [include] names, each once; those they include themselves are refused."""
    for key, entry in section.entries.items():
        if key != "files":
            source.problems.append(
                Problem(entry.location, f"[include] has no key {key!r:.80}; its only key is 'files'")
            )
    entry_or_none = section.entries.get("files")
    if entry_or_none is None:
        source.problems.append(
            Problem(section.location, "[include] has no 'files'; name the files, or delete the section")
        )
        return
    entry = entry_or_none
    for file in _matches(entry, source, environment):
        del source.sections["include"]
        try:
            text, identity = _content(file)
            if identity not in seen:
                seen.add(identity)
                source.included.append(file)
                parse_ini(text, file, source)
        except ConfigError as error:
            source.problems.extend(error.problems)
        if (nested := source.sections.get("include")) is not None:
            text = "an included file can't include others; name them in the main file's [include]"
            source.problems.append(Problem(nested.location, text))
        source.sections["include"] = section


def _matches(entry: IniKey, source: IniText, environment: Mapping[str, str]) -> list[Path]:
    """The files that the patterns match, sorted within each; a pattern without wildcards must match."""
    try:
        patterns = expand_placeholders(entry.value, common_placeholders(entry.folder, environment)).split()
    except ExpansionError as error:
        source.problems.append(Problem(entry.location, f"[include] files {error}"))
        return []
    paths: list[Path] = []
    for pattern in patterns:
        full = str(source.path.parent / os.path.expanduser(pattern))  # noqa: PTH111
        matches = sorted(glob.glob(full))  # noqa: PTH207
        source.searched += ((folder, entry.location) for folder in _searched_folders(full))
        if not matches and not glob.has_magic(pattern):
            text = f"[include] files names {pattern!r:.200}, which does not exist; correct the name or take it out"
            source.problems.append(Problem(entry.location, text))
        paths += map(Path, matches)
    if len(paths) > MAX_FILES:
        text = f"[include] files matches {len(paths)} files, the limit is {MAX_FILES}; make the patterns narrower"
        source.problems.append(Problem(entry.location, text))
        return []
    return paths


def _searched_folders(pattern: str) -> list[Path]:
    """The folders whose names a pattern with wildcards is compared with; of one that is missing, its name."""
    folders: list[str] = []
    while glob.has_magic(pattern):
        folder, name = os.path.split(pattern)
        if glob.has_magic(name):
            folders += glob.glob(folder) if glob.has_magic(folder) else [folder]  # noqa: PTH207
        pattern = folder
    return [Path(path) for path in folders[:MAX_FILES]]


def find_config_file() -> Path:
    """The first configuration file there is in the usual places. Raises ConfigError, naming them all."""
    places = candidates()
    for place in places:
        if is_file(place):
            return place
    listed = ", ".join(map(str, places))
    text = f"cannot find a configuration file; looked for {listed}; name yours with -c FILE"
    raise ConfigError([Problem(Location(Path(FILE_NAME)), text)])


def is_file(path: Path) -> bool:
    """Whether there is such a file, as far as this user may look."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where one may not look


def candidates() -> list[Path]:
    """Supervisor's search order: beside the program's environment, here, then /etc."""
    beside = Path(sys.argv[0]).resolve().parent.parent
    return [
        beside / "etc" / FILE_NAME,
        beside / FILE_NAME,
        Path(FILE_NAME),
        Path("etc") / FILE_NAME,
        Path("/etc") / FILE_NAME,
        Path("/etc/supervisor") / FILE_NAME,
    ]
