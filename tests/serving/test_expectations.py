"""What to expect of times without a recording: the nearest measured deployments, their errors, a plan's interval."""

import json
from dataclasses import replace

import numpy as np
import pytest

import kvtrace
from benchmarks import silicon
from kvtrace.cli import run
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.expectations import (
    FILE,
    FITTED,
    LOADS,
    ErrorSpread,
    MeasuredErrors,
    expected_error,
    load_class,
    measured,
    model_kind,
    rows_of,
    text_of,
)
from kvtrace.serving.hardware.gpus import GPUS, gpu
from kvtrace.serving.models import model_shape
from kvtrace.serving.planning.plan_runs import InstanceRuns, with_steps
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.planning.planning import plan
from kvtrace.serving.run_options import TimeSetup
from kvtrace.trace.building import toy
from tools.docs_site import measured_errors

DEPLOYMENT = Deployment("qwen3-32b", gpu="h100", tensor_parallel_size=2)
ROW = MeasuredErrors(
    "h100", "qwen3-32b", "dense", "vllm", "bf16", 2, 1, False, "1 to 8", FITTED, (-0.2, -0.1, 0.0), (-0.5,)
)


def expected(*rows, requests_at_once=None, **changes):
    return expected_error(replace(DEPLOYMENT, **changes), requests_at_once, rows)


def test_the_deployment_itself_is_nearest_whatever_its_checkpoint_is_called():
    other = ROW._replace(precision="fp8", tpot=(0.5,))
    assert expected(other, ROW).level == "deployment"
    assert expected(ROW, model="Qwen/Qwen3-32B").tpot_error == ErrorSpread.of(ROW.tpot)
    assert expected(other, ROW, model="Qwen/Qwen3-32B-FP8").tpot_error == ErrorSpread.of((0.5,))
    assert expected(ROW).text == (
        "Times without a recording: on 3 measurements of qwen3-32b in vLLM on 2 x H100, TPOT was 10 % off on average "
        "(median -10 %), TTFT 50 % too short."
    )


@pytest.mark.parametrize(("changes", "level", "words"), [
    ({"model": "llama-3.1-8b"}, "kind, engine and GPUs", "dense models in vLLM on 2 x H100 (qwen3-32b)"),
    ({"tensor_parallel_size": 1, "data_parallel_size": 2}, "kind, engine and GPUs", "dense models in vLLM on 2 x H100"),
    ({"weights_dtype": "fp8"}, "kind, engine and GPUs", "dense models in vLLM"),
    ({"engine": "sglang"}, "kind", "dense models on H100 (qwen3-32b)"),
    ({"tensor_parallel_size": 4}, "kind", "dense models on H100"),
    ({"pipeline_parallel_size": 2, "tensor_parallel_size": 1}, "kind", "dense models on H100"),
    ({"speculative": Drafter("eagle3")}, "kind", "dense models on H100"),
    ({"model": "gpt-oss-120b"}, "GPU", "other kinds of model on H100 (qwen3-32b)"),
])  # fmt: skip
def test_other_deployments_are_near_by_what_they_share(changes, level, words):
    error = expected(ROW, **changes)
    assert (error.level, error.tpot_error) == (level, ErrorSpread.of(ROW.tpot)) and error.measured.startswith(words)
    assert error.text.endswith("This deployment itself was not measured.")


def test_a_nearer_level_leaves_the_others_out():
    rows = [
        ROW,
        ROW._replace(tp=4, tpot=(0.4,)),
        ROW._replace(model="gpt-oss-120b", kind="experts, windows", tpot=(0.9,)),
    ]
    assert expected(*rows).tpot_error.measurements == 3
    assert expected(*rows, tensor_parallel_size=8).tpot_error.measurements == 4
    assert expected(*rows, model="deepseek-v3").tpot_error.measurements == 5


@pytest.mark.parametrize("card", ["a100", "h200", replace(gpu("h100"), flops=1e15), replace(gpu("h100"), name="mine")])
def test_another_gpu_is_not_measured(card):
    error = expected(ROW, gpu=card)
    assert (error.level, error.measured, error.tpot_error, error.ttft_error) == ("not measured", "", None, None)
    assert error.text.startswith("Times without a recording: not measured on ") and "Calibrate" in error.text


def test_a_price_does_not_make_another_gpu():
    assert expected(ROW, gpu=replace(gpu("h100"), price_per_hour=1.0)).level == "deployment"


def test_the_load_counts_where_ten_were_measured():
    many = ROW._replace(requests_at_once="9 to 32", tpot=(0.1,) * 10)
    error = expected(ROW, many, requests_at_once=20)
    assert (error.requests_at_once, error.tpot_error.mean_absolute) == ("9 to 32", 0.1)
    assert " with 9 to 32 requests at once, TPOT" in error.text
    few = expected(ROW, many, requests_at_once=2)
    assert few.requests_at_once is None and few.tpot_error.measurements == 13 and "at once" not in few.text
    none = expected(ROW, many, requests_at_once=500)
    assert none.tpot_error.measurements == 13 and ", none with more than 128 requests at once, TPOT" in none.text


def test_what_was_held_out_is_counted():
    assert expected(ROW, ROW._replace(source="recording", tpot=(0.1,))).held_out == 1


def test_an_interval_needs_five_measurements():
    assert ErrorSpread.of(()) is None and ErrorSpread.of((0.1,) * 4).factors is None
    spread = ErrorSpread.of(np.linspace(-0.5, 0.5, 101).tolist())
    assert (spread.low, spread.high, spread.median, spread.mean_absolute) == (-0.45, 0.45, 0.0, 0.2525)
    assert spread.factors == pytest.approx([1 / 1.45, 1 / 0.55])
    assert ErrorSpread.of((-0.004, -0.004)).in_words() == "0 % (median 0 %)"


# -- the file that the benchmark writes --------------------------------------------------------------------------------


def test_the_file_is_as_the_benchmark_writes_it():
    rows = measured()
    assert text_of(rows) == FILE.read_text(encoding="utf-8") and len({row[:-2] for row in rows}) == len(rows)
    assert {row.source for row in rows} <= {*silicon.SIDES, silicon.RECORDING}
    for row in rows:
        assert row.gpu in GPUS and row.requests_at_once in {name for _, name in LOADS}
        assert [*row.tpot] == sorted(row.tpot) and [*row.ttft] == sorted(row.ttft) and len(row.ttft) <= len(row.tpot)
        assert row.kind == model_kind(model_shape(row.model)) and min(row.tpot) > -1


def test_each_row_of_the_file_is_the_deployment_of_its_checkpoint():
    for row in measured():
        names = silicon.MODELS.values()
        checkpoints = [each["checkpoints"].get(row.precision) for each in names] if row.source != "recording" else []
        model = next((name for name in checkpoints if name and _named(name) == row.model), row.model)
        deployment = Deployment(
            model, row.engine, gpu=row.gpu, tensor_parallel_size=row.tp, data_parallel_size=row.dp,
            enable_expert_parallel=row.ep,
        )  # fmt: skip
        error = expected_error(deployment)
        assert error.level == "deployment" and row.model in error.measured, row[:9]


def _named(checkpoint):
    return silicon.catalog_entry(silicon.model_name(checkpoint)).name


def test_the_benchmark_writes_errors_by_deployment_and_load(tmp_path):
    rows = [silicon.Row(
        str(n), "gpt-oss-120b", "h100", "vllm", "0.11.0", "fp4", 2, 1, False, 1024, 1024, concurrency, 10.0, 100.0, "",
        "InferenceX", {},
    ) for n, concurrency in enumerate((4, 8, 16))]  # fmt: skip
    compared = [silicon.Compared(row, -0.1234 * (n + 1), None if n else 0.5) for n, row in enumerate(rows)]
    path = tmp_path / "measured.json"
    path.write_text(text_of([ROW, ROW._replace(source="recording")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silicon.errors_of_recordings, "__defaults__", (tmp_path / "no recordings",))
        silicon.write_errors(path, compared)
    first, second, recorded = rows_of(path.read_text())
    assert first[:9] == ("h100", "gpt-oss-120b", "experts, windows", "vllm", "fp4", 2, 1, False, "1 to 8")
    assert (first.tpot, first.ttft, second.tpot) == ((-0.247, -0.123), (0.5,), (-0.37,))
    assert first.source == rows[0].side and recorded == ROW._replace(source="recording")


def test_the_recordings_have_the_errors_of_the_file(shared):
    if not (shared / "data/measured").is_dir():
        pytest.skip("no recordings in the shared data")
    recorded = {row for row in measured() if row.source == silicon.RECORDING}
    assert {*silicon.errors_of_recordings(shared / "data/measured")} == recorded


def test_kinds_of_models_are_those_of_the_benchmark():
    for model in silicon.MODELS.values():
        assert {model_kind(model_shape(name)) for name in model["checkpoints"].values()} == {model["kind"]}


def test_the_page_of_models_has_the_errors():
    text = measured_errors.PAGE.read_text(encoding="utf-8")
    assert measured_errors.with_tables(text) == text, "run `make docs`"
    assert all(f"`{name}`" in "\n".join(measured_errors.tables(measured())) for name in GPUS)


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Twenty requests of eight blocks, of which two are shared."""
    name = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    lines = [f"0 1 {' '.join(str(10 * n + block) for block in range(10, 16))}" for n in range(20)]
    kvtrace.write(toy(*lines, block_size=512, gap_ms=500.0), str(name))
    return str(name)


TIMED = ["--model", "llama-3.1-8b", "--gpu", "h100", "--quiet"]


@pytest.mark.parametrize("command", ["simulate", "explain", "plan"])
def test_each_result_in_time_says_what_to_expect(path, capsys, command):
    def printed(*options):
        assert run([command, path, *TIMED, *options]) == 0
        return capsys.readouterr()

    text = " ".join(printed().out.split())
    assert text.count("Times without a recording: on ") == 1 and "TPOT was" in text
    found = json.loads(printed("--json").out)
    part = {"simulate": lambda: found["results"][0], "explain": lambda: found["simulation"], "plan": lambda: found}
    error = part[command]()["expected_error"]
    assert error["text"] in text and error["level"] == "kind" and error["tpot_error"]["measurements"] > 5
    assert error["text"] in " ".join(printed("--csv").err.split())


def test_results_in_python_have_it_too(path):
    options = {"model": "llama-3.1-8b", "gpu": "t4", "gpus": 4}
    (simulated,) = kvtrace.simulate(path, **options).runs
    assert simulated.expected_error.level == "not measured" and 0.9 < simulated.requests_at_once < 20
    assert kvtrace.explain(path, **options).simulation.expected_error == simulated.expected_error
    assert "expected_error" not in kvtrace.simulate(path, capacity="50%").to_dict()


def test_costs_of_a_recording_need_no_expectation(path, capsys, tmp_path):
    costs = str(tmp_path / "costs.json")
    kvtrace.calibrate("examples/recording", model="llama-3.1-8b", gpu="h100", output=costs)
    for command in ("simulate", "plan"):
        assert run([command, path, "--costs", costs, "--extrapolate", "--quiet"]) == 0
        assert "without a recording" not in capsys.readouterr().out
    assert kvtrace.validate("examples/recording", costs=costs).expected_error is None
    unfitted = kvtrace.validate("examples/recording", model="llama-3.1-8b", gpu="h100")
    assert unfitted.to_dict()["expected_error"]["level"] == "kind"


# -- the plan's interval -----------------------------------------------------------------------------------------------


@pytest.fixture
def load():
    """Prompts of 10 blocks, sixteen a second: too many for one instance."""
    lines = [" ".join(str(100 * n + block) for block in range(10)) for n in range(160)]
    return toy(*lines, block_size=512, gap_ms=60.0)


@pytest.fixture
def errors(monkeypatch):
    """A function that states what was measured on an H100."""

    def state(tpot, ttft):
        row = MeasuredErrors("h100", "llama-3.1-8b", "dense", "vllm", "bf16", 1, 1, False, "1 to 8", FITTED, tpot, ttft)
        monkeypatch.setattr("kvtrace.serving.expectations.measured", lambda: (row,))

    return state


SMALL = Deployment("llama-3.1-8b", gpu="h100")
TARGET = PlanTarget(ttft_s=1.0, routers=("round-robin",))


def simulations(load):
    return InstanceRuns(load, TARGET.on(TimeSetup(deployment=SMALL)), "round-robin")


def test_the_numbers_of_a_plan_are_those_with_longer_and_shorter_steps(load, errors):
    errors((-0.4,) * 10, ())
    result = plan(load, SMALL, TARGET)
    error, runs = result.instances.model_error, simulations(load)
    assert error.step_factors == pytest.approx([1 / 0.6] * 2) and error.ttft_factors is None
    assert error.sure_instances == error.fewest_instances == with_steps(runs, 1 / 0.6).fewest()
    assert result.answer.sure > result.answer.enough == result.instances.best.instances
    slower = with_steps(runs, 1 / 0.6).at(result.answer.enough)
    assert error.ttft_high == slower.ttft_s > result.instances.best.ttft_s
    assert (error.basis, error.statistic) == ("llama-3.1-8b in vLLM on 1 x H100", "TPOT")


def test_a_number_that_is_too_few_by_every_measurement_is_not_the_answer(load, errors):
    errors((*(-0.85,) * 5, *(-0.4,) * 5), ())
    answer = plan(load, SMALL, TARGET).answer
    assert answer.enough < answer.may_be_enough and answer.sure > 2 * answer.may_be_enough
    assert answer.instances == answer.may_be_enough
    assert answer.sentence.endswith(f"{answer.may_be_enough} may be enough, {answer.sure} are sure")
    errors((-0.9,) * 10, (-0.99,) * 10)
    answer = plan(load, SMALL, TARGET).answer
    assert (answer.may_be_enough, answer.sure, answer.instances) == (None, None, answer.enough)
    assert answer.sentence.endswith("by the measured errors no number is enough")


def test_steps_that_are_right_leave_the_error_of_the_time_to_first_token(load, errors):
    errors((0.0,) * 10, (-0.5,) * 10)
    result = plan(load, SMALL, TARGET)
    error, runs = result.instances.model_error, simulations(load)
    assert (error.step_factors, error.ttft_factors) == ([1.0, 1.0], [2.0, 2.0])
    assert error.sure_instances == runs.fewest_within(TARGET.ttft_s / 2) >= result.answer.enough
    assert error.ttft_high == pytest.approx(2 * result.instances.best.ttft_s)


@pytest.mark.parametrize("tpot", [(), (0.1,) * 4])
def test_without_measurements_no_interval_is_made_up(load, errors, tpot):
    errors(tpot, ())
    deployment = SMALL if tpot else replace(SMALL, gpu="h200")
    result = plan(load, deployment, TARGET)
    assert result.instances.model_error is None
    assert result.expected_error.level == ("deployment" if tpot else "not measured")
    assert (result.answer.sure, result.answer.may_be_enough) == (None, None)
    assert result.answer.instances == result.answer.enough == result.instances.best.instances
    assert result.answer.sentence.endswith("; too few measurements to say how sure that is")


def test_longer_steps_take_that_much_longer():
    time = TimeSetup(deployment=Deployment("gpt-oss-120b", gpu="h100")).resolved(["vllm"])
    plain, scaled = time.cost, time.with_steps(2.0).cost
    seconds = [name for name in vars(plain) if name.endswith("_s")]
    assert {getattr(scaled, name) / getattr(plain, name) for name in seconds if getattr(plain, name)} == {2.0}
    assert (scaled.expert_share, scaled.window_tokens) == (plain.expert_share, plain.window_tokens)


def test_classes_of_loads_have_no_gap():
    assert [load_class(most) for most, _ in LOADS] == [name for _, name in LOADS] and load_class(32.5) == "33 to 128"
