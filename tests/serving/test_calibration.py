"""Calibration: known costs come back as predictions, and the held-out requests decide nothing."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from kvtrace import InputError, UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration.calibration import calibrate
from kvtrace.serving.calibration.costs import TERMS, OperatingRange, read_costs, roofline_cost
from kvtrace.serving.calibration.fitting import DecodeTimes, TokenGaps, fit
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import Roofline
from kvtrace.serving.hardware.gpus import Gpu, Link
from kvtrace.serving.latencies import Latencies, errors_of
from kvtrace.serving.models import MODELS
from kvtrace.serving.models.shape import model_shape
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import open_loop
from kvtrace.serving.validation import validate
from tests.serving.measured import measured
from tests.serving.quick_fits import quick_fits
from tests.serving.recorded import COST, SETTINGS, made_up, recorded

GPU = Gpu("toy", 300e12, 1.2e12, 48e9, 1.0)
LLAMA = "llama-3.1-8b"
MEASURED = {
    "rtx-pro-6000-server": Gpu("rtx-pro-6000", 503.8e12, 1.792e12, 96e9, 1.5),
    "rtx-4090": Gpu("rtx-4090", 165.2e12, 1.008e12, 24e9, 0.4),
}


def within(errors, limits):
    """Whether each error is within its limit; the others do not count."""
    known = {f"{one.latency} {one.statistic}": abs(one.error) for one in errors}
    return {name: known[name] for name, limit in limits.items() if not known[name] <= limit} == {}


SERVED = Deployment(LLAMA, gpu=GPU)


@pytest.fixture(scope="module")
def calibrated():
    return calibrate(recorded(), SERVED)


def test_known_costs_are_predicted(calibrated):
    assert calibrated.held_out == 60
    assert within(calibrated.errors, {"ttft_s mean": 0.03, "ttft_s p90": 0.05, "tpot_s mean": 0.01, "e2e_s mean": 0.01})
    assert max(abs(error.error) for error in calibrated.unfitted_errors) > 0.05  # the roofline is another engine
    assert calibrated.forms.keys() == {"max", "sum", "sum-request"}
    assert calibrated.worth["token_s"] > 2 * max(abs(error.error) for error in calibrated.errors)


@pytest.mark.parametrize(
    "terms",
    [{}, {"exchange_s": 4e-5}, {"exchange_s": 4e-5, "bulk_exchange_s": 1e-5, "bulk_exchange_step_s": 4e-3},
     {"launch_s": 0.06, "graph_tokens": 256.0},
     {"expert_token_s": 1e-5, "expert_step_s": 0.02, "expert_share": 0.0625}],
)  # fmt: skip
def test_the_first_estimates_have_every_term(terms):
    cost, trace = replace(COST, **terms), made_up(rows=100, rate=3.0)
    step_by_step = VllmScheduler(max_num_batched_tokens=8192, async_scheduling=False)
    run = open_loop(trace, cost, setting=Setting(100_000, engine="vllm"), scheduler=step_by_step)
    columns = (run.first_s, run.ended_s, trace.input_length, trace.output_length, run.cached_tokens)
    decode, gaps = (kind.of(*columns, step_tokens=8192) for kind in (DecodeTimes, TokenGaps))
    assert np.abs(decode.errors(vars(cost), np.ones(len(trace), dtype=bool))).mean() < 0.01
    assert np.abs(gaps.errors(vars(cost), gaps.steps(vars(cost)))).mean() < 0.01


def test_a_calibration_serves_other_requests_of_the_engine(calibrated):
    other = recorded(trace=made_up(rows=100, rate=6.0, seed=8))
    limits = {"ttft_s mean": 0.05, "tpot_s mean": 0.02, "e2e_s mean": 0.02}
    assert within(validate(other, calibrated.costs).errors, limits)


def test_the_held_out_times_decide_nothing():
    recording = recorded(trace=made_up(rows=60))
    late = np.arange(len(recording)) >= 30
    other = replace(recording, ended_s=recording.ended_s + 7.0 * late, first_s=recording.first_s + 3.0 * late)
    with quick_fits():
        first, again = calibrate(recording, SERVED), calibrate(other, SERVED)
    assert again.costs.terms == first.costs.terms
    assert again.forms == first.forms and again.errors != first.errors


def test_costs_are_written_and_read_back(calibrated, tmp_path):
    calibrated.costs.save(tmp_path / "costs.json")
    assert read_costs(tmp_path / "costs.json") == calibrated.costs
    assert calibrated.costs.measured.same_memory(SERVED)


def test_a_file_of_version_1_has_its_model_and_its_gpus(calibrated, tmp_path):
    values = {name: value for name, value in calibrated.costs.to_dict().items() if name != "deployment"}
    (tmp_path / "costs.json").write_text(json.dumps(values | {"version": 1}))
    old = read_costs(tmp_path / "costs.json")
    assert old.measured.same_memory(SERVED) and old.step_cost == calibrated.costs.step_cost


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"version": 2', '"version": 9', "not a costs.json of version 1 or 2"),
        ('"form"', '"shape"', "missing or unknown keys"),
        ('"token_s": ', '"token_s": -', "terms does not hold"),
        ("{", "[", "not valid JSON"),
    ],
)
def test_a_damaged_file_is_one_sentence(calibrated, tmp_path, old, new, sentence):
    path = tmp_path / "costs.json"
    calibrated.costs.save(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=sentence):
        read_costs(path)


def test_another_model_keeps_the_shares_of_the_peaks(calibrated):
    costs = calibrated.costs
    assert asdict(costs.for_model(LLAMA)) == pytest.approx(asdict(costs.step_cost))
    small, large = model_shape(LLAMA), model_shape({**MODELS[LLAMA].config, "num_hidden_layers": 64})
    scaled = asdict(costs.for_model(large))
    assert scaled["step_s"] == pytest.approx(costs.terms["step_s"] * large.matrix_bytes / small.matrix_bytes)
    assert scaled["token_s"] == pytest.approx(
        costs.terms["token_s"] * large.matrix_parameters / small.matrix_parameters
    )
    assert scaled["attention_pair_s"] == pytest.approx(2 * costs.terms["attention_pair_s"])
    head, overhead = costs.roofline.head_s, costs.roofline.fixed_s
    assert scaled["overhead_s"] == pytest.approx(costs.terms["overhead_s"] * (head + 2 * overhead) / (head + overhead))


def test_two_gpus_halve_the_work_and_exchange_activations(calibrated):
    alone = calibrated.costs.step_cost
    free = calibrated.costs.for_model(LLAMA, gpus=2, link=Link(1e30, 0.0))
    assert (free.token_s, free.step_s) == pytest.approx((alone.token_s / 2, alone.step_s / 2))
    linked = calibrated.costs.for_model(LLAMA, gpus=2, link=Link(1e9, 1e-5))
    # 2 all-reduces in 32 layers of 4,096 values of 2 bytes; each GPU sends and receives them once
    assert linked.exchange_s - free.exchange_s == pytest.approx(2 * 32 * 4096 * 2 / 1e9)
    assert linked.overhead_s - free.overhead_s == pytest.approx(2 * 32 * 1e-5)
    with pytest.raises(UsageError, match="--gpus must be a whole number"):
        calibrated.costs.for_model(LLAMA, gpus=0)


def test_experts_have_the_shares_of_other_matrices(calibrated):
    costs, shape = calibrated.costs, model_shape("qwen3-30b-a3b")
    scaled, roofline = costs.for_model(shape), replace(costs.roofline, model=shape)
    assert scaled.expert_step_s / roofline.seconds_for_experts == pytest.approx(
        costs.terms["step_s"] / costs.roofline.seconds_per_step
    )
    assert scaled.expert_share == shape.expert_share > 0


def test_a_run_beyond_the_recording_is_refused_with_the_factor(calibrated):
    same = validate(recorded(), calibrated.costs)
    seen = replace(calibrated.costs, seen=OperatingRange(1024, 16, 10**9, 10**9))
    calibrated.costs.require_seen(same.run, allowance=0.5)
    over = validate(recorded(), seen)
    assert over.extrapolation.keys() == {"batch"} and over.extrapolation["batch"] > 1
    with pytest.raises(UsageError, match=r"requests at once: [\d.]+ times"):
        seen.require_seen(over.run)


def test_a_validation_of_the_same_costs_has_no_error():
    done = validate(recorded(), COST)
    assert all(abs(error.error) < 1e-9 for error in done.errors)
    assert done.rank_correlation["ttft_s"] == pytest.approx(1)
    counts = done.to_dict()["over_time"]
    assert counts["running"] == counts["simulated_running"] and counts["waiting"] == counts["simulated_waiting"]
    assert SETTINGS.deployment.max_num_seqs - 2 <= max(counts["running"]) <= SETTINGS.deployment.max_num_seqs
    assert {"ttft_s", "simulated_ttft_s"} <= set(done._columns())


def test_a_slower_engine_shows_in_each_figure():
    twice = replace(COST, **{name: 2 * getattr(COST, name) for name in TERMS})
    done = validate(recorded(), twice).to_dict()
    assert all(error["error"] > 0.2 for error in done["errors"])
    assert done["simulated_output_tokens_per_s"] < 0.9 * done["output_tokens_per_s"]


def test_an_interval_holds_the_error_of_noise():
    random = np.random.default_rng(5)
    measured = random.exponential(1.0, 400)
    noisy = measured * np.exp(random.normal(0, 0.3, 400) - 0.045)
    (error,) = errors_of(*(Latencies(one, one, one) for one in (measured, noisy)), (("ttft_s", "mean"),))
    assert error.low < error.error < error.high and error.low < 0 < error.high and error.high - error.low < 0.2


def test_the_fit_crosses_jumps_and_stays_in_its_bounds():
    target = np.array([0.7, -5.0])
    done = fit(lambda x: np.round(x - target, 2), 2, starts=2)
    assert done.x == pytest.approx([0.7, -3.0], abs=0.05)


def test_arguments_are_checked():
    with pytest.raises(UsageError, match="--holdout must be at least 0"):
        calibrate(recorded(), SERVED, holdout=1.0)
    with pytest.raises(UsageError, match="at least 20 requests to fit and 10 to hold out"):
        calibrate(recorded(), SERVED, holdout=0.01)


@pytest.mark.parametrize("name", MEASURED)
def test_the_second_half_of_a_real_recording_is_predicted(shared, name):
    recording = measured(shared, name)
    with quick_fits(forms=["sum"], worth=False):
        done = calibrate(recording, Deployment(LLAMA, gpu=MEASURED[name]))
    limits = {"ttft_s mean": 0.03, "ttft_s p50": 0.05, "ttft_s p90": 0.05, "tpot_s mean": 0.02, "e2e_s mean": 0.02}
    assert within(done.errors, limits)
    assert validate(recording, done.costs).rank_correlation["ttft_s"] > 0.98


def test_what_was_fitted_to_ranks_that_share_experts_comes_back():
    ranks = Deployment("qwen3-30b-a3b", gpu=GPU, data_parallel_size=2)
    with quick_fits(forms=["sum"], worth=False):
        costs = calibrate(recorded(), ranks).costs
    assert asdict(costs.for_deployment(ranks).cost) == pytest.approx(asdict(costs.step_cost))


def test_two_gpus_that_were_measured_tell_about_one():
    model, gpu = model_shape(LLAMA), replace(GPU, link=Link(16e9, 24e-6))
    both, alone = (
        replace(cost, attention_read_s=1.3 * cost.attention_read_s, request_s=6e-5)
        for cost in (roofline_cost(Roofline(model, gpu, gpus)) for gpus in (2, 1))
    )
    with quick_fits():
        costs = calibrate(
            recorded(both, trace=made_up(rate=3.0)), Deployment(LLAMA, gpu=gpu, tensor_parallel_size=2)
        ).costs
    done = validate(recorded(alone, trace=made_up(rate=3.0)), costs.for_gpus(gpus=1).cost)
    assert within(done.errors, {"tpot_s mean": 0.05, "e2e_s mean": 0.05})
