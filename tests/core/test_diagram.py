"""The drawing in ARCHITECTURE.md is the table, not somebody's memory of it."""

from supervisor.core.diagram import mermaid
from tests.places import ROOT


def test_architecture_holds_the_generated_diagram():
    assert f"```mermaid\n{mermaid()}\n```" in (ROOT / "ARCHITECTURE.md").read_text()
