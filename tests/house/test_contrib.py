"""The dashboard, the rules and the alerts of contrib/ use metrics that /metrics has, and promtool accepts them."""

import json
import re
import subprocess
from shutil import which

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvtrace.capture.metrics import Reading, registry_of
from tests.capture.snapshots import COUNTS, snapshot
from tests.docs import ROOT
from tools import grafana_dashboard

FOLDER = ROOT / "contrib/prometheus"
RULES, ALERTS, CASES = FOLDER / "rules.yml", FOLDER / "alerts.yml", FOLDER / "tests/alerts.test.yml"
OURS = re.compile(r"\b(?:kvtrace|process)_[a-z0-9_]+\b(?!:)")
SELECTOR = re.compile(r"([a-z_:0-9]+)\{([^}]*)\}")
VARIABLES = {"$job": ".*", "$instance": ".*", "$per": "token", "$span": "window"}
needs_promtool = pytest.mark.skipif(which("promtool") is None, reason="promtool is not installed")


@pytest.fixture(scope="module")
def samples():
    """The samples of /metrics of a service that records and watches: (name, labels, value)."""
    text = generate_latest(registry_of(lambda: Reading(snapshot(), COUNTS))).decode()
    return [sample[:3] for family in text_string_to_metric_families(text) for sample in family.samples]


def rules():
    """Every rule of the two files."""
    groups = [group for path in (RULES, ALERTS) for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    """Every PromQL expression of contrib/, those of the file of the dashboard."""
    board = json.loads(grafana_dashboard.FILE.read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return [*shown, *asked, *(rule["expr"] for rule in rules())]


def unknown(expression, samples):
    """Names and label values in an expression that no sample has."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = {name for name, _, _ in samples}
    wrong = [name for name in OURS.findall(bare) if name not in names]
    for name, selector in SELECTOR.findall(expression):
        for label, operator, value in re.findall(r'(\w+)(=~?)"([^"]*)"', selector):
            if name in names and label not in ("job", "instance") and not value.startswith("$"):
                have = {labels.get(label) for other, labels, _ in samples if other == name}
                wrong += [f"{name}{{{label}{operator}{value}}}"] if value not in have else []
    return wrong


def test_the_dashboard_is_what_its_table_gives():
    assert grafana_dashboard.FILE.read_text(encoding="utf-8") == grafana_dashboard.text(), "run `make docs`"


def test_every_expression_names_metrics_and_label_values_that_the_service_has(samples):
    found = expressions()
    assert len(found) > 40 and {one: wrong for one in found if (wrong := unknown(one, samples))} == {}


@pytest.mark.parametrize(
    "expression",
    [
        "rate(kvtrace_recieved_requests_total[5m])",
        "kvtrace_received_requests",  # the samples of a counter end in _total
        'kvtrace_capacity_hit_ratio{factor="3"}',
        'kvtrace_capacity_hit_ratio{size="1"}',
        "process_cpu_total",
    ],
)
def test_a_renamed_metric_or_label_is_found(expression, samples):
    assert unknown(expression, samples)


def test_variables_of_the_dashboard_are_those_that_its_queries_use():
    board = json.loads(grafana_dashboard.FILE.read_text())
    names = {one["name"] for one in board["templating"]["list"]}
    used = {name for text in map(json.dumps, board["panels"]) for name in re.findall(r"\$\{?([a-z]+)", text)}
    assert names == used == {"datasource", *(name.removeprefix("$") for name in VARIABLES)}


def test_panels_do_not_overlap_and_stay_on_the_grid():
    taken = set()
    for panel in json.loads(grafana_dashboard.FILE.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < grafana_dashboard.WIDTH
        taken |= cells


def test_every_recorded_metric_that_a_rule_uses_is_recorded():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = set().union(*(re.findall(r"instance:[a-z_:0-9]+", rule["expr"]) for rule in rules()))
    assert used == recorded


def test_every_alert_is_tested_where_it_fires_and_described_in_the_readme():
    names = {rule["alert"] for rule in rules() if "alert" in rule}
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names
    page = (ROOT / "contrib/README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []


def promtool(*arguments):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)


@needs_promtool
def test_promtool_accepts_the_rules_and_their_tests_pass(tmp_path):
    done = promtool("check", "rules", RULES, ALERTS)
    assert done.returncode == 0, done.stderr
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stderr
    (tmp_path / "rules.yml").write_text(RULES.read_text().replace('factor="2"', 'factor="4"'))
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/alerts.test.yml").write_text(CASES.read_text())
    assert promtool("test", "rules", tmp_path / "tests/alerts.test.yml").returncode != 0


@needs_promtool
def test_every_query_of_the_dashboard_has_a_result(samples, tmp_path):
    """Prometheus' own engine runs each query over series that grow from the samples of /metrics."""
    series = []
    for name, labels, value in samples:
        marked = ", ".join(f'{label}="{text}"' for label, text in {**labels, "job": "kvtrace", "instance": "a"}.items())
        series.append(
            {"series": f"{name}{{{marked}}}", "values": f"{value}{f'+{value}x30' if '_total' in name else 'x30'}"}
        )
    board = json.loads(grafana_dashboard.FILE.read_text())
    cases = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            one = [{"labels": "{}", "value": 1}]
            cases.append({"expr": f"clamp_max(count({query}), 1)", "eval_time": "20m", "exp_samples": one})
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": cases}]
    path = tmp_path / "queries.test.yml"
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", path)
    assert len(cases) > 25 and done.returncode == 0, done.stdout + done.stderr
    cases[0]["expr"] = cases[0]["expr"].replace("ratio", "rate")
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    assert promtool("test", "rules", path).returncode != 0
