"""The drawing in ARCHITECTURE.md is the table, not somebody's memory of it."""

from pathlib import Path

from supervisor.core.diagram import mermaid

ROOT = Path(__file__).parent.parent.parent


def test_architecture_holds_the_generated_diagram():
    assert f"```mermaid\n{mermaid()}\n```" in (ROOT / "ARCHITECTURE.md").read_text()
