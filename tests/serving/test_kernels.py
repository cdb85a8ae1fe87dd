"""Costs fitted to kernel tables, with the package's recorded answers; with the package itself where it is installed."""

import json
import logging
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cli import run
from kvtrace.serving import Deployment, calibrate_from_kernels, read_costs
from kvtrace.serving.calibration import kernels
from kvtrace.serving.calibration.costs import HOST_TERMS, OperatingRange, start_terms
from kvtrace.serving.hardware.roofline import roofline_of
from kvtrace.serving.run_options import TimeSetup
from tests.docs import ROOT

ANSWERS = json.loads((ROOT / "tests/data/kernel_steps.json").read_text())["answers"]
DEPLOYMENTS = [Deployment.from_dict(each["deployment"]) for each in ANSWERS]
LLAMA, GPT_OSS = DEPLOYMENTS
LINE = ["calibrate", "--from", "aiconfigurator", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "4096",
        "--scheduler", "max_num_seqs=64,max_num_batched_tokens=2048"]  # fmt: skip
needs_package = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs the extra silicon")


class Recorded:
    """An estimator that gives the recorded answers, and no others."""

    def __init__(self, calls):
        self.calls = calls

    def __getattr__(self, name):
        return lambda *numbers: self.calls[name][" ".join(map(str, numbers))]


def recorded_grid(deployment):
    answer = ANSWERS[DEPLOYMENTS.index(deployment)]
    steps, seen = kernels.ask(Recorded(answer["calls"]), deployment)
    return kernels.StepGrid.of(steps, seen, answer["source"])


@pytest.fixture
def recorded(monkeypatch):
    """The recorded answers in place of the package."""
    monkeypatch.setattr(kernels, "grid_of", recorded_grid)


def test_the_grid_goes_as_far_as_the_deployment():
    grid = recorded_grid(LLAMA)
    assert grid.seen == OperatingRange(step_tokens=2048, batch=64, context=64 * 4096, request_tokens=4096)
    decode = grid.kind == "decode"
    assert (grid.tokens[decode] == grid.requests[decode]).all() and not grid.pairs[decode].any()
    assert grid.tokens.max() == 2048 and grid.requests.max() == 64
    # the first prompt after cached tokens: 16 of them attend to 1,024 and to themselves
    after = np.flatnonzero((grid.kind == "prompts") & (grid.read == 1024))[0]
    assert (grid.tokens[after], grid.pairs[after]) == (16, (1024 + 16) ** 2 - 1024**2)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=str)
def test_fitted_costs_are_near_the_tables(recorded, deployment):
    fit = calibrate_from_kernels(deployment)
    assert {row.kind: row.mean < 0.1 for row in fit.errors} == dict.fromkeys(kernels.KINDS, True)
    assert fit.forms[fit.costs.form] == min(fit.forms.values())
    # the host's time is beside what the tables say
    grid, host_s = recorded_grid(deployment), kernels.HOST_S[deployment.engine]
    bare = fit.costs.terms | {"overhead_s": fit.costs.terms["overhead_s"] - host_s}
    errors = np.abs(grid.seconds_of(bare) / grid.seconds - 1)
    for row in fit.errors:
        assert errors[grid.kind == row.kind].mean() == pytest.approx(row.mean)
    start = start_terms(roofline_of(deployment))  # launches, and the way to the engine
    assert {name: fit.costs.terms[name] for name in HOST_TERMS} == {name: start[name] for name in HOST_TERMS}
    assert f"{1000 * host_s:g} ms of the host" in fit.costs.kernels and grid.source in fit.costs.basis


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=str)
def test_a_file_gives_the_same_cost_of_a_step(recorded, deployment, tmp_path):
    costs = calibrate_from_kernels(deployment).costs
    costs.save(tmp_path / "costs.json")
    read = read_costs(tmp_path / "costs.json")
    assert read == costs
    assert replace(read.measured, gpu=deployment.gpu) == deployment
    setup = TimeSetup(costs=read, deployment=read.measured).resolved([deployment.engine])
    assert asdict(setup.cost) == pytest.approx(asdict(costs.step_cost), rel=1e-9)


def test_terms_that_make_the_steps_come_back():
    grid, line = recorded_grid(GPT_OSS), roofline_of(GPT_OSS)
    terms = kernels._fit_terms("sum-request", line, grid)
    made = replace(grid, seconds=grid.seconds_of(terms))
    again = made.seconds_of(kernels._fit_terms("sum-request", line, made))
    assert np.abs(again / made.seconds - 1).max() < 0.02


def test_the_command_writes_costs_that_a_simulation_takes(recorded, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([*LINE, "-o", "costs.json"]) == 0
    captured = capsys.readouterr()
    for words in ("tables of vllm 0.24.0 on h100_sxm", "mean error", "of the roofline", "Operating range", "262,144"):
        assert words in captured.out
    assert "nothing was measured" in captured.err and "wrote" in captured.err
    assert read_costs("costs.json").limits == {"step_tokens": 2048, "requests": 64}
    assert run([*LINE, "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["costs"] == json.loads((tmp_path / "costs.json").read_text())
    log = str(ROOT / "examples/raw_log.jsonl")
    assert run(["anonymize", log, "-o", "trace.jsonl", "--block-size", "16", "--quiet"]) == 0
    limits = ["--max-num-seqs", "64", "--max-num-batched-tokens", "2048"]
    for command in ("simulate", "plan"):
        outputs = []
        for costs in (["--costs", "costs.json"], ["--kernels", "aiconfigurator", *LINE[3:9], *limits]):
            assert run([command, "trace.jsonl", *costs, *(["-v", "--quiet"] if command == "plan" else [])]) == 0
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1] and "the kernels of llama-3.1-8b on 1 x h100" in " ".join(outputs[0].split())


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        (Deployment("llama-3.1-8b", gpu="rtx-4090"), "no tables of rtx-4090. It has a100, b200,"),
        (Deployment("llama-3.1-8b", "dynamo", gpu="h100"), "tables of vllm and sglang, not of dynamo"),
        (Deployment("llama-3.1-8b", gpu="h100", pipeline_parallel_size=2), "tensor, data and expert parallelism alone"),
        (Deployment("llama-3.1-8b"), "Give the GPU of llama-3.1-8b"),
    ],
)
def test_what_no_table_can_have_is_one_sentence(deployment, words):
    with pytest.raises(UsageError, match=words):
        calibrate_from_kernels(deployment)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["calibrate", "--model", "llama-3.1-8b", "--gpu", "h100"], "Give LOG, or --from aiconfigurator."),
        (["calibrate", "log", *LINE[1:]], "Give LOG or --from, not both."),
        ([*LINE, "--holdout", "0.3"], "--trace, --format, --holdout and --seed need LOG."),
        (["simulate", "t", "--kernels", "aiconfigurator", "--model", "llama-3.1-8b"], "Give the GPU of llama-3.1-8b"),
    ],
)
def test_a_recording_and_tables_exclude_each_other(line, words, capsys):
    assert run(line) == 2 and words in capsys.readouterr().err


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    assert run(LINE) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install 'kvtrace[silicon]'" in error


def test_nothing_else_knows_of_the_package():
    program = "import sys, kvtrace; kvtrace.serving.calibrate; assert not [n for n in sys.modules if 'aiconf' in n]"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("error", "words"), [(KeyError("chunk_size"), "has no data for llama"), (UsageError("No room"), "No room")]
)
def test_a_fault_of_the_package_is_no_fault_of_ours(monkeypatch, error, words):
    def fails(*_):
        raise error

    monkeypatch.setattr(kernels, "_tries", lambda *_: iter([("h100_sxm", {})]))
    monkeypatch.setattr(kernels, "_estimator", fails)
    with pytest.raises(UsageError, match=words):
        calibrate_from_kernels(LLAMA)


def test_reasons_have_neither_paths_nor_lines():
    error = ValueError("perf database error: no data\nfor Key { a } at /opt/lib/data/h100")
    assert kernels._reason(error) == "ValueError: no data for Key { a }"


# -- with the package ----------------------------------------------------------------------------------------------


@needs_package
@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=str)
def test_the_package_gives_the_recorded_answers(deployment):
    grid, recorded = kernels.grid_of(deployment), recorded_grid(deployment)
    if grid.source == recorded.source:
        assert grid.seconds == pytest.approx(recorded.seconds, rel=1e-4)
    assert logging.getLogger("aiconfigurator_core").level == logging.NOTSET


@needs_package
@pytest.mark.parametrize(
    ("model", "words"), [("gemma-3-27b", "models of the type gemma3_text"), ("step-3.7-flash", "has no data for step")]
)
def test_a_model_without_tables_is_one_sentence(model, words):
    with pytest.raises(UsageError, match=words):
        calibrate_from_kernels(Deployment(model, gpu="h200", tensor_parallel_size=8))
