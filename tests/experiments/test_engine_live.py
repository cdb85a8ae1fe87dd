"""The small engine: its KV lies in the blocks that the cache names, and what is reused is what would be computed."""

from importlib.util import find_spec

import numpy as np
import pytest

from experiments.engine import Engine
from experiments.model import Shape, Transformer
from experiments.prompts import Mix, Request, repeated, tokens
from experiments.serving import serve
from experiments.settings import Serving
from kvtrace._base.errors import UsageError

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

SHAPE = Shape(layers=2, heads=2, head_dim=8, vocabulary=97)
TOLERANCE = 1e-10  # of logits, in float64; they are about 1


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other are slow where others use the machine."""
    import torch  # in functions, because it takes seconds of each collection

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    return Transformer(SHAPE, seed=1, device="cpu", dtype="float64")


def without_blocks(model, sequence):
    """The logits after each token of one sequence, computed at once, with nothing cached: the definition."""
    import torch

    count = len(sequence)
    past = torch.ones(count, count, dtype=torch.bool).tril()

    def attend(_, q, k, v):
        scores = torch.einsum("ihd,jhd->hij", q, k) / SHAPE.head_dim**0.5
        return torch.einsum("hij,jhd->ihd", scores.masked_fill(~past, -torch.inf).softmax(-1), v)

    return model.logits(model.forward(torch.as_tensor(sequence), torch.arange(count), attend)).numpy()


def served(model, requests, *, longest=200, **options):
    engine_options = {name: options.pop(name) for name in ("caching", "temperature") if name in options}
    engine = Engine(model, Serving(**options), longest, keep_logits=True, **engine_options)
    result = engine.serve(requests)
    if engine_options.get("caching", True):
        engine.cache.check()
    return engine, result


def chat(rng, turns, *, length=9):
    """A conversation that grows: each prompt begins with the one before it."""
    text = tokens(rng, SHAPE.vocabulary, length * turns)
    return [Request(text[: length * turn], 5, turn) for turn in range(1, turns + 1)]


def mixed(seed):
    """Frequent, random, repeated and growing prompts in one run."""
    rng = np.random.default_rng(seed)
    mix = Mix(p=0.7, requests=24, frequent=3, frequent_length=(1, 30), output_length=(1, 12), vocabulary=97)
    requests = [*mix.draw(rng), *repeated(6, 6, (1, 9), rng, 97), *chat(rng, 6)]
    return [requests[place] for place in rng.permutation(len(requests))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4},
        {"block_size": 16},
        {"block_size": 1, "hashing": "direct"},
        {"block_size": 4, "idle": 5},
        {"block_size": 8, "batch": 3},
    ],
    ids=str,
)
def test_logits_with_reused_blocks_are_those_computed_without_a_cache(model, seed, options):
    requests = mixed(seed)
    engine, result = served(model, requests, **options)
    assert sum(one.sequence.hit_tokens for one in result.requests) > 0 or "idle" in options
    for one in result.requests:
        truth = without_blocks(model, np.concatenate([one.request.prompt, one.output]))
        here = np.array(engine.logits[one.row])
        assert len(one.output) == one.request.output_length
        np.testing.assert_allclose(here, truth[len(one.request.prompt) - 1 : -1], atol=TOLERANCE, rtol=0)


def test_greedy_outputs_are_equal_with_and_without_the_cache(model):
    requests = mixed(7)
    _, cached = served(model, requests, temperature=0)
    _, plain = served(model, requests, temperature=0, caching=False)
    assert [one.output for one in cached.requests] == [one.output for one in plain.requests]
    for one in cached.requests[:10]:
        truth = without_blocks(model, np.concatenate([one.request.prompt, one.output]))
        assert truth[len(one.request.prompt) - 1 : -1].argmax(1).tolist() == one.output


def test_drawn_outputs_hang_on_the_request_and_not_on_the_batch(model):
    requests = mixed(8)
    _, wide = served(model, requests, batch=16)
    _, narrow = served(model, requests, batch=1)
    assert [one.output for one in wide.requests] == [one.output for one in narrow.requests]
    assert len({tuple(one.output) for one in wide.requests if len(one.output) > 4}) > 10


def test_only_what_the_cache_lacks_is_computed(model):
    requests = mixed(9)
    engine, result = served(model, requests, block_size=4)
    lacking = [max(1, len(one.request.prompt) - one.sequence.hit_tokens) for one in result.requests]
    assert engine.computed_tokens == sum(lacking)
    plain, _ = served(model, requests, block_size=4, caching=False)
    assert plain.computed_tokens == sum(len(request.prompt) for request in requests) > engine.computed_tokens


def test_reused_kv_is_read_and_not_computed_again(model):
    engine = Engine(model, Serving(block_size=4), 40, keep_logits=True)
    prompt = np.arange(9, dtype=np.int32)
    engine.serve([Request(prompt, 1, 0)])
    engine.store.blocks[:, 1, 0] = 0  # forget the values of the first block
    engine.serve([Request(prompt, 1, 0)])
    first, second = engine.logits[0]
    assert np.abs(first - second).max() > 1e-3


def test_an_identical_prompt_that_moved_on_is_copied_before_it_is_written():
    # Both share a partial block of 3 tokens at their prompts; the first to append gets its own copy.
    cache = Serving(block_size=4, batch=2).cache(10)

    class Steps:
        def prefill(self, admitted):
            assert admitted[0].sequence.blocks == admitted[1].sequence.blocks
            return [10, 11]

        def decode(self, live):
            assert live[0].sequence.blocks != live[1].sequence.blocks
            return [12, 13]

    prompt = np.arange(3, dtype=np.int32)
    serve([Request(prompt, 2, 0), Request(prompt, 2, 0)], cache, Steps(), batch=2)
    assert cache.stats()["copies"] == 1 and cache.stats()["hit_tokens"] == 3


def test_a_shape_that_makes_no_model_is_refused():
    for options in ({"layers": 0}, {"head_dim": 7}, {"vocabulary": -1}):
        with pytest.raises(UsageError):
            Shape(**options)
    with pytest.raises(UsageError, match="temperature"):
        Engine(Transformer(SHAPE), Serving(), 10, temperature=-1)


# ---- the experiments that run it


@pytest.fixture(scope="module")
def measured():
    from experiments.latency import latency
    from experiments.throughput import throughput

    shape = Shape(layers=1, heads=2, head_dim=8, vocabulary=64)
    mix = Mix(requests=8, frequent=2, output_length=(1, 3), vocabulary=64)
    told = []
    options = {"shape": shape, "repeats": 2, "progress": told.append}
    result = {
        "throughput": throughput([0.0, 1.0], [8, 24], at_lengths=[24], at_probabilities=[1.0], mix=mix, **options),
        "latency": latency(["random", "preamble"], requests=8, **options),
    }
    assert told[0].done == 0 and told[-1].done == told[-1].total
    return result


def test_both_arms_serve_the_same_requests_and_only_one_computes_them_all(measured):
    for spot in measured["throughput"].spots:
        for pair in spot.pairs.pairs:
            assert pair.without.output_tokens == pair.with_cache.output_tokens
            assert pair.without.computed_tokens == 8 * spot.prompt_length
            assert pair.with_cache.hits.tokens == pair.without.hits.tokens
            assert pair.without.hits.hit_tokens == 0
            assert (pair.saved == 0) == (spot.p == 0.0)


def test_a_point_is_measured_once_where_two_sweeps_meet(measured):
    result = measured["throughput"]
    assert [(spot.p, spot.prompt_length) for spot in result.spots] == [(0.0, 24), (1.0, 8), (1.0, 24), (None, 24)]
    assert result.prompt_lengths == [24] and result.probabilities == [1.0]
    assert [spot.p for spot in result.over_p(24)] == [0.0, 1.0]
    assert [spot.prompt_length for spot in result.over_length(1.0)] == [8, 24]


def test_measurements_have_tables_notes_a_figure_and_json(measured, tmp_path):
    import json

    from experiments import figures, tables

    for name, result in measured.items():
        assert all(table.row_count for table in getattr(tables, name)(result)) and tables.notes(result)
        record = json.loads(json.dumps(result.to_dict()))
        assert record["experiment"] == name and record["machine"]["device"] and record["model"]["layers"] == 1
        pytest.importorskip("matplotlib")
        assert figures.write_figure(getattr(figures, name)(result), tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_number_of_threads_is_as_before_afterwards(monkeypatch):
    import torch

    from experiments.measure import Bench, Machine

    before = torch.get_num_threads()
    monkeypatch.setattr(Bench, "run", lambda *_: None)  # which warms up; slow where threads wait for each other
    with pytest.raises(KeyboardInterrupt), Bench(SHAPE, Machine(threads=before + 1)).running():
        assert torch.get_num_threads() == before + 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before


def test_experiments_that_make_no_sense_are_refused():
    from experiments.latency import latency
    from experiments.throughput import throughput

    for call, text in (
        (lambda: latency(["chess"]), "'chess' is not a workload"),
        (lambda: latency(requests=0), "nothing to measure"),
        (lambda: throughput(repeats=0), "repeats is 0; it must be at least 1"),
        (
            lambda: throughput(mix=Mix()),
            r"the prompts' vocabulary \(32,000 tokens\) is larger than",
        ),
    ):
        with pytest.raises(UsageError, match=text):
            call()
