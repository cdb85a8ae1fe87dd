"""The page and the plots of a validation: what they show, what they lack and why."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from kvtrace.report.plots import validated
from kvtrace.report.validation_tables import page, sentence, tiles, write_page
from kvtrace.serving.recordings import read_recording
from kvtrace.serving.recordings.recording import EngineSettings
from kvtrace.serving.validation import validate
from tests.docs import ROOT
from tests.serving.recorded import COST

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def done():
    return validate(read_recording(ROOT / "examples/recording"), COST)


def test_a_page_is_the_same_each_time_and_loads_nothing(done, tmp_path):
    html = page(done)
    assert html == page(done) and not re.search(r'(src|href)="(?!#)', html) and html.count("default-src 'none'") == 1
    assert write_page(tmp_path / "page.html", done, title="a <b>") == [str(tmp_path / "page.html")]
    assert "<h1>a &lt;b&gt;</h1>" in (tmp_path / "page.html").read_text()


def test_every_figure_has_a_place_on_the_page(done):
    html = page(done)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.S)[1])
    assert sorted(figures) == sorted(re.findall(r'class="plot" id="(.*?)"', html)) and len(figures) == 12
    assert [series["name"] for series in figures["over-time-1"]["data"]] == ["measured", "simulated"]


def test_dots_are_the_requests_and_the_axes_are_equal(done):
    for panel, name in zip(validated.scatter(done).panels, ("ttft_s", "tpot_s", "e2e_s"), strict=True):
        dots, equal = panel.series
        assert dots.x.tolist() == getattr(done.measured, name).tolist()
        assert dots.y.tolist() == getattr(done.simulated, name).tolist()
        assert equal.x.tolist() == equal.y.tolist() and (panel.x.log, panel.x.limits) == (panel.y.log, panel.y.limits)
        assert equal.x[0] <= min(dots.x.min(), dots.y.min()) and equal.x[1] >= max(dots.x.max(), dots.y.max())


def test_many_requests_are_thinned_with_a_note(done, monkeypatch):
    monkeypatch.setattr(validated, "MAX_DOTS", 10)
    panel = validated.scatter(done).panels[0]
    assert len(panel.series[0].x) == 10 and panel.note == "10 of 80 requests are drawn."


def test_errors_have_their_intervals(done):
    panel = validated.errors(done).panels[0]
    error = panel.series[0]
    assert list(panel.x.ticks.values()) == ["mean", "p50", "p90", "p95", "p99"]
    assert (error.low <= error.y + 1e-12).mean() >= 0.6 and (error.low <= error.high).all()


def test_what_a_recording_lacks_is_stated(done):
    bare = replace(done.recording, gauges=None, settings=EngineSettings())
    html = page(validate(bare, COST))
    assert "The size of the KV cache is not known" in html and "measured by the times of the requests" in html
    no_use = replace(done.recording, gauges=replace(done.recording.gauges, kv_use=None))
    assert "the recording does not have it" in page(validate(no_use, COST))


def test_single_tokens_leave_tpot_undrawn(done):
    trace = done.recording.trace
    short = replace(done.recording, trace=type(trace).from_columns(_one_token(trace), block_size=16, tail="unique"))
    html = page(validate(short, COST))
    assert "Not drawn: no request has two output tokens (" in html


def _one_token(trace):
    from kvtrace.trace.columns import replace_columns

    return replace_columns(trace, output_length=np.ones(len(trace), dtype=np.int64))


def test_the_story_and_the_tiles_have_the_errors_of_the_means(done):
    error = done.errors[0].error
    assert f"TTFT {100 * error:+.1f} %" in sentence(done)
    assert {name: value for name, value, _ in tiles(done)}["error of mean TTFT"] == f"{error:+.1%}"
    assert len(list(tiles(done))) == 8
