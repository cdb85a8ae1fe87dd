"""Traces and results as data frames, and in a notebook; they skip where the libraries are not installed."""

import json
import re

import numpy as np
import pytest

import kvtrace
from kvtrace.analysis.distribution import FIGURES
from kvtrace.trace import frames
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.docs import ROOT


@pytest.fixture
def rich_trace():
    columns = Columns(
        [0.0, 5.0], [2, 3], [1, 0], [0, 1, 0, 1, 2], [0, 2, 5], session=[0, 0], parent=[-1, 0],
        extra={"type": np.array(["text", None], dtype=object), "session": np.array([7, 8]),
               "mixed": np.array([1, "a"], dtype=object)},
        output_ids=[2], output_offsets=[0, 1, 1],
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=1)


def test_every_column_is_in_the_arrow_table(rich_trace):
    pytest.importorskip("pyarrow")
    assert frames.arrow(rich_trace).to_pydict() == {
        "timestamp": [0.0, 5.0], "input_length": [2, 3], "output_length": [1, 0], "hash_ids": [[0, 1], [0, 1, 2]],
        "output_hash_ids": [[2], []], "session": [0, 0], "parent": [-1, 0], "type": ["text", None],
        "extra.session": [7, 8], "mixed": ["1", "a"],
    }  # fmt: skip


def test_anything_that_takes_arrow_streams_takes_a_trace(rich_trace):
    pa = pytest.importorskip("pyarrow")
    assert pa.table(rich_trace) == frames.arrow(rich_trace)
    found = kvtrace.analysis.analyze(rich_trace)
    assert pa.table(found).column("name").to_pylist()[:2] == ["input_length", "context_length"]


def test_pandas_and_polars_hold_the_same(rich_trace):
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    assert rich_trace.to_pandas()["input_length"].tolist() == rich_trace.to_polars()["input_length"].to_list() == [2, 3]
    found = kvtrace.analysis.analyze(rich_trace, quantiles=[0.9])
    assert found.to_polars().columns == ["name", "count", *FIGURES, "q0.9"]
    assert found.basics.to_pandas().set_index("name").loc["input_length", "mean"] == 2.5


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(kvtrace.UsageError, match=r"need polars. Try `pip install 'kvtrace\[frames\]'`"):
        toy("0").to_polars()


def test_a_notebook_shows_a_trace_and_its_summary():
    trace = toy("0 1 2 3 4 5 6 7 8", *["9"] * 7)
    shown = trace._repr_html_()
    assert "<td>0 1 2 3 4 5 6 7 and 1 more</td>" in shown and "and 3 more" in shown
    for found in (kvtrace.analysis.analyze(trace), kvtrace.analysis.basics(trace)):
        assert found._repr_html_().startswith("<p>") and "Hit rates without eviction" in found._repr_html_()


def test_names_out_of_a_trace_are_escaped_in_html():
    trace = toy("0", "0")
    trace.extra = {"type": np.array(["<b>", "<b>"], dtype=object)}
    shown = kvtrace.analysis.analyze(trace)._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown


def test_the_notebook_was_run_from_top_to_bottom_and_is_small():
    path = ROOT / "examples/analysis.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 100_000
    assert not re.search(r"/(home|root|tmp|Users)/", path.read_text(encoding="utf-8"))


def test_the_notebooks_code_still_runs(monkeypatch):
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    pytest.importorskip("plotly")
    monkeypatch.chdir(ROOT / "examples")
    names: dict = {}
    for cell in json.loads((ROOT / "examples/analysis.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["trace"].block_size == 16 and names["runs"].plot().data
