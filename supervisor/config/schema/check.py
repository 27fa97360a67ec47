"""A section's texts to its model, with everything that is wrong with them and the place of each."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from supervisor.config.schema.section import Section, SectionError
from supervisor.config.supervisor_keys import Unsupported
from supervisor.ini.expand import ExpansionError, expand
from supervisor.ini.problems import SHOWN, Place, Problem, nearest
from supervisor.ini.source import Section as Written

Model = TypeVar("Model", bound=Section)


class Unknown(Exception):
    """A value is wrong or missing, so that nothing can be said of what depends on it."""


class _Known:
    """A section of which some fields are not known."""

    def __init__(self, section: Section, unknown: Set[str]) -> None:
        self._section, self._unknown = section, unknown

    def __getattr__(self, name: str) -> Any:
        if name in self._unknown:
            raise Unknown(name)
        return getattr(self._section, name)


@dataclass(slots=True)
class Checked:
    """One section on its way to a model. Whatever is found wrong is noted; nothing is raised."""

    written: Written
    problems: list[Problem]
    texts: dict[str, str] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)

    def __contains__(self, key: str) -> bool:
        return key in self.written.entries

    def place(self, key: str | None = None) -> Place:
        """Where the key stands; the section's header, if it has none."""
        entry = self.written.entries.get(key) if key else None
        return entry.place if entry else self.written.place

    def complain(self, text: str, key: str | None = None) -> None:
        """Notes a problem; with `key`, at its line."""
        if key is not None:
            self.wrong.add(key)
        self.problems.append(Problem(self.place(key), f"[{self.written.name}] {text}"))

    def refuse_unknown(self, known: set[str], unsupported: Mapping[str, Unsupported]) -> None:
        """Complains about every key that is neither known nor one of Supervisor's that asks for nothing."""
        for key, entry in self.written.entries.items():
            if key in known:
                continue
            foreign = unsupported.get(key)
            if foreign is None:
                # in a file that is not a configuration at all there may be thousands, and looking for each is slow
                meant = nearest(key, known | unsupported.keys()) if len(self.problems) < SHOWN else None
                self.complain(f"has no key {key!r:.80}" + (f"; did you mean {meant!r}?" if meant else ""), key)
            elif entry.value.lower() not in foreign.harmless:
                text = (
                    f"{key} = {entry.value:.80}: stepkeeper does not support this key of Supervisor's; {foreign.remedy}"
                )
                self.complain(text, key)

    def expand(self, keys: set[str], known: Mapping[str, str]) -> None:
        """Fills the placeholders in the values of these keys."""
        for key in sorted(keys & self.written.entries.keys()):
            entry = self.written.entries[key]
            if "%" not in entry.value:  # most: as often as there are processes, and nothing is to be looked up
                self.texts[key] = entry.value
                continue
            try:
                self.texts[key] = expand(entry.value, {**known, "here": str(entry.folder)})
            except ExpansionError as error:
                self.complain(f"{key} {error}", key)

    def build(self, model: type[Model], computed: Mapping[str, Any]) -> Model | None:
        """The model, or None after complaints. `computed`: values of fields, for keys that the file leaves out."""
        fields = model.ini_keys()
        try:
            built = model.build(*self._given(model, computed))
        except SectionError as error:
            for key, text in error.complaints:
                if key not in self.wrong:
                    self.complain(text, key)
            return None
        return None if self.wrong & fields.keys() else built

    def as_far_as_known(self, model: type[Model], computed: Mapping[str, Any]) -> Model:
        """The model where something is wrong: whoever asks for that, or for what is missing, gets Unknown raised."""
        fields = model.ini_keys()
        known, lost = model.readable(*self._given(model, computed))
        return cast(Model, _Known(known, lost | {fields[key] for key in self.wrong & fields.keys()}))

    def _given(self, model: type[Model], computed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
        fields = model.ini_keys()
        given: dict[str, Any] = {key: text for key, text in self.texts.items() if key in fields}
        for name, value in computed.items():
            given.setdefault(name, value)
        folders = {fields[key]: entry.folder for key, entry in self.written.entries.items() if key in fields}
        return given, folders
