"""Routed experts and exchanges as terms of a step, and what errors of simulated times imply."""

from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import toy
from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration import costs as costs_module
from kvtrace.serving.calibration.calibration import Served
from kvtrace.serving.calibration.costs import (
    Costs,
    OperatingRange,
    read_costs,
    roofline_cost,
    start_terms,
    step_cost,
    terms_of,
)
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import Link, Roofline, gpu
from kvtrace.serving.models import model_shape
from kvtrace.serving.planning.plan_runs import InstanceRuns, prefill_alone_s
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.planning.planning import instances
from kvtrace.serving.planning.sizing import TimeErrors, held_out_errors, limit_interval, time_interval
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import BatchLimits, ClosedLoop, StepCost, closed_loop, open_loop
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace
from tests.reference.serving import entered
from tests.reference.vllm_scheduler import step_seconds

DENSE = model_shape("llama-3.1-8b")
AT_ONCE = VllmScheduler(async_scheduling=False, max_num_batched_tokens=1_000_000, max_num_seqs=1000)


def one_request(prompt, output, rows=1):
    """Requests that arrive together, with nothing in common, in blocks of one token."""
    trace = toy(*(" ".join(str(100 * row + i) for i in range(prompt)) for row in range(rows)), gap_ms=0.0)
    return Trace.from_columns(replace_columns(trace, output_length=np.full(rows, output)), block_size=1)


def ended(trace, cost):
    scheduler = VllmScheduler(async_scheduling=False)
    return open_loop(trace, cost, setting=Setting(1000, engine="vllm"), scheduler=scheduler).ended_s


def test_the_experts_of_a_step_by_hand():
    # a prompt of 3 tokens, then two steps of one: 1 - 0.75^3 and twice 0.25 of 64 s, which is longer than the products
    cost = StepCost(token_s=1.0, expert_token_s=0.5, expert_step_s=64.0, expert_share=0.25)
    assert ended(one_request(3, 3), cost).tolist() == [3 + 64 * (1 - 0.75**3) + 2 * (1 + 16)]
    # where products take longer than reading, they count
    quick = replace(cost, expert_step_s=0.25)
    assert ended(one_request(3, 3), quick).tolist() == [5 * 1.5]


def test_what_gpus_exchange_by_hand():
    assert ended(one_request(3, 3), StepCost(token_s=1.0, exchange_s=0.5, overhead_s=2.0)).tolist() == [5 * 1.5 + 3 * 2]


def test_large_steps_take_the_other_way_if_that_is_shorter():
    cost = StepCost(token_s=1.0, exchange_s=0.5, bulk_exchange_s=0.125, bulk_exchange_step_s=1.5)
    assert ended(one_request(8, 2), cost).tolist() == [8 + 1.5 + 8 / 8 + 1 + 0.5]
    assert ended(one_request(3, 2), cost).tolist() == [(3 + 1) * 1.5]  # 1.5 + 3 / 8 would be longer
    must = replace(cost, bulk_exchange_tokens=2.0)  # buffers hold no more
    assert ended(one_request(3, 2), must).tolist() == [3 + 1.5 + 3 / 8 + 1.5]


def test_a_step_with_prompts_without_a_graph_takes_at_least_its_launches():
    cost = StepCost(token_s=1.0, launch_s=10.0, graph_tokens=4.0)
    assert ended(one_request(4, 3), cost).tolist() == [4 + 2]  # decoding has graphs
    assert ended(one_request(5, 3), cost).tolist() == [10 + 2]
    assert ended(one_request(12, 1), cost).tolist() == [12]


# -- the API server before the engine ----------------------------------------------------------------------------------

FRONT = StepCost(token_s=1.0, front_request_s=2.0, front_token_s=0.5, front_delay_s=0.25)


def test_the_api_server_takes_one_request_after_another():
    # two prompts of two tokens at 0: they leave it at 3 and 6, and the engine takes 2 s for each
    done = open_loop(one_request(2, 1, rows=2), FRONT, setting=Setting(1000))
    assert done.started_s.tolist() == [3.25, 6.25] and done.ttft_s.tolist() == [5.25, 8.25]
    assert done.queued_s.tolist() == [3.25, 6.25] and done.e2e_s.tolist() == done.ttft_s.tolist()
    # two instances have two of them
    done = open_loop(one_request(2, 1, rows=2), FRONT, setting=Setting(1000), instances=2)
    assert done.started_s.tolist() == [1.75, 3.25]


def test_the_api_server_takes_requests_of_a_closed_loop_in_the_order_in_which_they_are_sent():
    after_first = Dependencies.of([[], [(0, "completion", "sequence", 0.0)], []])
    columns = replace_columns(toy("0 1", "2 3", "4 5", gap_ms=0.0), dependencies=after_first)
    trace = Trace.from_columns(columns, block_size=1)
    done = closed_loop(trace, FRONT, setting=Setting(1000), loop=ClosedLoop(lanes=2))
    # both lanes send at 0; the second request of the first session follows at 5.25, when the server is at work until 6
    assert done.row.tolist() == [0, 2, 1] and done.arrival_s.tolist() == [0, 0, 5.25]
    assert done.started_s.tolist() == [3.25, 6.25, 9.25] and done.ttft_s.tolist() == [5.25, 8.25, 6.0]


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 900)), min_size=1, max_size=60), st.integers(1, 4),
       st.sampled_from([(0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 1e-3, 0.1), (0.1, 1e-2, 0.0)]))  # fmt: skip
def test_the_vectorised_api_server_is_that_which_takes_one_request_after_another(requests, servers, terms):
    gaps, tokens = (np.array(column) for column in zip(*requests, strict=True))
    columns = replace_columns(toy(*["0"] * len(gaps)), timestamp=np.cumsum(gaps), input_length=tokens)
    trace = Trace.from_columns(columns, block_size=1000)
    cost = StepCost(0.0, **dict(zip(("front_request_s", "front_token_s", "front_delay_s"), terms, strict=True)))
    done = open_loop(trace, cost, setting=Setting(1000, engine="vllm"), instances=servers, scheduler=AT_ONCE)
    one_by_one = entered((trace.timestamp / 1000).tolist(), tokens.tolist(), cost, servers)
    assert done.started_s == pytest.approx(one_by_one, rel=1e-12)
    assert (np.diff(done.started_s) >= 0).all()
    if not any(terms):
        assert (done.started_s == trace.timestamp / 1000).all()  # to the bit


@given(st.integers(1, 6), st.integers(1, 40), st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_steps_taken_together_take_the_sum_of_single_ones(rows, prompt, output, seed):
    random = np.random.default_rng(seed)
    scales = {
        "expert_share": 1.0,
        "window_tokens": 80.0,
        "graph_tokens": 240.0,
        "bulk_exchange_tokens": 90.0,
        "launch_s": 0.1,
    }
    names = [one.name for one in fields(StepCost) if not one.name.startswith("front_")]
    cost = StepCost(**{name: random.choice([0.0, random.uniform(0, scales.get(name, 1e-3))]) for name in names})
    # after the prompts' step all requests decode: the contexts grow from `prompt` + 1, one token each
    steps = [[(prompt, prompt + step - 1 if step else 0, 1 if step else prompt)] * rows for step in range(output)]
    seconds = sum(step_seconds(asdict(cost), parts) for parts in steps)
    assert ended(one_request(prompt, output, rows), cost) == pytest.approx([seconds] * rows, rel=1e-12)


@pytest.mark.parametrize("limit", [2, 40])
def test_prefill_alone_has_all_terms_but_those_of_the_api_server(limit):
    cost = StepCost(
        token_s=1.0, exchange_s=0.5, expert_token_s=0.25, expert_step_s=100.0, expert_share=0.5, bulk_exchange_s=0.125,
        bulk_exchange_step_s=2.0, launch_s=101.0, graph_tokens=1.0, window_read_s=1.0, window_pair_s=0.5,
        window_tokens=3.0,
    )  # fmt: skip
    run = open_loop(one_request(33, 1), cost, setting=Setting(1000), limits=BatchLimits(limit))
    assert prefill_alone_s(one_request(33, 1), cost, BatchLimits(limit)) == pytest.approx(run.ttft_s)


@pytest.mark.parametrize(("model", "gpus"), [("qwen3-30b-a3b", 1), ("llama-3.1-8b", 2), ("mixtral-8x7b", 4)])
def test_a_step_of_the_roofline_is_that_of_its_costs(model, gpus):
    roofline = Roofline(model_shape(model), gpu("rtx-pro-6000"), gpus)
    cost = step_cost(roofline)
    for tokens in (1, 100, 2048):
        trace = one_request(tokens, 1)
        run = open_loop(trace, cost, setting=Setting(5000), limits=BatchLimits(4096))
        # the roofline also counts the KV that is written
        written = roofline.seconds_per_cached_token * tokens
        assert run.first_s[0] == pytest.approx(roofline.prefill_s(tokens) - written, rel=1e-12)


def fitted(multiples, model="llama-3.1-8b", device="rtx-pro-6000", gpus=1):
    """Costs whose terms are multiples of the roofline's, as a calibration would write them."""
    shape, card = model_shape(model), gpu(device)
    start = start_terms(Roofline(shape, card, gpus))
    names = terms_of("sum", start)
    terms = {field: 0.0 for field in StepCost.__dataclass_fields__} | {"expert_share": start["expert_share"]}
    terms |= {name: start[name] * multiples.get(name, 1.0) for name in names}
    seen = OperatingRange(1, 1, 1, 1)
    return Costs(
        shape.name, card.name, gpus, "vllm", "sum", terms, asdict(shape), asdict(card), {}, None, seen, {}
    )  # fmt: skip


@pytest.mark.parametrize(("model", "gpus"), [("llama-3-70b", 2), ("qwen3-30b-a3b", 1), ("llama-3.1-8b", 1)])
def test_another_model_keeps_the_multiples_of_the_roofline(model, gpus):
    multiples = {"token_s": 1.5, "step_s": 1.25, "attention_pair_s": 0.5, "attention_read_s": 2.0, "overhead_s": 3.0}
    costs = fitted(multiples)
    layers = model_shape(model).layers / DENSE.layers
    there = Roofline(model_shape(model), gpu("rtx-pro-6000"), gpus, step_overhead_s=0.002 * layers)
    free, linked = (start_terms(replace(there, link=link)) for link in (Link(1e30, 0.0), None))
    got = asdict(costs.for_model(model, gpus=gpus))
    for name in multiples:
        assert got[name] == pytest.approx(multiples[name] * free[name] + linked[name] - free[name]), name
    assert got["exchange_s"] == pytest.approx(linked["exchange_s"])
    assert got["expert_token_s"] == pytest.approx(1.5 * free["expert_token_s"])
    assert got["expert_step_s"] == pytest.approx(1.25 * free["expert_step_s"])
    assert costs.for_gpus(model, gpus=gpus).compute_s(100) == pytest.approx(
        100 * (got["token_s"] + got["expert_token_s"] + got["exchange_s"]) + 100**2 * got["attention_pair_s"]
    )


HOST = {"launch_s": 0.05, "graph_tokens": 512.0, "front_request_s": 1e-3, "front_token_s": 1e-6, "front_delay_s": 0.01}


@pytest.fixture
def more_terms(monkeypatch):
    """A roofline with all terms: another way to exchange, which depends on the link, and an engine's host."""

    def with_more(roofline):
        cost = roofline_cost(roofline)
        return replace(cost, bulk_exchange_s=cost.exchange_s / 4, bulk_exchange_step_s=100 * cost.exchange_s, **HOST)

    monkeypatch.setattr(costs_module, "roofline_cost", with_more)


def test_the_other_way_to_exchange_keeps_its_ratio_and_the_host_its_terms(more_terms):
    two = fitted({"exchange_s": 2.0}, gpus=2)
    start = start_terms(Roofline(DENSE, gpu("rtx-pro-6000"), 2))
    bulk = {name: 2.0 * start[name] for name in ("bulk_exchange_s", "bulk_exchange_step_s")}
    measured = replace(two, terms={**two.terms, **bulk, **HOST})
    assert asdict(measured.for_model(DENSE, gpus=2)) == pytest.approx(asdict(measured.step_cost))
    for gpus, model in ((4, "llama-3-70b"), (2, "qwen3-30b-a3b")):
        there = asdict(measured.for_model(model, gpus=gpus))
        assert there["bulk_exchange_s"] == pytest.approx(there["exchange_s"] / 4)
        assert there["bulk_exchange_step_s"] == pytest.approx(there["exchange_s"] * 100)
        layers = model_shape(model).layers / DENSE.layers
        assert {name: there[name] for name in HOST} == {**HOST, "launch_s": pytest.approx(HOST["launch_s"] * layers)}


def test_costs_of_a_file_without_the_new_terms_stay_as_they_were(more_terms, tmp_path):
    for gpus in (1, 2):
        costs = fitted({"step_s": 1.5, "exchange_s": 2.0}, gpus=gpus)
        new = [name for name in costs.terms if name.startswith(("bulk_", "front_", "launch_", "graph_"))]
        old = replace(costs, terms={name: value for name, value in costs.terms.items() if name not in new})
        old.save(tmp_path / "costs.json")
        again = read_costs(tmp_path / "costs.json")
        assert len(new) == 8 and again.step_cost == costs.step_cost
        assert asdict(again.for_model(DENSE, gpus=gpus)) == pytest.approx(asdict(again.step_cost))


def test_a_fit_has_the_other_way_and_the_host_of_the_roofline(more_terms):
    line = Roofline(DENSE, gpu("rtx-pro-6000"), 2)
    served, start = Served(None, line, Deployment("llama-3.1-8b")), start_terms(line)
    cost = served.cost({"token_s": 1.0, "exchange_s": 3 * start["exchange_s"]})
    assert (cost.token_s, cost.bulk_exchange_s) == (1.0, pytest.approx(3 * start["bulk_exchange_s"]))
    assert {name: getattr(cost, name) for name in HOST} == HOST
    assert served.cost({"token_s": 1.0}).bulk_exchange_s == 0


def test_costs_of_two_gpus_give_those_of_one():
    two, single = fitted({"step_s": 1.5, "exchange_s": 2.0}, gpus=2), fitted({"step_s": 1.5})
    assert asdict(two.for_model(DENSE)) == pytest.approx(asdict(single.step_cost))
    assert asdict(two.for_model(DENSE, gpus=2)) == pytest.approx(asdict(two.step_cost))


def test_the_link_is_that_of_the_gpu_unless_it_is_given():
    own, other = (fitted({}, device=name).for_model(DENSE, gpus=2) for name in ("rtx-pro-6000", "rtx-4090"))
    links = [gpu(name).link for name in ("rtx-pro-6000", "rtx-4090")]
    for cost, link in zip((own, other), links, strict=True):
        assert cost.exchange_s == pytest.approx(64 * 8192 / link.bytes_per_s)
    assert fitted({}).for_model(DENSE, gpus=2, link=Link(1e9, 0)).exchange_s == pytest.approx(64 * 8192 / 1e9)


# -- errors of simulated times -----------------------------------------------------------------------------------------


def test_an_error_of_a_time_is_an_interval_of_it():
    assert time_interval(1.0, 0.0) == (1.0, 1.0) and time_interval(0.8, 1.0) == (0.4, float("inf"))
    assert limit_interval(2.0, 1.5) == (0.0, 5.0)
    errors = held_out_errors({"ttft_s_mean": -0.3, "ttft_s_p50": 0.1, "tpot_s_mean": 0.9}, "")
    assert (errors.largest(0.99), errors.statistic(0.99)) == (0.1, "p50")
    assert held_out_errors({"ttft_s_mean": -0.3}, "").largest(0.5) == 0.3
    assert TimeErrors({}, "").largest(0.5) == 0.0


def planned(errors):
    rng = np.random.default_rng(1)
    lines = [" ".join(str(1000 * i + j) for j in range(8)) for i in range(120)]
    trace = toy(*lines, block_size=512, gap_ms=1.0)
    trace = Trace.from_columns(
        replace_columns(trace, timestamp=np.sort(rng.uniform(0, 20_000, 120)), output_length=np.full(120, 40)),
        block_size=512,
    )
    time = TimeSetup(deployment=Deployment("llama-3.1-8b", gpu="a100", max_num_batched_tokens=8192))
    target = PlanTarget(ttft_s=0.7, routers=("round-robin",)).on(time)
    return trace, target, instances(trace, target, errors)[0]


def test_the_interval_of_a_plan_is_that_of_the_target_moved_by_the_error():
    error = 0.3
    trace, target, plan = planned(TimeErrors({"p90": (0.1, -error)}, "two recordings"))
    interval, runs = plan.model_error, InstanceRuns(trace, target, "round-robin")
    assert (interval.statistic, interval.error, interval.basis) == ("p90", error, "two recordings")
    assert (interval.ttft_low, interval.ttft_high) == pytest.approx((plan.best.ttft_s / 1.3, plan.best.ttft_s / 0.7))
    assert interval.fewest_instances <= plan.best.instances <= interval.sure_instances
    assert interval.fewest_instances < interval.sure_instances
    for count, limit in ((interval.fewest_instances, 0.7 * 1.3), (interval.sure_instances, 0.7 * 0.7)):
        assert runs.at(count).ttft_s <= limit
        assert count == 1 or runs.at(count - 1).ttft_s > limit


def test_without_errors_the_interval_is_the_plan():
    *_, plan = planned(TimeErrors({}, "nothing"))
    interval = plan.model_error
    assert interval.fewest_instances == interval.sure_instances == plan.best.instances
    assert interval.ttft_low == interval.ttft_high == plan.best.ttft_s


def test_an_error_of_the_whole_time_leaves_no_sure_number():
    *_, plan = planned(TimeErrors({"p90": (1.2,)}, "a bad model"))
    assert plan.model_error.sure_instances is None and plan.model_error.ttft_high is None
