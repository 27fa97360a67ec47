"""The corpus: labelled deaths, most of them recorded from programs that really died (dying.py), others as reported."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.diagnosis.evidence import DeathKind, Evidence
from tests.core.diagnosis.dying import RECORDED, evidence_of

CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True)
class LabelledDeath:
    """A death, and what it was. `is_first`: it was written down before there was a rule that it tests."""

    name: str
    kind: DeathKind
    is_first: bool
    evidence: Evidence


def corpus() -> list[LabelledDeath]:
    """All of it."""
    deaths = [
        LabelledDeath(values.pop("name"), DeathKind(values.pop("kind")), True, evidence_of(values))
        for values in json.loads(RECORDED.read_text())
    ]
    for path in sorted(CORPUS.glob("public*.toml")):
        for values in tomllib.loads(path.read_text())["death"]:
            del values["seen"]
            is_first = path.stem == "public_first"
            name, kind = values.pop("name"), DeathKind(values.pop("kind"))
            deaths.append(LabelledDeath(name, kind, is_first, evidence_of(values)))
    return deaths
