"""docs/supervisorctl.md says what the code does: every action and option, and none that isn't there."""

import re

from supervisor.ctl.actions.table import TABLE
from supervisor.ctl.main import parser
from supervisor.ctl.terminal import SCHEMA, ExitStatus
from tests.places import ROOT
from tests.system.test_conformance import OF_OUR_CLIENT

PAGE = (ROOT / "docs/supervisorctl.md").read_text()
USAGES = [usage for action in TABLE.values() for usage in action.usage.items()]


def test_the_page_has_every_way_to_call_every_action_and_no_other():
    written = re.findall(r"^\* `([a-z]+[^`]*)`: (.+)$", PAGE, re.MULTILINE)

    assert sorted(written) == sorted(USAGES)


def test_the_page_has_a_section_for_every_action():
    actions = PAGE[PAGE.index("## Actions") : PAGE.index("## JSON")]

    assert sorted(re.findall(r"^### (\w+)$", actions, re.MULTILINE)) == sorted(TABLE)


def test_the_page_has_every_option_and_no_other():
    options = PAGE[PAGE.index("## Options") : PAGE.index("## Names")]
    known = set(re.findall(r"(?<![\w-])--?[a-z_]+(?:-[a-z]+)*", parser().format_help().split("actions:")[0]))

    first_cells = " ".join(re.findall(r"^\| (`.+?) \|", options, re.MULTILINE))
    assert set(re.findall(r"--?[a-z_]+(?:-[a-z]+)*", first_cells)) == known


def test_the_help_keeps_every_way_to_call_an_action_apart_from_its_meaning():
    shown = parser().format_help()

    for usage, meaning in USAGES:
        assert re.search(rf"^  {re.escape(usage)} {{2,}}{re.escape(meaning)}$", shown, re.MULTILINE), usage


def test_the_page_has_every_exit_status():
    statuses = PAGE[PAGE.index("## Exit status") : PAGE.index("## Interactive shell")]

    assert {int(status) for status in re.findall(r"^\| (\d+) ", statuses, re.MULTILINE)} == {*map(int, ExitStatus), 130}


def test_the_page_says_what_every_action_gives_as_json():
    table = PAGE[PAGE.index("| Action | Keys") : PAGE.index("## Exit status")]
    names = {name for cell in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for name in cell.split(", ")}

    assert TABLE.keys() - names == {"completion", "fg", "open"}  # no object, that of status


def test_the_page_names_the_schema():
    assert f"`schema` is {SCHEMA}" in PAGE


def test_the_page_has_every_reason_for_which_it_differs_from_supervisors():
    reasons = {difference.reason for differences in OF_OUR_CLIENT.values() for difference in differences}

    last_cells = set(re.findall(r"\| ([^|\n]+) \|$", PAGE[PAGE.index("## Where it differs") :], re.MULTILINE))
    assert reasons == last_cells - {"why"}
