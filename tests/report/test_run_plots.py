"""The plots of a simulation: hits by source, and prefill and decode workers over time."""

from dataclasses import replace

import numpy as np
import pytest

import kvtrace
from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiered import simulate_tiers
from kvtrace.cache.tiers import Tier
from kvtrace.cli import run as command
from kvtrace.report import html_page, paper
from kvtrace.report.figures import plot_of
from kvtrace.report.plots import plots_of_run
from kvtrace.report.plots.sources import sources_panel
from kvtrace.report.plots.workers import mean_number, worker_panels
from kvtrace.serving.apart import Link, Workers, serve_apart
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from tests.docs import ROOT

pytest.importorskip("plotly")
MINUTES = toy("0 1", "2 3", "0 1", "0 1", gap_ms=60_000, block_size=16)
ONE, HALF = [1.0], [0.5]


def drawn(run):
    """Source -> the shares of the windows in which it has any."""
    return {series.name: series.y[series.y > 0].tolist() for series in sources_panel(run).series}


def apart(*prompts, link=16e3, output=2, local=None, gap_ms=10_000.0):
    """One prefill and one decode worker: 1 ms for each token, 1 kB for each token of a transfer."""
    trace = toy(*prompts, gap_ms=gap_ms, block_size=16)
    outputs = np.full(len(trace), output, dtype=np.int32)
    trace = kvtrace.Trace.from_columns(replace_columns(trace, output_length=outputs), block_size=16)
    half = Workers(StepCost(token_s=0.001), Setting(100, engine="vllm"))
    return serve_apart(trace, half, half, link=Link(link), bytes_per_token=1e3, max_local_prefill_length=local)


def states(run):
    return {(panel.title, series.name): series for panel in worker_panels(run) for series in panel.series}


def test_each_window_has_the_share_of_each_tier_and_of_the_misses():
    #  2 3 evict 0 1 from hbm to dram, which gives them back; then hbm has them
    run = simulate_tiers(MINUTES, {"hbm": 2, "dram": 2})
    assert drawn(run) == {"hbm, 2 blocks": ONE, "dram, 2 blocks": ONE, "miss": [1.0, 1.0]}
    minutes = [series.x[series.y > 0].round(2).tolist() for series in sources_panel(run).series]
    assert minutes == [[3.04], [2.04], [0.04, 1.04]]  # the middles of windows of 5 s


def test_tiers_that_instances_share_are_sources_too():
    tiers = [Tier("hbm", 2), Tier("pool", 9, scope="cluster")]
    run = simulate_instances(toy("0 1", "0 2", gap_ms=60_000), 2, setting=Setting(2), tiers=tiers)
    assert drawn(run) == {"hbm, 2 blocks": [], "pool, 9 blocks": HALF, "miss": [1.0, 0.5]}
    assert [panel.title for panel in plot_of(run).panels][2:] == ["Hits by tier", "Prompt blocks by source"]


def test_a_run_in_time_shows_its_lower_tiers_and_what_it_rejects():
    setting, lower = Setting(2, engine="vllm"), [Tier("dram", 8, 0.001)]
    run = open_loop(MINUTES, StepCost(token_s=0.001), setting=replace(setting, capacity=3), tiers=lower)
    shares = drawn(run)
    assert list(shares) == ["hbm, 3 blocks", "dram, 8 blocks", "miss"]
    assert sum(shares["dram, 8 blocks"]) * 2 == run.lower_tier_hits.sum() > 0
    long = toy("0", "0 1 2 3 4 5", gap_ms=60_000, block_size=16)
    run = open_loop(long, StepCost(token_s=0.001), setting=setting, tiers=lower)
    assert drawn(run)["rejected"] == [1.0] and drawn(run)["miss"] == [1.0]


def test_all_shares_of_a_window_add_up_to_one():
    series = sources_panel(simulate_tiers(MINUTES, {"hbm": 2, "dram": 2})).series
    assert set(np.sum([line.y for line in series], axis=0).tolist()) == {0.0, 1.0}


def test_workers_run_and_wait_and_transfers_are_in_flight():
    #  32 tokens: 32 ms of prefill, 2 s of transfer, a step of 1 ms until vLLM takes note, 1 ms for each of two tokens;
    #  the second request, at 10 s, alike
    run = apart("0 1", "2 3")
    every, width = states(run), run.makespan_s / 120
    assert round(run.makespan_s, 6) == 12.035 and list(every) == [
        ("Prefill workers: 1", "running"), ("Prefill workers: 1", "waiting"), ("KV transfers", "in flight"),
        ("KV transfers", "waiting for room"), ("Decode workers: 1", "running"), ("Decode workers: 1", "waiting"),
    ]  # fmt: skip
    seconds = [round(float(series.y.sum()) * width, 6) for series in every.values()]  # of both requests
    assert seconds == [0.064, 0.0, 4.0, 0.0, 0.004, 0.002]
    flight = every["KV transfers", "in flight"]
    assert np.flatnonzero(flight.y > 0.99).tolist() == [*range(1, 20), *range(101, 119)]  # windows of 0.1003 s
    assert flight.y[0] == pytest.approx((width - 0.032) / width)


def test_areas_are_the_times_of_the_result():
    run = apart("0 1", "2 3", "4", "0 1 5", output=3, gap_ms=10.0)
    every, width = states(run), run.makespan_s / 120
    area = {name: float(series.y.sum()) * width for name, series in every.items()}
    assert area["Prefill workers: 1", "running"] == pytest.approx(run.prefill_s.sum())
    assert area["Prefill workers: 1", "waiting"] == pytest.approx(run.queued_s.sum())
    assert area["KV transfers", "in flight"] == pytest.approx(run.transfer_s.sum())
    assert sum(area.values()) == pytest.approx(run.e2e_s.sum())  # a request is always in one state


def test_a_prompt_that_a_decode_worker_computes_waits_and_runs_there_alone():
    run = apart("0 1", local=100)
    panels, every = worker_panels(run), states(run)
    assert panels[2].note == "1 prompts are computed here, without a transfer."
    assert {name for name, series in every.items() if series.y.any()} == {("Decode workers: 1", "running")}


def test_a_mean_number_weighs_intervals_by_their_part_of_a_window():
    begin, end = np.array([0.5, 1.0, np.nan]), np.array([1.0, 3.0, 2.0])
    assert mean_number(begin, end, np.array([0.0, 1.0, 2.0, 4.0])).tolist() == [0.5, 1.0, 0.5]


def test_the_figure_of_a_run_apart_has_its_workers_and_a_paper_gets_them(tmp_path):
    run = apart("0 1", "2 3")
    assert [panel.title for panel in plot_of(run).panels][3:] == [
        "Prefill workers: 1", "KV transfers", "Decode workers: 1",
    ]  # fmt: skip
    assert len(run.plot().data) == 9
    pytest.importorskip("matplotlib")
    assert paper.write_plot(plot_of(run), str(tmp_path / "a.png"))


def test_the_page_shows_the_tiers_or_the_workers_of_a_run():
    tiers = html_page.page(MINUTES, run=simulate_tiers(MINUTES, {"hbm": 2, "dram": 2}))
    workers = html_page.page(MINUTES, run=apart("0 1", "2 3"))
    assert '<section id="hits-by-source"' in tiers and '<section id="workers"' not in tiers
    assert '<section id="workers"' in workers and '<section id="hits-by-source"' not in workers
    assert plots_of_run(kvtrace.cache.simulate(MINUTES, 4)) == {}


@pytest.mark.parametrize(
    ("options", "section"),
    [
        (["--tiers", "hbm=2,pool=9@cluster", "--instances", "2", "--router", "kv-aware"], "hits-by-source"),
        (["--prefill-workers", "1", "--decode-workers", "2", "--kv-transfer-bandwidth", "50GB/s"], "workers"),
    ],
)
def test_the_command_simulates_tiers_or_workers(tmp_path, options, section):
    kvtrace.write(MINUTES, tmp_path / "small.jsonl")
    gpu = ["--model", str(ROOT / "tests/data/models/llama-3.1-8b.json"), "--gpu", "h100"]
    page = tmp_path / "page.html"
    arguments = ["report", str(tmp_path / "small.jsonl"), "-o", str(page), *options]
    assert command([*arguments, *(gpu if section == "workers" else [])]) == 0
    assert f'<section id="{section}"' in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--instances", "2"], "--instances and --router need --tiers, or --prefill-workers and --decode-workers."),
        (
            ["--prefill-workers", "1", "--decode-workers", "1"],
            "--prefill-workers is a simulation in time. Add --model and --gpu.",
        ),
        (
            ["--tiers", "hbm=2,dram=9", "--instances", "2", "--router", "sticky,overlap"],
            "--router must be one router. Example: --router kv-aware.",
        ),
    ],
)
def test_the_command_refuses_what_it_would_not_draw(tmp_path, capsys, options, message):
    kvtrace.write(MINUTES, tmp_path / "small.jsonl")
    arguments = ["report", str(tmp_path / "small.jsonl"), "-o", str(tmp_path / "page.html"), *options]
    assert command(arguments) == 2 and capsys.readouterr().err.endswith(f"kvtrace: {message}\n")
    assert not (tmp_path / "page.html").exists()
