"""Turns the texts of a section into its model, and collects what is wrong with them, each with its line."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from supervisor.config.schema.section import SectionError, SectionModel
from supervisor.config.supervisor_keys import Unsupported
from supervisor.ini.placeholders import ExpansionError, expand_placeholders
from supervisor.ini.problems import SHOWN, Location, Problem, nearest_word
from supervisor.ini.reader import IniSection as Written

Model = TypeVar("Model", bound=SectionModel)


NOWHERE: Mapping[str, Set[str]] = {}


class UnknownValue(Exception):
    """A value is wrong or missing, so what depends on it can't be checked."""


class _PartialSection:
    """A model with fields that have no usable value; reading one of those raises UnknownValue."""

    def __init__(self, section: SectionModel, unknown: Set[str]) -> None:
        self._section, self._unknown = section, unknown

    def __getattr__(self, name: str) -> Any:
        if name in self._unknown:
            raise UnknownValue(name)
        return getattr(self._section, name)


@dataclass(slots=True)
class SectionReader:
    """Reads one section into a model. Problems and remarks are collected; none is raised."""

    ini: Written
    problems: list[Problem]
    remarks: list[Problem]
    texts: dict[str, str] = field(default_factory=dict)
    bad_keys: set[str] = field(default_factory=set)

    def __contains__(self, key: str) -> bool:
        return key in self.ini.entries

    def location(self, key: str | None = None) -> Location:
        """The line of a key, or of the section's header if the key is missing."""
        entry = self.ini.entries.get(key) if key else None
        return entry.location if entry else self.ini.location

    def add_problem(self, text: str, key: str | None = None) -> None:
        """Adds a problem; with `key`, at its line."""
        if key is not None:
            self.bad_keys.add(key)
        self.problems.append(Problem(self.location(key), f"[{self.ini.name}] {text}"))

    def add_remark(self, text: str, key: str) -> None:
        """Adds what the user should know about a key, though the file can be used as it is."""
        self.remarks.append(Problem(self.location(key), f"[{self.ini.name}] {text}"))

    def report_unknown_keys(
        self, known: set[str], unsupported: Mapping[str, Unsupported], elsewhere: Mapping[str, Set[str]] = NOWHERE
    ) -> None:
        """Adds a problem for each key that is neither known nor a Supervisor key with a value that changes nothing.

        `elsewhere`: by the header of other sections, their keys in Supervisor, which ignores them here.
        """
        for key, entry in self.ini.entries.items():
            if key in known:
                continue
            foreign = unsupported.get(key)
            home = next((header for header, keys in elsewhere.items() if key in keys), None)
            if foreign is None and home is not None:
                self.add_remark(f"{key} has no effect here, in Supervisor neither: it belongs into {home}", key)
            elif foreign is None:
                # a file that is not a configuration may have thousands, and each search is slow
                meant = nearest_word(key, known | unsupported.keys()) if len(self.problems) < SHOWN else None
                self.add_problem(f"has no key {key!r:.80}" + (f"; did you mean {meant!r}?" if meant else ""), key)
            elif entry.value.lower() in foreign.ignored:
                self.add_remark(f"{key} has no effect: {foreign.remedy}", key)
            elif entry.value.lower() not in foreign.harmless:
                text = f"{key} = {entry.value:.80} is a Supervisor setting that stepkeeper does not support"
                self.add_problem(f"{text}; {foreign.remedy}", key)

    def expand_values(self, keys: set[str], known: Mapping[str, str]) -> None:
        """Fills the placeholders in the values of these keys."""
        for key in sorted(keys & self.ini.entries.keys()):
            entry = self.ini.entries[key]
            if "%" not in entry.value:  # most of them, and this runs once for each process
                self.texts[key] = entry.value
                continue
            try:
                self.texts[key] = expand_placeholders(entry.value, {**known, "here": str(entry.folder)})
            except ExpansionError as error:
                self.add_problem(f"{key} {error}", key)

    def build_model(self, model: type[Model], computed: Mapping[str, Any]) -> Model | None:
        """The model, or None if there are problems. `computed`: values of fields, for keys that the file leaves out."""
        fields = model.ini_keys()
        try:
            built = model.build(*self._given(model, computed))
        except SectionError as error:
            for key, text in error.problems:
                if key not in self.bad_keys:
                    self.add_problem(text, key)
            return None
        return None if self.bad_keys & fields.keys() else built

    def build_partial(self, model: type[Model], computed: Mapping[str, Any]) -> Model:
        """The model of a section with problems: reading a field that is wrong or missing raises UnknownValue."""
        fields = model.ini_keys()
        known, lost = model.build_partial(*self._given(model, computed))
        return cast(Model, _PartialSection(known, lost | {fields[key] for key in self.bad_keys & fields.keys()}))

    def _given(self, model: type[Model], computed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
        fields = model.ini_keys()
        given: dict[str, Any] = {key: text for key, text in self.texts.items() if key in fields}
        for name, value in computed.items():
            given.setdefault(name, value)
        folders = {fields[key]: entry.folder for key, entry in self.ini.entries.items() if key in fields}
        return given, folders
