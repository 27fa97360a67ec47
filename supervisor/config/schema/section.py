"""How a class describes a section: its keys, their documentation, and how texts become values.

These are dataclasses, not classes of a validation library: the function that parses a value checks it too,
and such a library would take a fifth of the daemon's memory.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_args, get_origin

from supervisor.config.schema import quantities, texts, words
from supervisor.config.schema.secret import Secret

KeyProblem = tuple[str, str]
"""A key, and what is wrong with it: a text that begins with its name."""


class SectionError(Exception):
    """A section can't be built; `problems` says why."""

    def __init__(self, problems: list[KeyProblem]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """The description of a field. `shown`: the default in words, if the value alone does not say it.

    `alias`: the name of the key, if it differs from the field's.
    """

    description: str
    shown: str | None = None
    alias: str | None = None
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class ValueParser:
    """In an Annotated type: how to parse a value from its text and the folder that relative paths start from."""

    parse: Callable[[str, Path], Any]


def key(default: Any, description: str, *, shown: str | None = None, alias: str | None = None) -> Any:
    """A key of the file."""
    return _field(default, KeyInfo(description, shown, alias))


def required(description: str, *, shown: str | None = None, alias: str | None = None) -> Any:
    """A key without a default in the class; with `shown` the file may leave it out, and the reader computes it."""
    return _field(MISSING, KeyInfo(description, shown, alias))


def internal(description: str, default: Any = MISSING) -> Any:
    """A field that is not a key of the file."""
    return _field(default, KeyInfo(description, is_internal=True))


def _field(default: Any, known: KeyInfo) -> Any:
    metadata = {"key": known}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class SectionModel:
    """A section of the file, checked and frozen. Subclasses are decorated with `section_model`."""

    _by_name: ClassVar[Mapping[str, Field[Any]]]
    """The fields by the names that `build` takes."""

    _readers: ClassVar[Mapping[str, ValueParser | None]]
    """By the same names: how to parse each from its text."""

    _required: ClassVar[tuple[str, ...]]
    """The names that must be given."""

    _ini_keys: ClassVar[Mapping[str, str]]

    @classmethod
    def described_fields(cls) -> Iterator[tuple[Field[Any], KeyInfo]]:
        """Every field with its description."""
        return ((attribute, attribute.metadata["key"]) for attribute in fields(cls))

    @classmethod
    def ini_keys(cls) -> Mapping[str, str]:
        """Every key of the INI file with the name of its field."""
        return cls._ini_keys

    @classmethod
    def build(cls, values: Mapping[str, Any], folders: Mapping[str, Path] | None = None) -> Self:
        """The section, from texts or values by key (internal fields by name).

        Texts are parsed as the field's type says, other values stay as they are. `folders`: where relative paths of a
        field start; by default in the current folder. Raises SectionError with all that is wrong or missing.
        """
        missing = [(name, f"has no '{name}'; add it") for name in cls._required if name not in values]
        parsed, wrong = cls._read(values, folders or {})
        if missing or wrong:
            raise SectionError(missing + wrong)
        return cls(**parsed)

    @classmethod
    def build_partial(cls, values: Mapping[str, Any], folders: Mapping[str, Path]) -> tuple[Self, frozenset[str]]:
        """The section with None for fields that are wrong or missing, and the names of those."""
        parsed, _ = cls._read(values, folders)
        needed = {
            attribute.name for name, attribute in cls._by_name.items() if name in values or is_required(attribute)
        }
        lost = frozenset(needed - parsed.keys())
        return cls(**dict.fromkeys(lost), **parsed), lost

    def non_defaults(self) -> dict[str, Any]:
        """By field: the values that differ from the default, in nested dataclasses too."""
        said: dict[str, Any] = _non_defaults(self)
        return said

    @classmethod
    def _read(cls, values: Mapping[str, Any], folders: Mapping[str, Path]) -> tuple[dict[str, Any], list[KeyProblem]]:
        if strange := values.keys() - cls._by_name.keys():
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(strange))}")
        parsed: dict[str, Any] = {}
        wrong: list[KeyProblem] = []
        for name, attribute in cls._by_name.items():
            try:
                if name in values:
                    parsed[attribute.name] = _value(cls._readers[name], values[name], folders.get(attribute.name))
            except ValueError as error:
                wrong.append((name, f"{name} {error}"))
        return parsed, wrong


Model = TypeVar("Model", bound=SectionModel)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key, required, internal))
def section_model(model: type[Model]) -> type[Model]:
    """Makes a class with keys a SectionModel. It has slots, as every process has a ProgramConfig."""
    made = dataclass(frozen=True, kw_only=True, slots=True)(model)
    made._by_name = {about.alias or attribute.name: attribute for attribute, about in made.described_fields()}
    made._readers = {name: _reader(attribute.type) for name, attribute in made._by_name.items()}
    made._required = tuple(name for name, attribute in made._by_name.items() if is_required(attribute))
    made._ini_keys = {
        about.alias or attribute.name: attribute.name
        for attribute, about in made.described_fields()
        if not about.is_internal
    }
    return made


def _non_defaults(value: Any) -> Any:
    if not is_dataclass(value):
        return value
    values = {attribute: getattr(value, attribute.name) for attribute in fields(value)}
    return {
        attribute.name: _non_defaults(is_)
        for attribute, is_ in values.items()
        if is_required(attribute) or is_ != _default(attribute)
    }


def _default(attribute: Field[Any]) -> Any:
    return attribute.default if attribute.default_factory is MISSING else attribute.default_factory()


def is_required(attribute: Field[Any]) -> bool:
    """Whether the field has no default."""
    return attribute.default is MISSING and attribute.default_factory is MISSING


def parsed_by(parse: Callable[[str], Any]) -> ValueParser:
    """A value that `parse` makes of its text."""
    return ValueParser(lambda text, _: parse(_utf8(text)))


def _value(reader: ValueParser | None, value: Any, folder: Path | None) -> Any:
    if not isinstance(value, str):
        return value
    return _utf8(value) if reader is None else reader.parse(value, folder or Path.cwd())


def _reader(kind: Any) -> ValueParser | None:
    """How to parse a value of a type, also of the one inside `TYPE | None`; words of a closed set read themselves."""
    if (isinstance(kind, type) and issubclass(kind, StrEnum)) or get_origin(kind) is Literal:
        return parsed_by(words.one_of(kind))
    parts = get_args(kind)
    stated = (part for part in parts if isinstance(part, ValueParser))
    return next(stated, None) or next(filter(None, map(_reader, parts)), None)


def _utf8(text: str) -> str:
    """Raises ValueError for bytes of the environment that are not UTF-8; only paths may have such."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is {text!r:.80}, which is not UTF-8; write it in UTF-8") from error
    return text


def _path(text: str, folder: Path) -> Path:
    return Path(texts.absolute_path(text, str(folder)))


def _optional_path(text: str, folder: Path) -> Path | None:
    return None if text.upper() == "NONE" else _path(text, folder)


def _interpreter(text: str, folder: Path) -> str:
    """A bare name is searched for in PATH."""
    return text if text and "/" not in text else str(_path(text, folder))


PATH = ValueParser(_path)
OPTIONAL_PATH = ValueParser(_optional_path)
INTERPRETER = ValueParser(_interpreter)

# --- what the value of a key may be: types that read themselves from the text of the file -------------------------

Boolean = Annotated[bool, parsed_by(words.boolean)]
Bytes = Annotated[int, parsed_by(quantities.size_bytes)]
Count = Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 0))]
Positive = Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 1))]
Mode = Annotated[int, parsed_by(quantities.octal)]
Priority = Annotated[
    int, parsed_by(lambda text: quantities.whole_number(text, -quantities.MAX_PRIORITY, quantities.MAX_PRIORITY))
]
Limit = Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 0, quantities.MAX_LIMIT))]
CountLimit = Annotated[int, parsed_by(lambda text: quantities.resource_limit(text, is_size=False))]
PositiveBytes = Annotated[int, parsed_by(quantities.positive_size)]
SizeLimit = Annotated[int, parsed_by(lambda text: quantities.resource_limit(text, is_size=True))]
Seconds = Annotated[float, parsed_by(quantities.seconds)]
Cores = Annotated[float, parsed_by(quantities.cores)]
Timeout = Annotated[float, parsed_by(quantities.timeout)]
Variables = Annotated[dict[str, str], parsed_by(texts.environment)]
User = Annotated[str, parsed_by(texts.user)]
FilePath = Annotated[Path, PATH]
LogPath = Annotated[Path | None, OPTIONAL_PATH]
Password = Annotated[Secret, parsed_by(Secret)]

LOG_MAXBYTES = 50 << 20
LOG_BACKUPS = 10
