"""The drawing in docs/state-machine.md is the table, not somebody's memory of it."""

from supervisor.core.diagram import mermaid
from tests.places import ROOT


def test_the_page_holds_the_generated_diagram():
    assert f"```mermaid\n{mermaid()}\n```" in (ROOT / "docs/state-machine.md").read_text(), "make diagram prints it"
