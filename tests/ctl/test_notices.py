"""notices and drill."""

import json

import pytest

from tests.ctl.daemon_end import Fault, program

NOTICE = {
    "source": "aws",
    "id": "1",
    "kind": "preemption",
    "certainty": "certain",
    "deadline_s": 97.4,
    "deadline_wall_at": 1795000000.0,
    "is_cancellable": False,
    "program": None,
    "text": "spot instance is terminated",
}
SOURCES = [
    {"name": "file", "shortest_s": None, "trouble": None},
    {"name": "aws", "shortest_s": 120.0, "trouble": "cannot ask 169.254.169.254: timed out"},
]


def test_notices_are_listed_with_the_health_of_their_sources(daemon, ctl):
    daemon.answers["notices"] = {"notices": [NOTICE], "sources": SOURCES, "shortest_s": 120.0}

    result = ctl("notices")

    lines = [line.split() for line in result.out.splitlines()]
    assert lines[1][:5] == ["aws", "preemption", "certain", "97", "s"]
    assert lines[1][7:] == ["all", "spot", "instance", "is", "terminated"]
    assert lines[4] == ["file", "unknown", "listening"]
    assert lines[5][:3] == ["aws", "120", "s"]
    assert result.out.splitlines()[5].endswith("cannot ask 169.254.169.254: timed out")
    assert result.status == 0


def test_notices_without_sources_say_so(daemon, ctl):
    daemon.answers["notices"] = {"notices": [], "sources": [], "shortest_s": None}

    out = ctl("notices").out

    assert "no notices\n" in out
    assert "notices = off" in out


def test_notices_as_json_are_what_the_daemon_says(daemon, ctl):
    answer = {"notices": [NOTICE], "sources": SOURCES, "shortest_s": 120.0}
    daemon.answers["notices"] = answer

    assert json.loads(ctl("notices", "--json").out) == {"schema": 1, **answer}


@pytest.mark.parametrize(("written", "in_s"), [("30s", 30.0), ("30", 30.0), ("2min", 120.0), ("1.5 hours", 5400.0)])
def test_a_drill_says_when_in_the_units_people_write(daemon, ctl, written, in_s):
    daemon.answers["drill"] = {"name": "all", "id": "1", "kind": "drill", "certainty": "certain"}

    result = ctl("drill", "all", "--in", written)

    assert daemon.asked[-1] == ("drill", {"name": "all", "in_s": in_s})
    assert result.out == f"all: drill started: the host is treated as going away in {written}\n"


def test_a_drill_may_be_possible_only_and_of_a_kind(daemon, ctl):
    daemon.answers["drill"] = {"name": "digits"}

    ctl("drill", "digits", "--in=5s", "--kind", "rebalance", "--possible")

    asked = {"name": "digits", "in_s": 5.0, "kind": "rebalance", "certainty": "possible"}
    assert daemon.asked[-1] == ("drill", asked)


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (Fault("NOT_RUNNING", "there is no drill for digits"), "digits: ERROR (not running)"),
        (Fault("BAD_ARGUMENTS", "kind is 'frob'; it can be drill"), "digits: ERROR (bad arguments)"),
    ],
)
def test_a_drill_that_is_refused_says_why(daemon, ctl, refusal, line):
    daemon.answers["drill"] = refusal

    result = ctl("drill", "digits", "--in", "5s")

    assert result.out == f"{line}\n"
    assert result.err == f"    {refusal}\n"


def test_a_drill_is_taken_back(daemon, ctl):
    daemon.answers["drill"] = {"name": "digits", "withdrawn": 1}

    assert ctl("drill", "digits", "--withdraw").out == "digits: drill withdrawn\n"
    assert daemon.asked[-1] == ("drill", {"name": "digits", "withdraw": True})


@pytest.mark.parametrize("arguments", [("--in", "5s"), ("--withdraw",)])
def test_a_drill_of_a_group_is_one_of_each_of_its_programs(daemon, ctl, arguments):
    programs = [program("w:0"), program("w:1"), program("x")]
    daemon.answers |= {"status": {"programs": programs}, "drill": {"id": "1"}}

    result = ctl("drill", "w:*", *arguments)

    assert [asked["name"] for command, asked in daemon.asked if command == "drill"] == ["w:0", "w:1"]
    assert result.status == 0


def test_a_drill_that_is_refused_is_explained(daemon, ctl):
    daemon.answers["drill"] = Fault("BAD_ARGUMENTS", "kind is 'storm'; it can be preemption, maintenance")

    result = ctl("drill", "digits", "--in", "5s", "--kind", "storm")

    assert (result.out, result.status) == ("digits: ERROR (bad arguments)\n", 1)
    assert "it can be preemption" in result.err


@pytest.mark.parametrize(
    "arguments",
    [(), ("all",), ("--in", "5s"), ("all", "--in"), ("all", "--in", "soon"), ("all", "--in", "5s", "--withdraw"),
     ("all", "--at", "5s"), ("all", "--withdraw", "--possible")],
)  # fmt: skip
def test_a_drill_without_name_or_time_is_not_given(daemon, ctl, arguments):
    result = ctl("drill", *arguments)

    assert result.status == 1
    assert result.out.startswith("Error: ")
    assert daemon.asked == []


def test_drill_needs_permission_to_change(daemon, ctl):
    daemon.answers["drill"] = Fault(
        "FORBIDDEN", "only root, the daemon's user and the socket's owner may", 403, is_whole=True
    )

    assert ctl("drill", "all", "--in", "5s").status == 4
