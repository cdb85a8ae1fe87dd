"""The dashboard of contrib/ fits Grafana's own schema of dashboards and of the panels that it uses.

The folder `grafana` of KVTRACE_CLIENTS holds Grafana's published types (`npm install @grafana/schema@13.2.3
ts-json-schema-generator@2.4.0` there), which it generates from its CUE schemas. The test makes JSON schemas of them.
"""

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

from tools import grafana_dashboard

FOLDER = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "grafana"
MAKE = FOLDER / "node_modules/.bin/ts-json-schema-generator"
TYPES = FOLDER / "node_modules/@grafana/schema/dist/types/raw"
KINDS = {  # what is checked -> the file of its type, and its name there
    "dashboard": ("dashboard/x/types.gen.d.ts", "Dashboard"),
    "row": ("dashboard/x/types.gen.d.ts", "RowPanel"),
    "panel": ("dashboard/x/types.gen.d.ts", "Panel"),
    "variable": ("dashboard/x/types.gen.d.ts", "VariableModel"),
    "timeseries": ("composable/timeseries/panelcfg/x/types.gen.d.ts", "Options"),
    "timeseries custom": ("composable/timeseries/panelcfg/x/types.gen.d.ts", "FieldConfig"),
    "stat": ("composable/stat/panelcfg/x/types.gen.d.ts", "Options"),
    "bargauge": ("composable/bargauge/panelcfg/x/types.gen.d.ts", "Options"),
}
pytestmark = pytest.mark.skipif(not MAKE.exists(), reason="no environment grafana in KVTRACE_CLIENTS")


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """A function that checks a value against the schema of a kind."""
    folder = tmp_path_factory.mktemp("schemas")
    options = folder / "tsconfig.json"
    options.write_text('{"compilerOptions": {"module": "nodenext", "moduleResolution": "nodenext", "types": []}}')
    schemas = {}
    for kind, (file, name) in KINDS.items():
        command = [MAKE, "--tsconfig", options, "--no-type-check", "--path", TYPES / file, "--type", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        schemas[kind] = jsonschema.Draft7Validator(json.loads(done.stdout))
    return lambda kind, value: schemas[kind].validate(value)


def test_the_dashboard_its_variables_and_its_panels_fit_their_schemas(fits):
    board = json.loads(grafana_dashboard.FILE.read_text())
    fits("dashboard", board)
    for variable in board["templating"]["list"]:
        fits("variable", variable)
    for panel in board["panels"]:
        fits("row" if panel["type"] == "row" else "panel", panel)
        if panel["type"] != "row":
            fits(panel["type"], panel["options"])
        if panel["type"] == "timeseries":
            fits("timeseries custom", panel["fieldConfig"]["defaults"]["custom"])
    assert {panel["type"] for panel in board["panels"]} == {"row", "stat", "timeseries", "bargauge"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("dashboard", {"schemaVersion": "39"}),
        ("dashboard", {"schemaVersion": 39, "graphTooltip": 7}),
        ("panel", {"type": "stat", "gridPos": {"x": 0}}),
        ("variable", {"name": "job", "type": "querry"}),
        ("stat", {"colorMode": "values"}),
        ("timeseries", {"legend": {}}),
        ("timeseries custom", {"drawStyle": "lines"}),
    ],
)
def test_a_wrong_value_does_not_fit(fits, kind, value):
    with pytest.raises(jsonschema.ValidationError):
        fits(kind, value)
