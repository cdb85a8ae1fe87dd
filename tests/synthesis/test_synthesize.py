"""Samples as their user meets them: knobs, limits, scales, files, and the command."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cli import run
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.attach_model import Model
from kvtrace.synthesis.draft import Draft, within
from kvtrace.synthesis.knobs import Knobs
from kvtrace.synthesis.sampling import sample, write_sample
from kvtrace.synthesis.tree import fit_tree
from kvtrace.trace.building import toy
from tests.strategies import traces

METHODS = {"attach": fit, "tree": fit_tree}
each_method = pytest.mark.parametrize("method", METHODS)


def has_prompts(trace):
    return (trace.input_length > 0).any()


def talks(rows=300, seed=3, block_size=16):
    """Conversations over two system prompts, and prompts that never come again."""
    rng = np.random.default_rng(seed)
    paths, open_talks, fresh = [], [], 2
    for _ in range(rows):
        if open_talks and rng.random() < 0.6:
            path = open_talks.pop(int(rng.integers(len(open_talks))))
        else:
            path = [int(rng.integers(2))]
        new = int(rng.integers(1, 5))
        path = (path + list(range(fresh, fresh + new)))[:30]
        fresh += new
        open_talks.append(path)
        paths.append(path)
    number: dict = {}
    ids = np.array([number.setdefault(block, len(number)) for path in paths for block in path])
    blocks = np.array([len(path) for path in paths])
    columns = kvtrace.trace.Columns(
        np.cumsum(rng.exponential(1000, rows)).round(), blocks * block_size, rng.integers(1, 200, rows),
        ids, np.concatenate([[0], np.cumsum(blocks)]),
    )  # fmt: skip
    return kvtrace.Trace.from_columns(columns, block_size=block_size)


@pytest.fixture(scope="module")
def models():
    trace = talks()
    return {name: make(trace) for name, make in METHODS.items()}


@each_method
@settings(max_examples=20, deadline=None)
@given(trace=traces(outputs=False).filter(has_prompts), n=st.integers(1, 40), seed=st.integers(0, 3))
def test_any_trace_gives_samples_that_hold_every_invariant(method, trace, n, seed):
    found = sample(METHODS[method](trace), n, seed=seed)
    assert len(found) == n and found.is_chained and found.block_size == trace.block_size
    assert (found.input_length > 0).all() or (trace.input_length == 0).any()


@each_method
def test_a_seed_gives_the_same_bytes_whatever_the_workers(models, method, tmp_path):
    for scale in ("rate", "duration"):
        written = []
        for workers in (1, 2, 5):
            path = tmp_path / f"{scale}{workers}.jsonl"
            write_sample(models[method], 700, path, seed=5, scale=scale, workers=workers)
            written.append(path.read_bytes())
        assert len(set(written)) == 1
        write_sample(models[method], 700, tmp_path / "other.jsonl", seed=6, scale=scale)
        assert (tmp_path / "other.jsonl").read_bytes() != written[0]


@each_method
def test_what_is_written_in_a_stream_is_the_sample(models, method, tmp_path):
    write_sample(models[method], 900, tmp_path / "a.jsonl", seed=1, scale="duration")
    found, wanted = kvtrace.read(tmp_path / "a.jsonl"), sample(models[method], 900, seed=1, scale="duration")
    for name in ("timestamp", "input_length", "output_length", "hash_ids", "offsets"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    beside = json.loads((tmp_path / "a.jsonl.meta.json").read_text())
    assert beside["requests"] == 900 and beside["synthetic"]["method"] == method


@each_method
@pytest.mark.parametrize(
    "knob, of",
    [
        ("prefix_len_multiplier", lambda trace: trace.input_length.mean()),
        ("prompt_len_multiplier", lambda trace: trace.input_length.mean()),
        ("osl_multiplier", lambda trace: trace.output_length.mean()),
        ("speedup_ratio", lambda trace: -trace.timestamp[-1]),
    ],
)
def test_knobs_turn_monotonically(models, method, knob, of):
    found = [of(sample(models[method], 600, seed=2, knobs=Knobs(**{knob: value}))) for value in (0.5, 1.0, 1.5, 2.0)]
    assert found == sorted(found) and len(set(found)) == 4


@each_method
def test_more_roots_share_less(models, method):
    rates = []
    for roots in (1, 2, 4):
        found = sample(models[method], 600, seed=2, knobs=Knobs(prefix_root_multiplier=roots))
        rates.append(kvtrace.trace.count_hits(found, kvtrace.trace.unlimited_hits(found)).block_hit_rate)
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 3


@each_method
@pytest.mark.parametrize("multiplier", [1.0, 2.0])
def test_limits_hold_and_cost_no_request(models, method, multiplier):
    knobs = Knobs(min_isl=48, max_isl=100, min_osl=20, max_osl=50, prefix_len_multiplier=multiplier)
    found = sample(models[method], 500, seed=2, knobs=knobs)
    plain = sample(models[method], 500, seed=2)
    assert len(found) == 500
    assert found.input_length.min() >= 48 and found.input_length.max() <= 100
    assert found.output_length.min() >= 20 and found.output_length.max() <= 50
    assert found.timestamp[-1] == pytest.approx(plain.timestamp[-1], rel=0.3)


@each_method
def test_a_great_speed_up_keeps_times_apart(models, method):
    found = sample(models[method], 300, knobs=Knobs(speedup_ratio=10_000.0))
    assert len(np.unique(found.timestamp)) > 250


@each_method
def test_arrivals_can_follow_a_profile(models, method):
    found = sample(models[method], 600, seed=4, knobs=Knobs(step_rates="1@60s,10@60s"))
    slow, fast = (found.timestamp < 60_000).sum(), ((found.timestamp >= 60_000) & (found.timestamp < 120_000)).sum()
    assert 30 < slow < 100 and 400 < fast < 800


def test_a_cut_path_ends_in_a_full_block_and_a_longer_one_gets_its_own():
    #  blocks of 4: 0 1 (8 tokens), 0 2 (6: a partial block that the third row shares), 0 2
    draft = Draft(
        np.zeros(3), np.array([0, 2, 4, 6]), np.array([0, 1, 0, 2, 0, 2], dtype=np.int32), np.array([4, 2, 2]),
        np.ones(3), np.full(3, -1), np.full(3, -1),
    )  # fmt: skip
    cut = within(draft, 4, None, 5)
    assert cut.blocks.tolist() == [0, 0, 0] and cut.input_length(4).tolist() == [4, 4, 4]
    longer = within(draft, 4, 7, None)
    assert longer.blocks.tolist() == [0, 1, 0, 3, 0, 4] and longer.input_length(4).tolist() == [8, 7, 7]
    small = within(draft, 4, None, 3)
    assert small.blocks.tolist() == [3, 4, 5] and small.input_length(4).tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"n": 0}, "the number of requests is 0"),
        ({"seed": -1}, "the seed is -1"),
        ({"scale": "size"}, "'size' is not a scale"),
        ({"knobs": {"prefix_len_multiplier": -1.0}}, "--prefix-len-multiplier is -1.0"),
        ({"knobs": {"osl_multiplier": float("nan")}}, "--osl-multiplier is nan"),
        ({"knobs": {"speedup_ratio": 0.0}}, "--speedup-ratio is 0.0"),
        ({"knobs": {"prefix_root_multiplier": 0}}, "--prefix-root-multiplier is 0"),
        ({"knobs": {"min_isl": 9, "max_isl": 8}}, "--min-isl must not be above --max-isl"),
        ({"knobs": {"max_osl": -1}}, "--max-osl is -1"),
    ],
)
def test_bad_values_are_said_in_a_line(models, options, said):
    with pytest.raises(UsageError, match=said):
        knobs = Knobs(**options.pop("knobs", {}))
        sample(models["attach"], options.pop("n", 5), knobs=knobs, **options)


@each_method
def test_a_limit_under_the_smallest_prompt_is_refused(models, method):
    with pytest.raises(InputError, match="below the shortest prompt"):
        sample(models[method], 5, knobs=Knobs(max_isl=3))


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_a_trace_without_prompts_is_refused(make):
    with pytest.raises(InputError):
        make(kvtrace.Trace([0.0], [0], [1], [], [0, 0], block_size=4))


def test_an_unchained_trace_is_refused():
    trace = kvtrace.Trace([0.0, 1.0], [2, 2], [1, 1], [0, 1, 2, 1], [0, 2, 4], block_size=1)
    for make in METHODS.values():
        with pytest.raises(InputError, match="--chain"):
            make(trace)


def test_a_saved_model_samples_as_the_fitted_one(models, tmp_path):
    path = tmp_path / "model.json"
    models["attach"].save(path)
    assert Model.is_model(path)
    assert sample(Model.load(path), 200, seed=9) == sample(models["attach"], 200, seed=9)


def test_the_command_writes_a_trace_or_a_model_and_reads_both(tmp_path, capsys):
    source, model = str(tmp_path / "source.jsonl"), str(tmp_path / "model.json")
    kvtrace.write(talks(100), source)
    outputs = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    assert run(["synthesize", source, "-n", "250", "-o", outputs[0], "--save-model", model, "--seed", "3"]) == 0
    assert "wrote" in capsys.readouterr().err
    assert run(["synthesize", model, "-n", "250", "-o", outputs[1], "--seed", "3", "-q"]) == 0
    first, second = (kvtrace.read(output) for output in outputs)
    assert first == second and len(first) == 250
    assert capsys.readouterr().err == ""
    assert run(["synthesize", source, "-o", outputs[0]]) == 0 and len(kvtrace.read(outputs[0])) == 100


@pytest.mark.parametrize(("text", "requests"), [("3x", 300), ("0.5x", 50), ("1.5k", 1500), ("1x", 100)])
def test_n_may_be_a_multiple_of_a_trace_or_of_a_model(tmp_path, text, requests):
    source, model, output = (str(tmp_path / name) for name in ("source.jsonl", "model.json", "more.jsonl"))
    kvtrace.write(talks(100), source)
    assert run(["synthesize", source, "--save-model", model, "-q"]) == 0
    for one in (source, model):
        assert run(["synthesize", one, "-n", text, "-o", output, "-q"]) == 0
        assert len(kvtrace.read(output)) == requests


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["-n", "0", "-o", "x.jsonl"], 2, "number of requests is 0"),
        (["-n", "0.01x", "-o", "x.jsonl"], 2, "number of requests is 0"),
        (["-n", "3y", "-o", "x.jsonl"], 2, "--requests: '3y' is not a number of requests."),
        ([], 2, "Nothing would be written"),
        (["-n", "5", "-o", "x.jsonl", "--max-isl", "1"], 3, "below the shortest prompt"),
        (["-n", "5", "-o", "x.jsonl", "--step-rates", "fast"], 2, "--step-rates"),
        (["-n", "5", "-o", "x.jsonl", "--speedup-ratio", "-2"], 2, "--speedup-ratio is -2.0"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, monkeypatch, capsys, options, status, expected):
    kvtrace.write(toy("0 1", "0 2", "3", block_size=16), tmp_path / "source.jsonl")
    monkeypatch.chdir(tmp_path)
    assert run(["synthesize", "source.jsonl", *options]) == status
    shown = capsys.readouterr()
    assert shown.out == "" and expected in shown.err and len(shown.err.splitlines()) == 1
    assert not (tmp_path / "x.jsonl").exists()


# -- the load --------------------------------------------------------------------------------------------------------


def steady(rows=120, gap_ms=2000.0):
    """A trace in whole seconds: a new conversation of two turns every few seconds."""
    prompts = [f"0 {row // 2 + 1}" if row % 2 == 0 else f"0 {row // 2 + 1} {1000 + row}" for row in range(rows)]
    return toy(*prompts, block_size=16, gap_ms=gap_ms)


@pytest.mark.parametrize("times", [1, 3])
def test_a_larger_sample_keeps_the_requests_per_second_and_is_longer(times):
    trace = steady()
    more = sample(fit(trace), times * len(trace), seed=1)
    assert more.timestamp[-1] == pytest.approx(times * trace.timestamp[-1], rel=0.05)
    assert kvtrace.analysis.compare(trace, more).scores["gap_ms"] > 0.9


def test_scale_rate_multiplies_the_requests_per_second_instead():
    trace = steady()
    more = sample(fit(trace), 3 * len(trace), seed=1, scale="rate")
    assert more.timestamp[-1] == pytest.approx(trace.timestamp[-1], rel=0.1)


@pytest.mark.parametrize(("gap_ms", "step"), [(2000.0, 1000), (60_000.0, 60_000), (7200_000.0, 3_600_000), (1.0, 1)])
def test_a_sample_keeps_the_step_of_coarsened_times(gap_ms, step):
    model = fit(steady(gap_ms=gap_ms))
    assert model.time_step_ms == step == Model.from_dict(json.loads(json.dumps(model.to_dict()))).time_step_ms
    times = sample(model, 50, seed=1).timestamp
    assert not (times % step).any()
    faster = sample(model, 50, seed=1, knobs=Knobs(speedup_ratio=7)).timestamp
    assert step == 1 or (faster % step).any()


@pytest.mark.parametrize(("times", "least"), [(1, 0.98), (2, 0.97)])
def test_the_conversation_trace_keeps_its_load_at_any_size(shared, times, least):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    model = fit(trace)
    assert (
        min(kvtrace.analysis.compare(trace, sample(model, times * len(trace), seed=seed)).overall for seed in (1, 2))
        > least
    )


@each_method
def test_a_written_sample_without_tails_counts_its_ids(tmp_path, method):
    #  partial blocks are drawn, too, and not written
    trace = kvtrace.Trace([0, 9, 20], [5, 7, 6], [1, 1, 1], [0, 1, 2], [0, 1, 2, 3], block_size=4, tail="dropped")
    write_sample(METHODS[method](trace), 40, tmp_path / "more.jsonl", seed=3)
    assert not kvtrace.formats.check(tmp_path / "more.jsonl")
