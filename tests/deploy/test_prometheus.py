"""Alert rules, their tests, the dashboard and the runbook: judged by promtool, and held to what /metrics gives."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from supervisor.control.metrics.page import exposition
from supervisor.core.failures.restart import Cause
from supervisor.core.program.facts import State
from tests.control.metrics.test_page import whole_sample
from tests.deploy.tools import DEPLOY, judge, tool
from tests.system.harness import Daemon

PROMETHEUS = DEPLOY / "prometheus"
RULES = PROMETHEUS / "stepkeeper.rules.yml"
TESTS = PROMETHEUS / "stepkeeper.rules.test.yml"
DASHBOARD = DEPLOY / "grafana" / "stepkeeper.json"
RUNBOOK = DEPLOY / "runbook.md"
FOREIGN = {"node_textfile_mtime_seconds"}  # node_exporter's: how old the file is that our metrics come in


def exported() -> set[str]:
    text, _ = exposition(whole_sample(1), "")
    return {sample.name for family in text_string_to_metric_families(text.decode()) for sample in family.samples}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def names_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:stepkeeper|node|process)_\w+", query))


QUERIES = [*((rule["alert"], rule["expr"]) for rule in alerts()), *dashboard_queries()]


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_queries_name_only_metrics_that_are_exported(where: str, query: str):
    assert names_in(query)
    assert names_in(query) <= exported() | FOREIGN


def test_queries_name_only_states_and_causes_that_exist():
    known = {"state": {str(state) for state in State}, "cause": {str(cause) for cause in Cause}}
    for where, query in QUERIES:
        for label, text in re.findall(r'\b(state|cause)[=!]~?"([^"]*)"', query):
            assert set(text.split("|")) <= known[label], where


def test_alerts_on_deaths_and_budgets_see_every_cause_that_has_a_budget():
    charged = {str(cause) for cause in Cause if cause.traits.is_charged}
    text, _ = exposition(whole_sample(1), "")
    series = [
        sample.labels["cause"]
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "stepkeeper_restarts_left"
    ]
    rules = {rule["alert"]: rule["expr"] for rule in alerts()}

    (looped,) = re.findall(r'cause=~"([^"]*)"', rules["RestartLoop"])

    assert set(looped.split("|")) == charged == set(series)
    assert "stepkeeper_restarts_left)" in rules["BudgetNearlySpent"], "of all causes"


def test_variables_of_the_dashboard_come_from_exported_metrics():
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]

    asked = [variable["query"]["query"] for variable in variables if variable["type"] == "query"]
    assert len(asked) == 2
    assert all(names_in(query) <= exported() for query in asked)


def test_panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_promtool_accepts_the_rules_and_every_alert_passes_its_test():
    promtool = tool("promtool", "Debian package prometheus")

    judge([promtool, "check", "rules", RULES])
    judge([promtool, "test", "rules", TESTS.name], PROMETHEUS)


def test_every_alert_has_a_case_where_it_fires():
    fires = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }

    assert fires == {rule["alert"] for rule in alerts()}


def test_promtool_understands_every_query_of_the_dashboard(tmp_path: Path):
    promtool = tool("promtool", "Debian package prometheus")
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "5m"))}
        for number, (_, query) in enumerate(dashboard_queries())
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert f"{len(rules)} rules found" in judge([promtool, "check", "rules", file])


def test_the_runbook_has_a_chapter_for_every_alert_and_no_other():
    chapters = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)

    assert sorted(chapters) == sorted(rule["alert"] for rule in alerts())
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"deploy/runbook.md#{rule['alert'].lower()}"


def test_systemd_accepts_the_timer_that_writes_the_metrics(tmp_path: Path):
    analyze = tool("systemd-analyze", "Debian package systemd")
    for text in ("stepkeeper-metrics.service", "stepkeeper-metrics.timer"):
        unit = (PROMETHEUS / text).read_text().replace("/usr/bin/curl", "/bin/true")  # it need not be on this machine
        (tmp_path / text).write_text(
            unit.replace("User=stepkeeper", "User=root").replace("Group=stepkeeper", "Group=root")
        )

    # unknown keys are only a warning, with status 0
    assert judge([analyze, "--man=no", "verify", tmp_path / "stepkeeper-metrics.timer"]) == ""


def test_the_timer_writes_a_file_that_promtool_accepts(tmp_path: Path):
    tool("curl", "Debian package curl")
    promtool = tool("promtool", "Debian package prometheus")
    unit = (PROMETHEUS / "stepkeeper-metrics.service").read_text().replace("\\\n", " ")
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        for line in re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE):
            told = line.replace("/run/stepkeeper/supervisor.sock", str(daemon.socket))
            judge(shlex.split(told.replace("/run/stepkeeper-metrics", str(tmp_path))))

    written = tmp_path / "stepkeeper.prom"
    assert 'stepkeeper_program_up{program="sleeper"}' in written.read_text()
    with written.open() as text:
        checked = subprocess.run(
            [promtool, "check", "metrics"], check=False, stdin=text, capture_output=True, timeout=60
        )
    assert (checked.returncode, checked.stdout) == (0, b"")
