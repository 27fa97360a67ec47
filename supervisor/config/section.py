"""How a model stands for a section: its keys, what each says in the documentation, and how texts become values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from supervisor.config import values

HERE = "folder"
"""Key of the validation context: a mapping from key to the folder its relative path starts from."""


class Section(BaseModel):
    """A section of the file, checked and frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def ini_keys(cls) -> dict[str, str]:
        """Every key of the INI file, and the field that holds it."""
        return {
            field.alias or name: name
            for name, field in cls.model_fields.items()
            if not (field.json_schema_extra or {}).get("internal")  # type: ignore[union-attr]
        }


def key(default: Any, description: str, *, shown: str | None = None, alias: str | None = None) -> Any:
    """A key of the file. `shown`: the default in words, where it isn't simply `default`."""
    return Field(default=default, description=description, alias=alias, json_schema_extra={"shown": shown})


def required(description: str, *, shown: str | None = None) -> Any:
    """A key without a default in the model; with `shown` the file need not have it, the reader fills it in."""
    return Field(description=description, json_schema_extra={"shown": shown, "required": shown is None})


def internal(description: str, default: Any = ...) -> Any:
    """A field that is no key of the file."""
    return Field(default=default, description=description, json_schema_extra={"internal": True})


def from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Texts go through `parse`; values that are typed already stay as they are."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    folders = info.context[HERE] if info.context else {}
    return Path(values.path(value, str(folders.get(info.field_name, Path.cwd()))))


def _optional_path(value: Any, info: ValidationInfo) -> Any:
    return None if isinstance(value, str) and value.upper() == "NONE" else _path(value, info)


def _interpreter(value: Any, info: ValidationInfo) -> Any:
    """A bare name is left to the search path."""
    if isinstance(value, str) and value and "/" not in value:
        return value
    return str(_path(value, info)) if isinstance(value, str) else value


PATH = BeforeValidator(_path)
OPTIONAL_PATH = BeforeValidator(_optional_path)
INTERPRETER = BeforeValidator(_interpreter)
