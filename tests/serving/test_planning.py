"""The capacity planner: each part against what it is made of, and the command."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.analysis.curves import hit_curve
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.cli import run
from kvtrace.report.plan_tables import tables as tables_of
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import GPUS, Roofline, gpu
from kvtrace.serving.hardware.room import least_gpus
from kvtrace.serving.latencies import quantile_interval
from kvtrace.serving.models import MODELS, model_shape
from kvtrace.serving.planning.plan_result import UnmetTarget
from kvtrace.serving.planning.plan_runs import (
    least_gpus_for,
    prefill_alone_s,
    prefill_floor,
    replace_times,
    served,
    with_unshared,
)
from kvtrace.serving.planning.plan_target import PlannedTier, PlanTarget
from kvtrace.serving.planning.planning import GIB, memory, plan, tiers
from kvtrace.serving.routers import ROUTERS
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.simulation import BatchLimits, Tier, open_loop
from kvtrace.trace.building import toy

MODEL = Path(__file__).parents[1] / "data/models/llama-3.1-8b.json"


A100 = Deployment(MODEL, gpu="a100", max_num_batched_tokens=8192)


def on(target, deployment=A100):
    """The target on a deployment."""
    return target.on(TimeSetup(deployment=deployment))


@pytest.fixture(scope="module")
def roofline():
    return Roofline(model_shape(MODEL), gpu("a100"))


@pytest.fixture(scope="module")
def trace():
    """Conversations of four turns in blocks of 512 tokens, a request a second."""
    prompts = [" ".join(str(1000 * (i % 40) + block) for block in range(8 * (1 + i // 40))) for i in range(160)]
    return toy(*prompts, block_size=512, gap_ms=1000.0)


@pytest.fixture(scope="module")
def result(trace):
    return plan(trace, A100, PlanTarget(ttft_s=3.0, tiers=(PlannedTier("dram", 64 * GIB, 25e9),)))


def test_every_part_states_what_it_assumes(result):
    for name in ("setting", "memory", "tiers", "instances", "block_sizes", "prices", "loop"):
        assumes = getattr(result, name).assumes
        assert assumes and all(isinstance(line, str) for line in assumes)
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_the_least_memory_for_a_share_of_the_hits_has_them_and_one_block_less_has_not(trace, roofline):
    curve, part = hit_curve(trace), memory(trace, hit_curve(trace), roofline)
    possible = part.unlimited_block_hit_rate * len(trace.hash_ids)
    for share, least in part.least.items():
        wanted = float(share.rstrip("%")) / 100 * possible
        assert curve.at(least.capacity).hit_blocks >= wanted > curve.at(least.capacity - 1).hit_blocks
        assert least.gib == pytest.approx(least.capacity * 512 * 131072 / GIB)


def test_the_gaps_are_those_of_simulations(trace, roofline):
    for point in memory(trace, hit_curve(trace), roofline).points:
        assert simulate(trace, point.capacity).hits.block_hit_rate == pytest.approx(point.block_hit_rate)
        if point.gap_to_belady is not None:
            best = simulate(trace, point.capacity, "belady").hits.block_hit_rate
            assert best - point.block_hit_rate == pytest.approx(point.gap_to_belady)
            assert point.gap_to_belady <= point.gap_to_unlimited + 1e-9


def test_the_best_router_meets_the_target_and_one_instance_less_does_not(trace, roofline, result):
    best, wanted = result.instances.best, PlanTarget(ttft_s=3.0, tiers=(PlannedTier("dram", 64 * GIB, 25e9),))
    planned = on(wanted).run(512, router=best.router)
    times = [np.quantile(served(trace, planned.changed(instances=n)).ttft_s, 0.9)
             for n in (best.instances, best.instances - 1) if n]  # fmt: skip
    assert times[0] <= 3.0 and all(time > 3.0 for time in times[1:])
    assert best.instances == min(row.instances for row in result.instances.routers if row.instances)


def test_a_target_that_nobody_meets_is_said(trace, roofline):
    result = plan(trace, A100, PlanTarget(ttft_s=1e-6, routers=("sticky",)))
    (row,) = result.instances.routers
    assert result.instances.best is None and isinstance(row, UnmetTarget)
    assert not any(point.meets for point in row.curve)
    assert row.reason.startswith("Prefill alone takes ") and " s at p90 without hits and " in row.reason
    assert "with every possible hit, above the target of 1e-06 s. Use faster GPUs" in row.reason
    assert result.loop is None and result.tiers is None
    values = result.to_dict()
    assert values["instances"]["routers"][0]["instances"] is None
    assert values["tiers"] is None and not {"loop", "sensitivity"} & values.keys()


def test_slower_arrivals_never_need_more_and_a_tier_only_adds_hits(trace, roofline):
    slow = open_loop(replace_times(trace, 10), step_cost(roofline), setting=Setting(4000, mode="token"))
    fast = open_loop(replace_times(trace, 0.1), step_cost(roofline), setting=Setting(4000, mode="token"))
    assert slow.ttft_s.mean() <= fast.ttft_s.mean()
    below = (PlannedTier("dram", 4 * GIB, 25e9), PlannedTier("ssd", 16 * GIB, 3e9))
    rows = tiers(trace, on(PlanTarget(tiers=below)), 40).rows
    assert rows[0].hit_blocks == simulate(trace, 40).hits.hit_blocks
    sizes = np.cumsum([row.capacity for row in rows])
    assert [sum(row.hit_blocks for row in rows[: i + 1]) for i in range(3)] == [
        hit_curve(trace).at(int(size)).hit_blocks for size in sizes
    ]
    through = tiers(trace, on(PlanTarget(tiers=below, write_through=True)), 40).rows
    assert sum(row.capacity for row in through) == 16 * GIB // (512 * 131072)


def test_a_plan_uses_vllms_scheduler_with_the_one_lower_tier_that_it_has(roofline):
    dram, ssd = PlannedTier("dram", 4 * GIB, 25e9), PlannedTier("ssd", 16 * GIB, 3e9)
    block = 512 * roofline.model.kv_bytes_per_token
    with_dram, with_both = PlanTarget(tiers=(dram,)), PlanTarget(tiers=(dram, ssd))
    sglang = replace(A100, engine="sglang")
    assert on(with_dram).setting(9).engine == "vllm" and on(with_both).setting(9).engine == "reference"
    assert on(with_dram, sglang).setting(9).engine == "sglang"
    assert on(PlanTarget(), sglang).setting(9).engine == "sglang"
    (tier,) = on(replace(with_dram, write_through=True)).lower_tiers(512, 9)  # vLLM's tier holds copies in any case
    assert tier == Tier("dram", 4 * GIB // block, block / 25e9)


def test_a_tier_is_a_name_a_size_and_a_bandwidth():
    assert PlannedTier.parse("ssd=4TB@3GB") == PlannedTier("ssd", 4_000_000_000_000, 3_000_000_000)
    for wrong in ("dram", "dram=4GB", "hbm=4GB@1GB", "=4GB@1GB", "dram=x@1GB"):
        with pytest.raises(UsageError):
            PlannedTier.parse(wrong)


def test_a_model_that_does_not_fit_is_refused(trace):
    big = Deployment(Path(__file__).parents[1] / "data/models/deepseek-v3.json", gpu="a100")
    with pytest.raises(UsageError, match="--gpus 16 or more"):
        plan(trace, big)
    with pytest.raises(UsageError, match="adds no block"):
        plan(trace, A100, PlanTarget(tiers=(PlannedTier("dram", 5, 25e9),)))


def test_the_advice_on_gpus_is_the_smallest_number_that_fits(trace):
    single = Deployment("llama-3-70b", gpu=replace(gpu("a100"), memory=80e9))
    with pytest.raises(UsageError, match="1 x a100 do not hold .* 32 blocks. Try --gpus 4 or more.$"):
        plan(trace, single, PlanTarget(ttft_s=100.0))
    four = single.with_gpus(4)  # 64 heads cannot be divided by 3
    assert least_gpus(single, 32 * 512) == four and on(PlanTarget(), four).capacity(512) >= 32
    with pytest.raises(UsageError, match="the weights need 71 GB on each GPU; a100 has 69 GB"):
        on(PlanTarget(), single.with_gpus(2)).capacity(512)


def test_the_advice_names_the_gpus_for_a_target_that_prefill_alone_misses(trace):
    single, target = Deployment("llama-3-70b", gpu="a100"), PlanTarget(ttft_s=0.5, routers=("sticky",))
    four = TimeSetup(deployment=single.with_gpus(4))
    needed = least_gpus_for(trace, target, four)
    floors = [prefill_floor(trace, on(target, single.with_gpus(n))).with_hits_s for n in (needed // 2, needed)]
    assert floors[0] > 0.5 >= floors[1]
    with pytest.raises(UsageError, match=f"prefill alone takes longer than the target of 0.5 s below --gpus {needed}"):
        plan(trace, single, target)
    (row,) = plan(trace, single.with_gpus(needed // 2), target).instances.routers
    assert f"Use --gpus {needed} or more, or a longer target." in row.reason
    assert least_gpus_for(trace, PlanTarget(ttft_s=1e-6), four) is None


def test_the_command_prints_a_page_and_one_json(tmp_path, capsys, trace):
    kvtrace.write(trace, tmp_path / "t.jsonl")
    words = ["plan", str(tmp_path / "t.jsonl"), "--model-config", str(MODEL), "--gpu", "a100", "--ttft", "3s"]
    assert run([*words, "--router", "sticky,lmetric", "--tiers", "dram=64GiB@25GB", "-v", "-q"]) == 0
    page = capsys.readouterr().out
    for title in (
        "Hits by memory",
        "Tiers below",
        "Instances for",
        "One-pass estimate",
        "an assumption changes",
        "by number of instances",
        "prices",
    ):
        assert title in page
    assert run([*words, "--json", "-q", "--router", "sticky"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 5
    for wrong in (["--gpu", "nothing"], ["--router", "nobody"], ["--ttft", "soon"], ["--tiers", "much"]):
        assert run([*words, *wrong]) in (2, 3)
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_report_page_holds_the_plan(tmp_path, capsys, trace):
    pytest.importorskip("plotly")
    kvtrace.write(trace, tmp_path / "t.jsonl")
    words = ["report", str(tmp_path / "t.jsonl"), "-o", str(tmp_path / "p.html"), "--gpu", "a100", "--ttft", "3s", "-q"]
    assert run([*words, "--model-config", str(MODEL)]) == 0
    html = (tmp_path / "p.html").read_text()
    assert all(text in html for text in ('<section id="plan">', "Instances for a time to first token", "Assumes:"))
    assert run(words) == 2 and "needs --model" in capsys.readouterr().err
    assert run(["report", str(tmp_path / "t.jsonl"), "-o", str(tmp_path / "p.html"), "-q"]) == 0
    assert 'id="plan"' not in (tmp_path / "p.html").read_text()


def test_on_a_real_trace_the_plan_has_the_hit_rate_of_an_unlimited_cache(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")[:3000]
    unlimited = kvtrace.analysis.hit_curve(trace).at(trace.working_set).block_hit_rate
    result = plan(trace, Deployment(MODEL, gpu="h100"), PlanTarget(ttft_s=1000.0, routers=("round-robin",)))
    assert result.memory.unlimited_block_hit_rate == pytest.approx(unlimited) and unlimited > 0.1


def test_prefill_alone_is_the_time_to_first_token_of_a_request_that_meets_no_other(roofline):
    trace = toy(*(f"{100 * i} {100 * i + 1} {100 * i + 2}" for i in range(5)), block_size=8000, gap_ms=1e6)
    limits = BatchLimits(step_tokens=10_000)
    run = open_loop(trace, step_cost(roofline), setting=Setting(20), limits=limits)
    assert prefill_alone_s(trace, step_cost(roofline), limits) == pytest.approx(run.ttft_s)


def test_no_router_is_faster_than_prefill_alone_with_every_possible_hit(trace, roofline, result):
    floor = result.instances.floor
    assert floor.with_hits_s <= floor.without_hits_s
    assert all(point.ttft_s >= floor.with_hits_s for row in result.instances.routers for point in row.curve)


def test_the_range_ends_before_the_first_larger_number_that_misses_the_target(result):
    for row in result.instances.routers:
        if row.instances is None:
            continue
        within = [p for p in row.curve if row.instances <= p.instances <= (row.most_instances or 10**9)]
        assert within and all(point.meets for point in within)
        below = [point for point in row.curve if point.instances == row.instances - 1]
        assert not any(point.meets for point in below)


def test_a_point_of_the_curve_is_what_simulate_prints(tmp_path, capsys, trace):
    kvtrace.write(trace, tmp_path / "t.jsonl")
    common = [
        str(tmp_path / "t.jsonl"),
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "a100",
        "--router",
        "lmetric",
        "--json",
        "-q",
    ]
    assert run(["plan", *common, "--ttft", "3s"]) == 0
    point = json.loads(capsys.readouterr().out)["instances"]["routers"][0]["curve"][-1]
    assert run(["simulate", *common, "--instances", str(point["instances"])]) == 0
    (simulated,) = json.loads(capsys.readouterr().out)["results"]
    assert simulated["ttft_s"] == point["ttft"] and simulated["block_hit_rate"] == point["block_hit_rate"]


def test_a_name_is_the_config_of_that_model():
    for path in MODEL.parent.glob("*.json"):
        named, read = model_shape(path.stem), model_shape(path)
        assert replace(read, name=path.stem) == named
    assert MODELS.keys() >= {path.stem for path in MODEL.parent.glob("*.json")}


def test_help_lists_gpus_and_routers_and_says_where_models_are(capsys):
    assert run(["plan", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in [*GPUS, *ROUTERS]:
        assert any(word.strip(",.") == name for word in text.split()), name
    assert "a name that kvtrace models lists" in text and "qwen3" not in text


def test_csv_has_a_row_for_each_simulated_number(tmp_path, capsys, trace):
    kvtrace.write(trace, tmp_path / "t.jsonl")
    call = ["plan", str(tmp_path / "t.jsonl"), "--model", "llama-3.1-8b", "--ttft", "3s", "--router", "sticky", "-q"]
    assert run([*call, "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert run([*call, "--json"]) == 0
    (router,) = json.loads(capsys.readouterr().out)["instances"]["routers"]
    assert [int(row["instances"]) for row in rows] == [point["instances"] for point in router["curve"]]
    assert [float(row["usd"]) for row in rows] == pytest.approx([point["usd"] for point in router["curve"]])


def test_the_rows_of_a_plan_fit_80_columns(result):
    for table in tables_of(result):
        if table.title != "Target not met" and not any(column.dim and not column.name for column in table.columns):
            cells = [[column.name for column in table.columns], *table.rows]
            assert sum(max(map(len, column)) + 2 for column in zip(*cells, strict=False)) - 2 <= 80, table.title


def test_requests_that_share_nothing_have_no_hits(trace):
    assert kvtrace.trace.unlimited_hits(with_unshared(trace, 1.0)).sum() == 0
    hits = [kvtrace.trace.unlimited_hits(with_unshared(trace, share)).sum() for share in (0.6, 0.3, 0.0)]
    assert sorted(hits) == hits and hits[-1] == kvtrace.trace.unlimited_hits(trace).sum()


def test_the_interval_of_a_quantile_holds_it_and_is_wider_where_requests_depend_on_each_other():
    rng = np.random.default_rng(3)
    alone = rng.exponential(size=20_000)
    low, high = quantile_interval(alone, 0.9)
    assert low <= np.log(10) <= high and high - low < 0.1  # the quantile of an exponential distribution
    crowds = np.repeat(rng.exponential(size=50), 400)
    assert np.subtract(*quantile_interval(crowds, 0.9)[::-1]) > 5 * (high - low)


def test_the_interval_of_a_quantile_is_that_of_whole_replicates():
    rng = np.random.default_rng(5)
    for length in (1, 7, 50, 333):
        values, quantile = rng.integers(0, 9, length).astype(float), float(rng.uniform())
        place = np.arange(length) * min(50, length) // length
        windows = [values[place == window] for window in range(min(50, length))]
        draws = np.random.default_rng(0).multinomial(len(windows), np.full(len(windows), 1 / len(windows)), size=200)
        drawn = [
            np.concatenate([np.tile(part, count) for part, count in zip(windows, row, strict=True)]) for row in draws
        ]
        plain = [np.sort(one)[max(0, int(np.ceil(quantile * len(one))) - 1)] for one in drawn]
        assert quantile_interval(values, quantile) == tuple(np.quantile(plain, (0.05, 0.95)))


def test_an_assumption_that_helps_never_needs_more_instances(result):
    rows = {(row.what, row.factor): row for row in result.sensitivity}
    assert rows["plan", 1.0].instances == result.instances.best.instances
    for what in ("compute", "bandwidth"):
        needed = [rows[what, factor].instances or 10**9 for factor in (0.6, 0.8, 1.2, 1.4)]
        assert needed == sorted(needed, reverse=True)
    assert all(row.ttft_low <= row.ttft_high for row in result.sensitivity)
