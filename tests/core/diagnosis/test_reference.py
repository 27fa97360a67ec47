"""docs/why-it-died.md has the causes that the rules give."""

from pathlib import Path

from supervisor.core.diagnosis.reference import causes

PAGE = Path(__file__).parents[3] / "docs" / "why-it-died.md"


def test_the_page_has_the_causes_of_the_rules():
    assert "\n".join(causes()) in PAGE.read_text(), "python -m supervisor.core.diagnosis.reference prints it"
