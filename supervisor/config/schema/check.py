"""Turns the texts of a section into its model, and collects what is wrong with them, each with its line."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from supervisor.config.schema.section import SectionError, SectionModel
from supervisor.config.supervisor_keys import Unsupported
from supervisor.ini.placeholders import ExpansionError, expand_placeholders
from supervisor.ini.problems import SHOWN, Location, Problem, nearest_word
from supervisor.ini.reader import IniSection as Written

Model = TypeVar("Model", bound=SectionModel)


NOWHERE: Mapping[str, Set[str]] = {}
SURELY_MEANT = 0.8  # `workdir`, which stands in many a file for Supervisor, is not `workers`
REMARKED = 5000  # keys without effect that are remarked on: more of them are in no configuration file


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


@lru_cache(maxsize=1000)  # a file of a thousand programs has the same wrong key in each
def _nearest(word: str, known: frozenset[str], likeness: float = 0.7) -> str | None:
    return nearest_word(word, known, likeness)


@dataclass(slots=True)
class SectionReader:
    """Reads one section into a model. Problems and remarks are collected; none is raised.

    `own_keys`: the keys of all sections that Supervisor does not have; None if every unknown key is a problem.
    """

    ini: Written
    problems: list[Problem]
    remarks: list[Problem]
    texts: dict[str, str] = field(default_factory=dict)
    bad_keys: set[str] = field(default_factory=set)
    own_keys: Set[str] | None = None

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
        self.problems.append(Problem(self.location(key), f"[{self.ini.name}] {text}", self.ini.name))

    def add_remark(self, text: str, key: str, *, is_change: bool = False) -> None:
        """Adds what the user should know about a key, though the file can be used as it is.

        `is_change`: the line has an effect, which is not the one that it has in Supervisor.
        """
        self.remarks.append(Problem(self.location(key), f"[{self.ini.name}] {text}", is_change=is_change))

    def report_unknown_keys(
        self, known: set[str], unsupported: Mapping[str, Unsupported], elsewhere: Mapping[str, Set[str]] = NOWHERE
    ) -> None:
        """Adds a problem or a remark for each key that is neither known nor a Supervisor key that asks for nothing.

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
                self._report_unknown_key(key, known | unsupported.keys())
            elif entry.value.lower() in foreign.harmless:
                continue
            elif foreign.is_ignorable or entry.value.lower() in foreign.ignored:
                self.add_remark(f"{key} has no effect: {foreign.remedy}", key)
            else:
                text = f"{key} = {entry.value:.80} is a Supervisor setting that stepkeeper does not support"
                self.add_problem(f"{text}; {foreign.remedy}", key)

    def _report_unknown_key(self, key: str, known: Set[str]) -> None:
        """Adds a remark for a line that Supervisor ignores as well, and a problem where a key of ours may be meant.

        The section decides: one with a key of our own was written for this daemon.
        """
        # a file that is not a configuration may have thousands, and each search is slow
        is_searched = len(self.problems) < SHOWN and len(self.remarks) < REMARKED
        if not is_searched or self._is_meant_for_us(key) or self._is_meant_as_command(key, known):
            meant = nearest_word(key, known) if is_searched else None
            self.add_problem(f"has no key {key!r:.80}" + (f"; did you mean {meant!r}?" if meant else ""), key)
        else:
            meant = _nearest(key, frozenset(known - (self.own_keys or set())))
            hint = f"; did you mean {meant!r}?" if meant else ""
            self.add_remark(f"has no key {key!r:.80}, in Supervisor neither: the line has no effect{hint}", key)

    def _is_meant_for_us(self, key: str) -> bool:
        own = self.own_keys
        if own is None or own & self.ini.entries.keys() or key.startswith("hook_"):
            return True
        return _nearest(key, frozenset(own), SURELY_MEANT) is not None

    def _is_meant_as_command(self, key: str, known: Set[str]) -> bool:
        """Whether it is what the section lacks, also for Supervisor."""
        is_missing = "command" in known and "command" not in self.ini.entries
        return is_missing and _nearest(key, frozenset({"command"})) is not None

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
        values: dict[str, Any] = {key: text for key, text in self.texts.items() if key in fields}
        for name, value in computed.items():
            values.setdefault(name, value)
        folders = {fields[key]: entry.folder for key, entry in self.ini.entries.items() if key in fields}
        return values, folders
