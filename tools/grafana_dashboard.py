"""The Grafana dashboard of contrib/grafana, from one row a panel (`make docs` writes it).

The JSON is what a Grafana from version 10 on exports of such panels, so that it can be imported as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "contrib/grafana/kvtrace.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # of Grafana's grid
ON = 'job=~"$job", instance=~"$instance"'  # the services that the variables select
SPAN = f'{ON}, span="$span"'  # the last window, or all requests with decaying weights
PER = f'{SPAN}, per="$per"'
TOKEN = f'{SPAN}, per="token"'


@dataclass(frozen=True)
class Panel:
    """One panel: what it is, where it ends, and its queries (legend -> PromQL)."""

    kind: str  # stat, timeseries, bargauge or row
    title: str
    text: str = ""  # what the figure means and what to do with it
    queries: dict[str, str] = field(default_factory=dict)
    unit: str = "short"
    width: int = 12
    height: int = 8
    stacked: bool = False
    largest: float | None = None
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)  # colours, each from a value on


PANELS = (
    Panel("row", "What the cache delivers, and what more memory would bring"),
    Panel(
        "stat", "Possible $per hit rate",
        "What a cache without a limit would hit. No amount of memory gives more; other prompts or routing can.",
        {"{{instance}}": f"kvtrace_possible_hit_ratio{{{PER}}}"}, "percentunit", 4, 4,
    ),
    Panel(
        "stat", "Delivered token hit rate",
        "What the service took from its cache: the cached tokens that its responses state. Empty if they state none.",
        {"{{instance}}": f"kvtrace_delivered_hit_ratio{{{SPAN}}}"}, "percentunit", 4, 4,
    ),
    Panel(
        "stat", "Twice the memory adds",
        "Token hit rate at twice today's capacity, less that at today's capacity.",
        {"{{instance}}": f'kvtrace_capacity_hit_ratio{{{TOKEN}, of="capacity", factor="2"}}'
                         f' - ignoring (factor) kvtrace_capacity_hit_ratio{{{TOKEN}, of="capacity", factor="1"}}'},
        "percentunit", 4, 4, steps=(("green", None), ("orange", 0.05), ("red", 0.15)),
    ),
    Panel(
        "stat", "Capacity for 90 % of the possible hits",
        "As a multiple of today's capacity: at 3, three times the memory reaches 90 % of the possible token hits.",
        {"{{instance}}": f'kvtrace_needed_capacity_blocks{{{SPAN}, share="0.9"}}'
                         f' / ignoring (share, span) kvtrace_capacity_blocks{{{ON}}}'},
        "suffix: x", 4, 4,
    ),
    Panel(
        "stat", "Requests", "Requests that arrive, per second.",
        {"{{instance}}": f"rate(kvtrace_received_requests_total{{{ON}}}[5m])"}, "reqps", 4, 4,
    ),
    Panel(
        "stat", "Dropped requests",
        "Share of the requests that found no room in the queue, or in the proxy's memory. They are missing in the "
        "trace and in all figures.",
        {"{{instance}}": f"sum without (reason) (rate(kvtrace_dropped_requests_total{{{ON}}}[5m]))"
                         f" / rate(kvtrace_received_requests_total{{{ON}}}[5m])"},
        "percentunit", 4, 4, steps=(("green", None), ("orange", 0.001), ("red", 0.01)),
    ),
    Panel(
        "timeseries", "Possible, estimated and delivered token hit rate",
        "Possible: a cache without a limit. Estimated: LRU with today's capacity. Delivered: what the service states. "
        "If delivered is far below estimated, look at routing, restarts and the block size before you buy memory.",
        {
            "possible {{instance}}": f"kvtrace_possible_hit_ratio{{{TOKEN}}}",
            "estimated at today's capacity {{instance}}":
                f'kvtrace_capacity_hit_ratio{{{TOKEN}, of="capacity", factor="1"}}',
            "delivered {{instance}}": f"kvtrace_delivered_hit_ratio{{{SPAN}}}",
        },
        "percentunit", largest=1,
    ),
    Panel(
        "timeseries", "$per hit rate by capacity",
        "What LRU would hit with 0.5, 1, 2 and 4 times today's capacity, over the last window.",
        {"{{factor}} x {{of}} {{instance}}": f"kvtrace_capacity_hit_ratio{{{PER}}}"}, "percentunit", largest=1,
    ),
    Panel(
        "bargauge", "$per hit rate by capacity, now", "The latest values of the panel above.",
        {"{{factor}} x {{of}} {{instance}}": f"kvtrace_capacity_hit_ratio{{{PER}}}"}, "percentunit", largest=1,
    ),
    Panel(
        "timeseries", "Prompt tokens by cause",
        "Each prompt token has one cause. More memory helps against evicted; nothing helps against first use.",
        {"{{cause}} {{instance}}": f"rate(kvtrace_cause_tokens_total{{{ON}}}[5m])"}, "short", stacked=True,
    ),
    Panel(
        "timeseries", "Capacity, working set, and what 90 % of the possible hits need (blocks)",
        "The working set is the number of distinct blocks in the window.",
        {
            "today's capacity {{instance}}": f'kvtrace_capacity_blocks{{{ON}}}',
            "90 % of possible hits {{instance}}": f'kvtrace_needed_capacity_blocks{{{SPAN}, share="0.9"}}',
            "working set {{instance}}": f"kvtrace_working_set_blocks{{{ON}}}",
        },
    ),
    Panel(
        "timeseries", "The same in bytes of KV cache", "Empty if kvtrace watch was started without --model.",
        {
            "today's capacity {{instance}}": f'kvtrace_capacity_bytes{{{ON}}}',
            "90 % of possible hits {{instance}}": f'kvtrace_needed_capacity_bytes{{{SPAN}, share="0.9"}}',
            "working set {{instance}}": f"kvtrace_working_set_bytes{{{ON}}}",
        },
        "bytes",
    ),
    Panel("row", "The recorder"),
    Panel(
        "timeseries", "Requests by what became of them",
        "Rejected requests could not be read. Those left out have no prompt. Refused ones come again.",
        {
            "received {{instance}}": f"rate(kvtrace_received_requests_total{{{ON}}}[5m])",
            "digested {{instance}}": f"rate(kvtrace_digested_requests_total{{{ON}}}[5m])",
            "dropped, {{reason}} {{instance}}": f"rate(kvtrace_dropped_requests_total{{{ON}}}[5m])",
            "refused {{instance}}": f"rate(kvtrace_refused_requests_total{{{ON}}}[5m])",
            "rejected, {{of}} {{instance}}": f"rate(kvtrace_rejected_requests_total{{{ON}}}[5m])",
            "left out {{instance}}": f"rate(kvtrace_left_out_requests_total{{{ON}}}[5m])",
        },
        "reqps",
    ),
    Panel(
        "timeseries", "Requests to the proxy", "One that its client left may be recorded, too.",
        {
            "all {{instance}}": f"rate(kvtrace_proxy_requests_total{{{ON}}}[5m])",
            "{{outcome}} {{instance}}": f"rate(kvtrace_proxy_outcomes_total{{{ON}}}[5m])",
        },
        "reqps",
    ),
    Panel(
        "timeseries", "Queue", "Payloads that wait for the digester. A full queue drops requests.",
        {
            "bytes {{instance}}": f"kvtrace_queue_bytes{{{ON}}}",
            "limit {{instance}}": f"kvtrace_queue_limit_bytes{{{ON}}}",
        },
        "bytes",
    ),
    Panel(
        "stat", "Windows sealed", "Traces that were written since the service started.",
        {"{{instance}}": f"kvtrace_sealed_windows_total{{{ON}}}"}, "short", 6, 4,
    ),
    Panel(
        "stat", "Windows that failed", "Traces that were not written: the audit refused them, or a write failed.",
        {"{{instance}}": f"kvtrace_failed_windows_total{{{ON}}}"}, "short", 6, 4,
        steps=(("green", None), ("red", 1)),
    ),
    Panel(
        "stat", "Since the last seal", "More than two windows: requests stopped, or sealing hangs.",
        {"{{instance}}": f"time() - kvtrace_last_seal_timestamp_seconds{{{ON}}}"}, "s", 6, 4,
    ),
    Panel(
        "stat", "Requests lost in crashes", "They had arrived and were not digested yet when a former run died.",
        {"{{instance}}": f"kvtrace_lost_requests_total{{{ON}}}"}, "short", 6, 4, steps=(("green", None), ("red", 1)),
    ),
    Panel("row", "kvtrace itself"),
    Panel(
        "timeseries", "CPU", "Processors that the service uses, without the digester.",
        {"{{instance}}": f"rate(process_cpu_seconds_total{{{ON}}}[5m])"}, "short",
    ),
    Panel(
        "timeseries", "Memory", "Resident memory of the service, and the tables of the estimate.",
        {
            "resident {{instance}}": f"process_resident_memory_bytes{{{ON}}}",
            "estimate {{instance}}": f"kvtrace_estimator_memory_bytes{{{ON}}}",
        },
        "bytes",
    ),
)  # fmt: skip


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def queries() -> Iterator[str]:
    """Every PromQL query of the dashboard, of its variables too."""
    for variable in _variables():
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
    for panel in PANELS:
        yield from panel.queries.values()


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model (schema version 39)."""
    return {
        "annotations": {"list": []},
        "description": "What a prefix cache delivers, what it could deliver, and what more memory would bring.",
        "editable": True,
        "graphTooltip": 1,
        "links": [],
        "panels": [*_placed()],
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["kvtrace", "llm", "kv-cache"],
        "templating": {"list": _variables()},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": "kvtrace: KV cache",
        "uid": "kvtrace-cache",
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _labels("job", "Job", "kvtrace_build_info", multi=True),
        _labels("instance", "Instance", 'kvtrace_build_info{job=~"$job"}', multi=True),
        _choice("per", "Hit rate per", ["token", "block", "request"]),
        _choice("span", "Requests of", ["window", "decayed"]),
    ]


def _choice(name: str, label: str, values: list[str]) -> dict[str, Any]:
    """A variable with fixed values, the first one chosen."""
    options = [{"selected": value == values[0], "text": value, "value": value} for value in values]
    return {
        "name": name, "label": label, "type": "custom", "query": ",".join(values), "options": options,
        "current": options[0], "multi": False, "includeAll": False,
    }  # fmt: skip


def _labels(name: str, label: str, series: str, *, multi: bool) -> dict[str, Any]:
    """A variable with the values of a label."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1,
        "query": {"query": f"label_values({series}, {name})", "refId": name}, "multi": multi, "includeAll": True,
        "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _placed() -> Iterator[dict[str, Any]]:
    """The panels on the grid: from left to right, a row below where no place is left."""
    x = y = height = 0
    for number, panel in enumerate(PANELS, start=1):
        width, tall = (WIDTH, 1) if panel.kind == "row" else (panel.width, panel.height)
        if x + width > WIDTH:
            x, y, height = 0, y + height, 0
        yield _panel(panel, number, {"x": x, "y": y, "w": width, "h": tall})
        x, height = x + width, max(height, tall)


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    head = {"id": number, "type": panel.kind, "title": panel.title, "gridPos": place}
    if panel.kind == "row":
        return head | {"collapsed": False, "panels": []}
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend, "editorMode": "code",
         "instant": panel.kind != "timeseries", "range": panel.kind == "timeseries"}
        for at, (legend, query) in enumerate(panel.queries.items())
    ]  # fmt: skip
    return head | {
        "description": panel.text, "datasource": SOURCE, "targets": targets, "options": OPTIONS[panel.kind],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
    }  # fmt: skip


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in panel.steps]
    defaults: dict[str, Any] = {
        "unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
    }  # fmt: skip
    if panel.largest is not None:
        defaults["max"] = panel.largest
    if panel.unit.startswith(("suffix", "percentunit")):
        defaults["decimals"] = 1
    if panel.kind == "timeseries":
        stacking = {"group": "A", "mode": "percent" if panel.stacked else "none"}
        defaults["custom"] = {
            "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "showPoints": "never",
            "fillOpacity": 40 if panel.stacked else 8, "spanNulls": False, "stacking": stacking,
        }  # fmt: skip
    return defaults


REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {
        "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
        "wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard", "reduceOptions": REDUCED,
    },
    "timeseries": {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "bargauge": {
        "displayMode": "gradient", "orientation": "horizontal", "reduceOptions": REDUCED, "showUnfilled": True,
        "valueMode": "color", "namePlacement": "auto", "sizing": "auto", "minVizHeight": 16, "minVizWidth": 8,
        "maxVizHeight": 300, "legend": LEGEND | {"showLegend": False},
    },
}  # fmt: skip


def write() -> None:
    """Write the file."""
    FILE.write_text(text(), encoding="utf-8")
