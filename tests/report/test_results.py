"""Each public result is one line, a table in a notebook, a data frame, and a figure where one helps."""

import html.parser
import inspect
import sys

import numpy as np
import pytest

import kvtrace
from kvtrace._base.results import PlottedResult, Result, column_table, columns_of
from kvtrace.cache.sweeps.table import COLUMNS
from kvtrace.ingest.linting.findings import LintFinding
from kvtrace.privacy.checks.finding import failed
from kvtrace.serving.calibration.kernels import fit_grid
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from tests.docs import ROOT
from tests.house.rooms import public_values
from tests.serving.quick_fits import quick_fits
from tests.serving.test_kernels import LLAMA, recorded_grid
from tests.synthesis.session_forests import forest

PUBLIC = {name: value for name, value in public_values().items() if inspect.isclass(value)}
NOT_RESULTS = {  # arguments, tools, and what must not leave the memory
    "arguments": {
        "BatchLimits", "CacheGroup", "CacheLayout", "ClosedLoop", "Columns", "Context", "Costs", "Cure",
        "Deployment", "Drafter", "DynamoCost", "DynamoScheduler", "EncodingOptions", "Gpu", "Grid", "Key",
        "Knobs", "LayerKind", "LocalRunner", "ModelShape", "PlanTarget", "PlannedTier", "Prices", "Profile",
        "RateProfile", "ReleaseOptions", "ReuseTable", "Roofline", "Runner", "Schedule", "ServiceModel",
        "FleetChange", "FleetSchedule", "Setting", "SglangScheduler", "StepCost", "TaskOptions", "Tier", "Tokenizer",
        "VllmScheduler",
    },
    "tools": {"OutOfBlocks", "PrefixCache", "Progress", "Recorder", "Sequence", "TraceBuilder", "Watcher"},
    "rows and parts of results": {"CurvePoint", "ExpectedError", "KvRoom", "RecorderCounts", "Request", "Synthesized"},
    "printed and never written, see privacy/account.py": {"Contributors", "StepHits"},
}  # fmt: skip
NO_FIGURE = {  # results that are one row, or that a table shows best
    "AnonymizedDataset", "Arrivals", "Audit", "BlockSizeHits", "Calibration", "Converted", "Cures", "Dataset",
    "Delivered", "Distribution", "Fidelity", "Finding", "Fixes", "Forest", "Hits", "KernelFit", "LintReport",
    "Mixture", "Model", "PoolCurve",
    "ModelList", "Numbered", "Popularity", "Published", "ReachableHits", "Recording", "SessionLinks", "SessionModel",
    "Tree", "Tuned", "Violation",
}  # fmt: skip
RESULTS = sorted(
    name
    for name, kind in PUBLIC.items()
    if not issubclass(kind, Exception) and name not in set().union(*NOT_RESULTS.values())
)


def _closed_run(trace, cost, setting):
    waits = Dependencies.of([[], *([(row, "completion", "sequence", 100.0)] for row in range(len(trace) - 1))])
    waiting = kvtrace.Trace.from_columns(replace_columns(trace, dependencies=waits), block_size=trace.block_size)
    return kvtrace.serving.closed_loop(waiting, cost, setting=setting, loop=kvtrace.serving.ClosedLoop())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One small result of each public type that a library call returns."""
    folder = tmp_path_factory.mktemp("results")
    trace = kvtrace.toy("0 1 2", "0 1 3", "4", "0 1 2 5", gap_ms=500, block_size=16)
    setting, cost = kvtrace.cache.Setting(4), kvtrace.serving.StepCost(0.001)
    summary = kvtrace.analysis.analyze(trace)
    delivered = kvtrace.Trace.from_columns(replace_columns(trace, cached_tokens=[0, 16, 0, 48]), block_size=16)
    released = kvtrace.privacy.release(trace, kvtrace.privacy.profile("standard"))
    kvtrace.write(trace, folder / "small.jsonl")
    results = [
        trace, kvtrace.analysis.delivered_hits(delivered),
        summary, summary.basics, summary.arrivals, summary.popularity, summary.reuse_distance, trace.fixes,
        kvtrace.analysis.hit_curve(trace), kvtrace.analysis.compare(trace, trace),
        kvtrace.analysis.by_block_size(trace, [2])[0],
        kvtrace.analysis.infer_sessions(trace), kvtrace.trace.forest(trace), kvtrace.synthesis.fit(trace),
        kvtrace.synthesis.fit_sessions(forest(4)),
        kvtrace.synthesis.check_fidelity(kvtrace.synthesis.fit(trace), seeds=1),
        kvtrace.synthesis.fit_tree(trace), kvtrace.synthesis.mix([kvtrace.synthesis.fit(trace)] * 2),
        kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace)),
        kvtrace.serving.list_models("gpt-oss"), kvtrace.cache.simulate(trace, 4),
        kvtrace.serving.reachable_hits(trace, "gpt-oss-20b"),
        kvtrace.cache.tune(trace, 4, ["arc"]),
        kvtrace.serving.simulate_all(trace, [4, 6], ["lru", "sieve"]),
        kvtrace.serving.cures_of(kvtrace.serving.explain(trace, 4)),
        kvtrace.cache.simulate_tiers(trace, {"hbm": 4, "dram": 4}),
        kvtrace.serving.simulate_instances(trace, 2, setting=setting),
        kvtrace.serving.open_loop(trace, cost, setting=setting), _closed_run(trace, cost, setting),
        kvtrace.serving.explain(trace, 4),
        released, released.trace,
        kvtrace.formats.convert_file(folder / "small.jsonl", folder / "again.jsonl"),
        kvtrace.formats.Violation("small.jsonl", 3, "ids", "ids do not count by first appearance."),
        kvtrace.cache.SweepTable([{name: None for name in COLUMNS} | {
            "trace": "small.jsonl", "policy": policy, "capacity": capacity, "block_size": 16, "seed": 0,
            "block_hit_rate": 0.25, "error": "",
        } for policy in ("lru", "sieve") for capacity in (4, 8)]),
        kvtrace.privacy.Audit(
            kvtrace.privacy.profile("standard"), None, [failed({}, "a <b> is bold.", "Leave it out.")]
        ),
        failed({}, "a <b> is bold.", "Leave it out."),
        kvtrace.ingest.LintReport(
            requests=2, prompt_tokens=9, hit_tokens=4, block_size=16,
            findings=(LintFinding("date", "date", "system", 0, 1, 1, 1, 1, 0, 1, 2, 3),),
        ),
        big_curve(), plan(trace), kvtrace.serving.pool_curve(trace, [0, 4], instances=2, first=4),
    ]  # fmt: skip
    recording = kvtrace.serving.read_recording(ROOT / "examples/recording")
    with quick_fits():
        served = kvtrace.serving.Deployment("llama-3.1-8b", gpu="h100")
        results += [recording, kvtrace.serving.validate(recording, cost), kvtrace.serving.calibrate(recording, served)]
    results.append(fit_grid(LLAMA, recorded_grid(LLAMA)))
    if "pyarrow" in sys.modules or pytest.importorskip("pyarrow"):
        kvtrace.write(trace, folder / "day.dataset", format="dataset")
        results.append(kvtrace.formats.open_dataset(folder / "day.dataset"))
    published = kvtrace.privacy.publish(released.trace, folder / "public.jsonl")
    numbered = kvtrace.privacy.Numbered.of_rows(
        released.trace, figures=published.figures, account=released, block_size=16, tail="unique", meta={}
    )
    counts = type("Counts", (), {"rejected": 2})()
    results += [published, numbered, kvtrace.ingest.AnonymizedDataset(numbered, counts)]
    return {type(result).__name__: result for result in results}


def big_curve():
    trace = kvtrace.toy(*[" ".join(str(first + i) for i in range(40)) for first in range(0, 4000, 40)] * 2)
    return kvtrace.analysis.hit_curve(trace, sample=0.1)


def plan(trace):
    model = ROOT / "tests/data/models/llama-3.1-8b.json"
    return kvtrace.serving.plan(trace, kvtrace.serving.Deployment(model, gpu="h100"))


def test_every_public_class_is_a_result_or_is_named_with_its_reason():
    named = set().union(*NOT_RESULTS.values())
    assert named | NO_FIGURE <= PUBLIC.keys()
    assert [name for name in RESULTS if not issubclass(PUBLIC[name], Result)] == []
    assert {name for name in RESULTS if not issubclass(PUBLIC[name], PlottedResult)} == NO_FIGURE


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_one_short_line(results, name):
    line = repr(results[name])
    assert line.startswith(f"{name.removeprefix('Released')}(" if name == "ReleasedTrace" else f"{name}(")
    assert "\n" not in line and len(line) < 300 and "array(" not in line


class Tags(html.parser.HTMLParser):
    """The tags of a piece of HTML, and whether all are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.open = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.open.append(tag)
        assert not attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_result_as_plain_tables(results, name):
    tags = Tags(results[name]._repr_html_())
    assert {"p", "table", "td"} <= tags.seen and not tags.open
    assert tags.seen <= {"p", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_data_frame(results, name):
    pytest.importorskip("polars")
    result = results[name]
    assert result.to_pandas().shape == result.to_polars().shape == result.to_arrow().shape
    assert result.to_arrow().num_columns


@pytest.mark.parametrize("name", sorted({*RESULTS} - NO_FIGURE))
def test_a_result_has_a_figure_with_titled_axes(results, name):
    pytest.importorskip("plotly")
    drawn = results[name].plot()
    assert drawn.data and all(len(series.x) for series in drawn.data)
    assert all(axis.title.text for axis in drawn.select_xaxes() if axis.visible is not False) and drawn.to_json()


def test_names_in_a_result_are_escaped(results):
    assert "a &lt;b&gt; is bold." in results["Audit"]._repr_html_()
    assert "<b>" not in kvtrace.analysis.compare(*[kvtrace.toy("0")] * 2, names=("<b>", "c"))._repr_html_()


def test_a_long_result_shows_its_first_rows_only():
    shown = column_table({"request": np.arange(1000)})
    assert shown.count("<tr>") == 11 and shown.endswith("<p>and 990 more</p>")


def test_what_a_notebook_keeps_of_a_release_is_the_released_trace_alone(results):
    assert "original" not in repr(results["Released"]) + results["Released"]._repr_html_()
    assert results["Released"].to_arrow() == results["ReleasedTrace"].to_arrow()


def test_rows_of_different_keys_have_all_columns():
    assert columns_of([{"a": 1}, {"b": {"c": 2}}, {"d": [3]}]) == {"a": [1, None, None], "b_c": [None, 2, None]}


def test_a_missing_library_is_named_with_its_extra(monkeypatch, results):
    for module, call, extra in (
        ("pandas", results["HitCurve"].to_pandas, "frames"),
        ("pyarrow", results["Audit"].to_arrow, "frames"),
        ("plotly.subplots", results["HitCurve"].plot, "report"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(kvtrace.UsageError, match=rf"kvtrace\[{extra}\]"):
            call()


def test_an_unknown_plot_is_refused_with_the_names():
    with pytest.raises(kvtrace.UsageError, match=r"'curve' is not a plot. Did you mean hit-curve[?]"):
        kvtrace.toy("0 1").plot("curve")


def test_a_curve_is_drawn_with_the_line_of_a_cache_that_never_evicts(results):
    # 3 + 3 + 1 + 4 blocks, 0 + 2 + 0 + 3 of them hits
    pytest.importorskip("plotly")
    drawn = results["HitCurve"].plot()
    lines = {line.name: line for line in drawn.data}
    assert lines["block, unlimited"].y == (0.45455, 0.45455) and lines["block hit rate, LRU"].y[-1] == 0.45455
