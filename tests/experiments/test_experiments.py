"""The experiments of Lin's report that need no model: prompts, hits, tables, figures; see also test_engine_live.py."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from experiments import figures, tables
from experiments.eviction import eviction
from experiments.fit import Fit
from experiments.hit_rate import RATES, Dice, hit_rate, run
from experiments.identical import identical_prompt
from experiments.measure import Pairs
from experiments.plain_blocks import PlainBlocks
from experiments.prompts import Mix, Request, repeated
from experiments.serving import serve
from experiments.settings import Serving
from experiments.workloads import WORKLOADS
from kvtrace._base.errors import UsageError
from kvtrace.analysis.distribution import Distribution

ROOT = Path(__file__).parents[2]
SHORT = Mix(requests=200, output_length=(4, 20))


def requests_of(*prompts, output_length=2):
    return [Request(np.array(prompt, dtype=np.int32), output_length, 0) for prompt in prompts]


# ---- prompts


def test_at_p_1_all_prompts_are_of_the_pool_and_at_p_0_none_is():
    for p, distinct in ((1.0, 10), (0.0, 500)):
        drawn = Mix(p=p, requests=500).draw(np.random.default_rng(0))
        assert len({request.prompt.tobytes() for request in drawn}) == distinct


def test_a_greater_p_replaces_random_prompts_and_leaves_the_rest():
    few, many = (Mix(p=p, requests=300).draw(np.random.default_rng(3)) for p in (0.2, 0.7))
    same = [a.prompt.tolist() == b.prompt.tolist() for a, b in zip(few, many, strict=True)]
    assert 0.4 < np.mean(same) < 0.6  # all but those whose coin fell between 0.2 and 0.7
    assert [a.output_length for a in few] == [b.output_length for b in many]


def test_pools_take_turns():
    drawn = Mix(p=1.0, requests=100, frequent=2, pools=4).draw(np.random.default_rng(0))
    quarters = [{request.prompt.tobytes() for request in drawn[at : at + 25]} for at in range(0, 100, 25)]
    assert [len(quarter) for quarter in quarters] == [2, 2, 2, 2] and len(set.union(*quarters)) == 8


def test_lengths_reach_both_ends():
    drawn = Mix(p=1.0, requests=400, frequent=400, frequent_length=(3, 5), output_length=(7, 8)).draw(
        np.random.default_rng(0)
    )
    assert {len(request.prompt) for request in drawn} == {3, 4, 5}
    assert {request.output_length for request in drawn} == {7, 8}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_as_many_requests_as_asked_and_none_longer_than_its_row_says(name):
    row = WORKLOADS[name]
    for count in (1, 7, 60):
        made = row.make(np.random.default_rng(count), count, 500)
        assert len(made) == count
        assert max(len(request.prompt) + request.output_length for request in made) <= row.longest
        assert all(request.prompt.dtype == np.int32 and request.prompt.min() >= 0 for request in made)
        assert max(request.prompt.max() for request in made) < 500


def test_a_conversation_s_prompt_begins_with_the_one_before_it():
    made = WORKLOADS["conversation"].make(np.random.default_rng(0), 12, 500)  # two talks of six turns
    for turn in range(2, 12):
        before = made[turn - 2].prompt
        assert made[turn].prompt[: len(before)].tolist() == before.tolist()


# ---- serving


def test_a_batch_is_never_exceeded_and_every_request_is_answered_in_full():
    class Watching(Dice):
        def decode(self, live):
            assert len(live) <= 3
            return super().decode(live)

    rng = np.random.default_rng(1)
    requests = Mix(requests=20, output_length=(1, 5)).draw(rng)
    cache = Serving(batch=3).cache(20)
    served = serve(requests, cache, Watching(rng), batch=3)
    assert [len(one.output) for one in served.requests] == [request.output_length for request in requests]
    assert [one.row for one in served.requests] == list(range(20)) and sum(served.admissions) == 20
    assert cache.stats()["pinned"] == 0
    # the last token of an output is never fed back, so it is in no block
    assert cache.stats()["appended"] == sum(request.output_length - 1 for request in requests)


def test_requests_are_admitted_as_places_become_free():
    # Batch 2, outputs of 1, 3, 1, 1 tokens: one token comes of the prompt, one of each step's end.
    #   step 1 admits 0 and 1; 0 ends with its first token, 1 has two
    #   step 2 admits 2, which ends with its first token; 1 ends with its third;   step 3 admits 3
    requests = [
        replace(one, output_length=n) for one, n in zip(requests_of([1], [2], [3], [4]), (1, 3, 1, 1), strict=True)
    ]
    served = serve(requests, Serving(batch=2).cache(10), Dice(np.random.default_rng(0)), batch=2)
    assert served.admissions == [2, 1, 1]


def test_who_finds_no_blocks_waits_for_who_holds_them():
    #  two blocks of 4 in all; each prompt needs both
    served = serve(
        requests_of([1] * 8, [2] * 8, output_length=1), PlainBlocks(2, 4), Dice(np.random.default_rng(0)), batch=2
    )
    assert served.admissions == [1, 1]


def test_a_prompt_that_no_empty_cache_holds_is_refused():
    with pytest.raises(UsageError, match="a prompt of 9 tokens does not fit"):
        serve(requests_of([1] * 9), PlainBlocks(2, 4), Dice(np.random.default_rng(0)), batch=2)


def test_hits_are_those_of_the_initial_prompt():
    #  0 1 2 3 | 4       then the same again: its full block hits, its partial one has moved on with the output
    requests = requests_of([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], output_length=3)
    hits = serve(requests, Serving(batch=1).cache(8), Dice(np.random.default_rng(0)), batch=1).hits(4)
    assert (hits.hit_blocks, hits.blocks, hits.hit_tokens, hits.tokens, hits.request_hits) == (1, 4, 4, 10, 0.5)


def test_plain_blocks_are_handed_out_once_and_never_hit():
    cache = PlainBlocks(4, 2)
    one, two = cache.allocate([1, 2, 3]), cache.allocate([1, 2, 3])
    assert not {*one.blocks} & {*two.blocks} and one.hit_tokens == two.hit_tokens == 0
    cache.append(one, 4)
    assert len(one.blocks) == 2
    cache.free(one)
    cache.append(two, 4)
    cache.append(two, 5)
    assert len({*two.blocks}) == 3


# ---- hit rate


def test_hit_rate_against_probability_is_nearly_a_line():
    result = hit_rate(seeds=2)
    for name in RATES:
        fit = result.fit(name)
        assert fit.r2 >= 0.98 and fit.slope > 0.5
    assert [point.p for point in result.points] == [step / 10 for step in range(1, 11)]


def test_it_is_nearly_a_line_in_blocks_of_16_too_where_prompts_fill_them():
    result = hit_rate(
        mix=replace(SHORT, frequent_length=(48, 48), random_length=48), serving=Serving(block_size=16), seeds=2
    )
    assert result.fit().r2 >= 0.98


def test_prompts_that_are_all_different_never_hit():
    assert hit_rate([0.0], mix=SHORT, seeds=1).points[0].runs[0].hit_blocks == 0


def test_frequent_prompts_one_at_a_time_hit_their_full_blocks_from_the_second_time_on():
    # 15 tokens are three full blocks of 4 and a partial one, which never hits: its hash moves on with the output
    result = hit_rate([1.0], mix=SHORT, serving=Serving(batch=1), seeds=3)
    for hits in result.points[0].runs:
        assert (hits.hit_blocks, hits.blocks) == (3 * (200 - 10), 4 * 200)


def test_hashing_all_the_prefix_or_chaining_gives_the_same_hits():
    one, other = (hit_rate([0.5], mix=SHORT, serving=Serving(hashing=h), seeds=1) for h in ("hierarchical", "direct"))
    assert one.points == other.points


def test_the_same_seed_gives_the_same_figures():
    assert hit_rate([0.5], mix=SHORT, seeds=2) == hit_rate([0.5], mix=SHORT, seeds=2)
    assert hit_rate([0.5], mix=SHORT, seeds=1) != hit_rate([0.5], mix=SHORT, seeds=1, seed=9)


def test_seeds_are_numbered_from_the_first():
    two = hit_rate([0.5], mix=SHORT, seeds=2, seed=4).points[0].runs
    assert two == tuple(hit_rate([0.5], mix=SHORT, seeds=1, seed=s).points[0].runs[0] for s in (4, 5))


def test_progress_is_reported_from_the_start_to_the_end():
    states = []
    hit_rate([0.1, 0.2], mix=replace(SHORT, requests=5), seeds=1, progress=states.append)
    assert [(step.done, step.total) for step in states] == [(0, 2), (1, 2), (2, 2)]


# ---- the identical prompt


@given(seed=st.integers(0, 1000), batch=st.integers(1, 9), block_size=st.integers(7, 40))
@settings(max_examples=25, deadline=None)
def test_a_prompt_that_fills_no_block_hits_only_among_those_admitted_together(seed, batch, block_size):
    rng = np.random.default_rng(seed)
    serving = Serving(block_size=block_size, batch=batch)
    served = run(repeated(6, 40, (2, 9), rng), serving, 15, rng)
    assert served.hits(block_size).hit_blocks == sum(max(0, admitted - 1) for admitted in served.admissions)


@pytest.mark.parametrize("block_size", [1, 2, 3, 6])
def test_a_prompt_that_fills_its_blocks_always_hits_them(block_size):
    case = identical_prompt(requests=30, block_sizes=[block_size], batches=[1], seeds=1).cases[0]
    assert case.runs[0].hit_tokens == 6 * 29


def test_the_report_s_identical_prompt_hits_rarely_in_blocks_larger_than_it():
    result = identical_prompt(requests=300, block_sizes=[16], batches=[1, 4, 16], seeds=2)
    alone, few, some = (case.rate("block_hit_rate").mean for case in result.cases)
    assert alone == 0 < few < some < 0.3
    for case in result.cases:
        assert [hits.hit_blocks for hits in case.runs] == list(case.admitted_after)


def test_a_prompt_freed_before_it_grew_is_found_again():
    # an output of one token is never fed back, so that the partial block keeps the prompt's hash
    requests = repeated(6, 5, (1, 1), np.random.default_rng(0))
    served = run(requests, Serving(block_size=16, batch=1), 7, np.random.default_rng(0))
    assert served.hits(16).hit_blocks == 4


# ---- eviction


def test_with_room_for_all_every_policy_hits_alike():
    result = eviction(["lru", "lfu", "fifo"], [100_000], pools=[1], mix=SHORT, seeds=1)
    assert len({case.runs for case in result.cases}) == 1


def test_frequency_keeps_what_recency_loses_where_k_is_small():
    result = eviction(["lru", "lfu"], [32], pools=[1], mix=replace(SHORT, requests=400), seeds=2)
    lru, lfu = (case.rate("block_hit_rate").min for case in result.cases)
    assert lfu > 1.2 * lru


def test_recency_wins_where_what_is_frequent_changes_often():
    result = eviction(["lru", "lfu"], [256], pools=[20], seeds=2)
    lru, lfu = (case.rate("block_hit_rate").mean for case in result.cases)
    assert lru > lfu


# ---- figures over runs


def test_a_line_through_points_of_a_line_explains_them_all():
    assert Fit.of([1, 2, 4], [5, 7, 11]) == Fit(2.0, 3.0, 1.0)
    assert Fit.of([1, 2], [3, 3]).r2 == 1.0  # nothing to explain
    assert Fit.of([0, 1, 2], [0, 1, 0]).r2 == pytest.approx(0.0)


def test_caching_pays_where_three_repeats_of_four_gain():
    class Gains(Pairs):
        @property
        def gain(self):
            return Distribution.of(np.array(self.pairs))

    assert [Gains(gains).pays for gains in ((0.9, 1.1, 1.1, 1.1, 1.1), (0.9,) * 5, (0.9, 0.9, 1.1, 1.1))] == [
        "yes", "no", "even",
    ]  # fmt: skip


# ---- tables, figures, JSON


@pytest.fixture(scope="module")
def results():
    few = replace(SHORT, requests=30)
    return {
        "hit_rates": hit_rate([0.1, 0.5, 1.0], mix=few, seeds=2),
        "identical": identical_prompt(requests=30, block_sizes=[4, 16], batches=[1, 4], seeds=2),
        "eviction": eviction(["lru", "fifo"], [0, 16, 64], mix=few, seeds=2),
    }


@pytest.mark.parametrize("name", ["hit_rates", "identical", "eviction"])
def test_results_have_tables_notes_a_figure_and_json(results, name, tmp_path):
    from kvtrace.report.interactive import figure

    value = results[name]
    assert all(table.row_count for table in getattr(tables, name)(value)) and tables.notes(value)
    record = json.loads(json.dumps(value.to_dict()))
    assert record["schema"] == 1 and record["experiment"]
    plot = getattr(figures, name)(value)
    json.dumps([figure(panel) for panel in plot.panels])
    pytest.importorskip("matplotlib")
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for suffix, magic in begins.items():
        first = figures.write_figure(plot, tmp_path / f"one{suffix}").read_bytes()
        assert first.startswith(magic) and figures.write_figure(plot, tmp_path / f"two{suffix}").read_bytes() == first


def test_the_report_s_figures_stand_beside_ours(results):
    beside = [*tables.identical(results["identical"])].pop()
    assert [*beside.columns[1].cells] == ["8.14%", "8.14%"] and beside.columns[2].header == "ours"
    for value in (results["hit_rates"], results["identical"]):
        assert value.to_dict()["reported"]["identical_prompt_hit_rate"] == 0.0814
        assert any("does not state" in note for note in tables.notes(value))


# ---- what does not fit


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Mix(p=1.5), "probability 1.5 is not between 0 and 1"),
        (lambda: Mix(requests=0), "requests is 0"),
        (lambda: Mix(output_length=(0, 4)), "output_length is 0:4"),
        (lambda: Mix(frequent_length=(9, 4)), "frequent_length is 9:4"),
        (lambda: Serving(batch=0), "batch is 0"),
        (lambda: Serving(idle=-1), "idle is -1"),
        (lambda: hit_rate([]), "--p names no probability"),
        (lambda: hit_rate([0.5, 2], mix=replace(SHORT, requests=2)), "probability 2 is not between 0 and 1"),
        (lambda: hit_rate(seeds=0), "seeds is 0; it must be at least 1"),
        (lambda: identical_prompt(0, requests=2), "prompt_length is 0; it must be at least 1"),
        (lambda: eviction(["newest"], mix=SHORT), "'newest' is not a policy"),
        (lambda: eviction([]), "nothing to compare"),
        (lambda: figures.write_figure(None, "figure.gif"), "figure.gif: a figure is a .png, .svg, .pdf file"),
    ],
)
def test_bad_arguments_are_one_clear_sentence(call, message):
    with pytest.raises(UsageError) as error:
        call()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_without_torch_the_engine_says_what_to_install(monkeypatch):
    from experiments.throughput import throughput

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"pip install torch"):
        throughput()


# ---- python -m experiments


def experiments(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_each_experiment_has_a_command():
    status, text, _ = experiments("--help")
    assert status == 0
    for name in ("hit-rate", "throughput", "eviction", "latency", "all"):
        assert f"\n  {name} " in text


def test_a_command_prints_its_result_as_json():
    status, text, errors = experiments("hit-rate", "--p", "0.5", "--requests", "20", "--seeds", "1", "--json", "-q")
    assert (status, errors) == (0, "") and json.loads(text)["experiment"] == "hit-rate"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nope"], "No such command 'nope'."),
        (["hit-rate", "--output-length", "x"], "'x' is not a range of lengths. Example: 16:128."),
        (["eviction", "--policies", "newest"], "'newest' is not a policy"),
    ],
)
def test_errors_of_a_command_are_one_line_and_status_2(arguments, message):
    status, text, errors = experiments(*arguments)
    assert (status, text) == (2, "")
    assert errors.startswith(f"kvtrace: {message}") and errors.count("\n") == 1


def test_all_writes_a_figure_and_a_json_file_for_each_experiment(tmp_path, monkeypatch):
    from experiments import everything
    from experiments.__main__ import experiment

    runs = {name: run for name, run in everything.experiments(5).items() if name not in everything.NEED_TORCH}
    monkeypatch.setattr(everything, "experiments", lambda requests: runs)
    result = CliRunner().invoke(experiment, ["all", str(tmp_path / "out"), "--requests", "5"])
    assert result.exit_code == 0 and "hit_rates: " in result.output
    names = ("hit-rates", "identical", "eviction")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {f"{n}.{s}" for n in names for s in ("png", "json")}
