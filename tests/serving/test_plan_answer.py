"""The answer of a plan: its first line, its parts, and what would meet a target that no number of instances meets."""

import json
import re
from dataclasses import replace

import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cli import run
from kvtrace.report.plan_tables import tables
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.planning.plan_runs import served
from kvtrace.serving.planning.plan_target import PlannedTier, PlanTarget
from kvtrace.serving.planning.planning import GIB, plan
from kvtrace.serving.planning.sizing import TimeErrors
from kvtrace.serving.routers import PLANNED, ROUTERS
from kvtrace.serving.run_options import TimeSetup
from kvtrace.trace.building import toy
from tests.serving.session_forests import random_forest

A100 = Deployment("llama-3.1-8b", gpu="a100")
ERRORS = TimeErrors({"p90": (-0.206, 0.034)}, "two recordings")
LINES, COLUMNS = 40, 80
PERIOD = re.compile(r"USD(?! (an hour|a day|per million|per session|for a GPU and hour)|/hour|\s+per session)")


@pytest.fixture(scope="module")
def trace():
    """Conversations of four turns in blocks of 512 tokens, ten requests a second."""
    prompts = [" ".join(str(1000 * (i % 80) + block) for block in range(8 * (1 + i // 80))) for i in range(320)]
    return toy(*prompts, block_size=512, gap_ms=100.0)


def simulated(trace, target, answer, count):
    planned = target.on(TimeSetup(deployment=A100)).run(512, router=answer.router)
    return served(trace, planned.changed(instances=count))


def test_the_answer_is_the_number_that_is_sure_with_its_price_and_service(trace):
    target = PlanTarget(ttft_s=2.0, routers=("sticky", "lmetric"))
    result = plan(trace, A100, target, errors=ERRORS)
    answer, error = result.answer, result.instances.model_error
    assert answer.instances == answer.gpus == answer.sure == error.sure_instances and answer.spare == 0
    assert answer.may_be_enough == error.fewest_instances <= answer.enough == result.instances.best.instances
    assert answer.usd_per_hour == pytest.approx(1.8 * answer.instances) == answer.usd_per_day / 24
    point = simulated(trace, target, answer, answer.instances)
    assert answer.ttft == pytest.approx(kvtrace_quantile(point)) and answer.busy == pytest.approx(
        mean(point.utilisation)
    )
    assert answer.sentence.startswith(f"Run {answer.instances} x A100 behind {answer.router} (")
    assert f"p90 TTFT {answer.ttft:.2f} s at {100 * answer.busy:.0f} % busy; " in answer.sentence
    assert answer.sentence.endswith(f"{answer.sure} are sure")
    assert json.loads(json.dumps(result.to_dict()))["answer"] == answer.to_dict() and "an hour" in repr(result)


def kvtrace_quantile(point):
    import numpy as np

    return float(np.quantile(point.ttft_s, 0.9))


def mean(values):
    return sum(values) / len(values)


def test_a_cap_on_busy_instances_holds_and_one_less_exceeds_it(trace):
    target = PlanTarget(ttft_s=5.0, max_busy=0.5, routers=("lmetric",))
    answer = plan(trace, A100, target).answer
    assert answer.busy <= 0.5 and answer.enough > plan(trace, A100, replace(target, max_busy=None)).answer.enough
    assert mean(simulated(trace, target, answer, answer.enough - 1).utilisation) > 0.5


def test_spare_instances_are_beyond_those_that_the_load_needs(trace):
    target = PlanTarget(ttft_s=2.0, routers=("lmetric",))
    without, answer = (plan(trace, A100, replace(target, spare=spare), errors=ERRORS).answer for spare in (0, 2))
    assert answer.instances == without.instances + 2 and answer.sure == without.sure and answer.spare == 2
    assert (answer.ttft_without_spare, answer.busy_without_spare) == (without.ttft, without.busy)
    assert answer.busy < without.busy and answer.usd_per_hour == pytest.approx(without.usd_per_hour + 2 * 1.8)
    assert ", 2 of them spare (" in answer.sentence and answer.sentence.endswith("without the spare")


def test_the_price_of_a_gpu_is_given_or_named_as_assumed(trace):
    target = PlanTarget(ttft_s=2.0, routers=("lmetric",))
    assumed, given = (plan(trace, A100, replace(target, gpu_price=price)) for price in (None, 9.0))
    assert "assumed in November 2026" in assumed.setting.price_source and given.setting.price_source == "as given"
    assert given.answer.usd_per_hour == pytest.approx(5 * assumed.answer.usd_per_hour)
    assert given.answer.usd_per_million_tokens == pytest.approx(5 * assumed.answer.usd_per_million_tokens)
    assert given.setting.usd_per_gpu_hour == 9.0 and given.answer.ttft == assumed.answer.ttft


def test_options_out_of_range_are_refused(trace):
    for wrong in ({"max_busy": 0.0}, {"max_busy": 1.5}, {"spare": -1}, {"spare": 1000}, {"gpu_price": -1.0}):
        with pytest.raises(UsageError):
            plan(trace, A100, PlanTarget(**wrong))


def test_a_target_that_no_number_meets_comes_with_what_would_meet_it(trace):
    target = PlanTarget(ttft_s=0.2, routers=("sticky",))
    result = plan(trace, A100, target)
    answer = result.answer
    assert answer.instances is None and answer.usd_per_hour is None
    assert answer.sentence.startswith("No number of A100 meets a p90 TTFT of 0.2 s: use --ttft ")
    longer, gpus, gpu = answer.remedies
    seconds = float(re.match(r"--ttft ([\d.]+)s", longer)[1])
    assert plan(trace, A100, replace(target, ttft_s=seconds)).answer.instances
    assert plan(trace, A100.with_gpus(int(gpus.split()[1])), target).answer.instances
    assert plan(trace, replace(A100, gpu=gpu.split()[1]), target).answer.instances
    busier = plan(trace, A100, replace(target, ttft_s=9.0, max_busy=0.001)).answer
    assert busier.remedies[0].startswith("--max-busy ") and "at 0.1 % busy: use" in busier.sentence


@pytest.fixture(scope="module")
def file(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "t.jsonl"
    kvtrace.write(trace, path)
    return str(path)


CALLS = {
    "plain": "--ttft 2s",
    "every router": f"--ttft 2s --router {','.join(name for name in ROUTERS if not name.startswith('sglang'))}",
    "spare and busy": f"--ttft 2s --spare 1 --max-busy 60% --router {','.join(PLANNED)}",
    "tiers": "--ttft 2s --tiers dram=64GiB@25GB,ssd=1TB@3GB",
    "closed loop": "--ttft 2s --loop closed --spare 2 --tiers dram=64GiB@25GB",
    "unmet": "--ttft 100ms",
    "several GPUs": "--ttft 2s --gpus 4 --model llama-3-70b",
}


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_comes_first_and_the_page_has_at_most_40_lines(file, capsys, monkeypatch, tmp_path, name):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    if "closed" in name:
        file = str(tmp_path / "sessions.parquet")
        kvtrace.write(random_forest(5, sessions=12), file)
    words = ["plan", file, "--model", "llama-3.1-8b", "--gpu", "a100", *CALLS[name].split(), "-q"]
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("No number of A100" if name == "unmet" else "Run ")
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS and "Not shown" not in "\n".join(lines)
    assert lines[-1].startswith("-v prints all tables")
    monkeypatch.delenv("COLUMNS")
    assert run([*words, "-v"]) == 0
    verbose = capsys.readouterr().out
    assert verbose.splitlines()[0].split()[:2] == lines[0].split()[:2] and "Hits by memory" in verbose
    assert [line for line in verbose.splitlines() if PERIOD.search(line) and "assumes:" not in line] == []


def test_the_report_page_has_the_answer_and_its_reasons(file, tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "p.html"
    words = ["report", file, "-o", str(page), "--model", "llama-3.1-8b", "--gpu", "a100", "--ttft", "2s", "-q"]
    assert run([*words, "--spare", "1", "--gpu-price", "2", "--max-busy", "80%"]) == 0
    text = page.read_text(encoding="utf-8")
    assert re.search(r"<p class=\"story\">Run \d+ x A100 behind \S+, 1 of them spare \(\d+ USD an hour\)", text)
    assert "<li>price: 2 USD for a GPU and hour, as given.</li>" in text


def test_tables_of_a_notebook_or_page_are_all(trace):
    result = plan(
        trace, A100, PlanTarget(ttft_s=2.0, routers=("sticky",), tiers=(PlannedTier("dram", 64 * GIB, 25e9),))
    )
    assert (
        len(tables(result)) > len(tables(result, verbose=False))
        and tables(result)[0].title == f"{result.answer.sentence}."
    )


def test_an_overloaded_number_of_instances_does_not_meet_a_target(trace):
    """Half of the requests of an overload come early enough for any target of the median."""
    result = plan(trace, A100, PlanTarget(ttft_s=1000.0, quantile=0.01, routers=("sticky",)))
    over = [point for row in result.instances.routers for point in row.curve if point.overload]
    assert over and not any(point.meets for point in over) and all(point.ttft_s < 1000 for point in over)
    assert result.answer.enough > max(point.instances for point in over)


def test_a_number_that_is_sure_but_more_than_twice_as_large_is_named_and_not_chosen(trace):
    target = PlanTarget(ttft_s=2.0, routers=("sticky",))
    errors = TimeErrors({"p90": (0.8,)}, "a recording")
    answer = plan(trace, A100, target, errors=errors).answer
    assert answer.sure is None or answer.sure > 2 * answer.enough
    assert answer.instances == answer.enough


def test_a_trace_with_an_empty_prompt_has_a_plan():
    trace = toy("", "0 1", "0 1", block_size=512, gap_ms=1000.0)
    assert plan(trace, A100, PlanTarget(routers=("sticky",))).answer.instances == 1
