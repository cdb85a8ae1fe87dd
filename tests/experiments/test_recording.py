"""The recorder: its steps compute what a plain pass computes, and its folder is a recording that kvtrace reads."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

from experiments.model import Shape, Transformer
from experiments.paged import BlockStore
from experiments.recording.batch import Batch
from experiments.recording.cutting import cut, new_tokens, shrunk, to_budget
from experiments.recording.folder import request_rows, timeseries, write_folder
from experiments.recording.prompts import Tokens
from experiments.recording.recorder import serve
from experiments.recording.sizes import SIZES, config_of
from kvtrace._base.errors import InputError, UsageError
from kvtrace.serving.recordings import read_recording
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.conftest import drawn

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

SHAPE = Shape(layers=2, heads=4, head_dim=8, vocabulary=97, kv_heads=2, intermediate=48)
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 0.1}  # of logits, which are about 1


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    import torch  # in functions, because it takes seconds of each collection

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def conversations(seed=0, block_size=4, rows=24, gap_ms=4.0):
    """Prompts that go on from an earlier one or a part of it; the last block may be partial."""
    random = np.random.default_rng(seed)
    paths, said, number = [], [()], {}
    for _ in range(rows):
        before = said[random.integers(len(said))]
        words = before[: random.integers(len(before) + 1)]
        words += tuple(random.integers(3, size=random.integers(1, 8)).tolist())
        said.append(words)
        paths.append(words)
    tokens = np.array([len(words) * block_size - random.integers(block_size) for words in paths])
    ids = []
    for words, count in zip(paths, tokens, strict=True):
        full = count // block_size
        ids.append([number.setdefault(words[: i + 1], len(number)) for i in range(full)])
        if count % block_size:
            ids[-1].append(number.setdefault((words, int(count)), len(number)))
    offsets = np.cumsum([0, *map(len, ids)])
    arrival = np.cumsum(random.exponential(gap_ms, rows))
    output = random.integers(1, 12, rows)
    columns = Columns(arrival - arrival[0], tokens, output, np.concatenate(ids), offsets)
    return Trace.from_columns(columns, block_size=block_size, tail="kept")


def plain(model, tokens):
    """The logits after each token of one sequence, in one pass without blocks: the definition."""
    import torch

    count, shape = len(tokens), model.shape
    past = torch.ones(count, count, dtype=torch.bool).tril()

    def attend(_, q, k, v):
        k, v = (one.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for one in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / shape.head_dim**0.5
        return torch.einsum("hij,jhd->ihd", scores.masked_fill(~past, -torch.inf).softmax(-1), v)

    with torch.inference_mode():
        return model.logits(model.forward(torch.as_tensor(tokens), torch.arange(count), attend)).double().numpy()


def run(trace, *, blocks, dtype="float64", way="gathered", forget=False, **options):
    """A served trace, and the logits of each request's output tokens: row -> place -> logits."""
    model = Transformer(SHAPE, seed=1, device="cpu", dtype=dtype)
    store = BlockStore(model, blocks, trace.block_size)
    logits = {}

    def keep(batch, values):
        for part, value in zip(np.flatnonzero(batch.samples), values, strict=True):
            logits.setdefault(int(batch.rows[part]), {})[int(batch.ends[part]) - 1] = value.double().numpy()
        if forget:
            store.blocks.zero_()

    scheduler = VllmScheduler(**{"async_scheduling": False, **options})
    ticks = iter(range(1 << 30))
    done = serve(trace, model, store, scheduler, way=way, clock=lambda: 0.001 * next(ticks), on_step=keep)
    return model, done, logits


def largest_error(model, trace, logits):
    tokens, worst = Tokens(trace, SHAPE.vocabulary), 0.0
    for row in range(len(trace)):
        expected = plain(model, tokens.of(row))
        first, count = trace.input_length[row] - 1, trace.output_length[row]
        assert sorted(logits[row]) == list(range(first, first + count))  # each output token was sampled
        worst = max(worst, *(np.abs(logits[row][place] - expected[place]).max() for place in logits[row]))
    return worst


@pytest.mark.parametrize("seed", range(drawn(4)))
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 64, "max_num_seqs": 8},
        {"max_num_batched_tokens": 7, "max_num_seqs": 5},  # many chunks
        {"max_num_batched_tokens": 64, "max_num_seqs": 8, "async_scheduling": True},
    ],
    ids=str,
)
def test_logits_under_chunks_hits_and_preemption_are_those_of_a_plain_pass(seed, options):
    trace = conversations(seed)
    need = int((-(-(trace.input_length + trace.output_length) // trace.block_size)).max())
    for blocks in (need + 2, 200):
        model, done, logits = run(trace, blocks=blocks, **options)
        assert largest_error(model, trace, logits) < TOLERANCE["float64"]
        assert done.outcomes["cached"].sum() > 0  # prefixes hit
        assert blocks > need + 2 or done.outcomes["preempted"].sum() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_in_fewer_bits_are_near_those_of_a_plain_pass(dtype):
    trace = conversations(5)
    model, _, logits = run(trace, blocks=30, dtype=dtype, max_num_batched_tokens=16, max_num_seqs=6)
    assert largest_error(model, trace, logits) < TOLERANCE[dtype]


def test_hits_read_the_pages_that_another_request_computed():
    trace = conversations(2)
    model, done, logits = run(trace, blocks=200, forget=True)
    assert done.outcomes["cached"].sum() > 0 and largest_error(model, trace, logits) > 1e-3


def test_two_requests_of_one_step_share_blocks_that_the_step_computes():
    trace = Trace.from_columns(
        Columns([0.0, 0.0], [9, 9], [2, 2], [0, 1, 2, 0, 1, 2], [0, 3, 6]), block_size=4, tail="kept"
    )
    model, done, logits = run(trace, blocks=20)
    assert done.outcomes["cached"].tolist() == [0, 8] and done.steps[0].tokens == 10
    assert largest_error(model, trace, logits) < TOLERANCE["float64"]


def test_the_kernel_for_decoding_gives_the_same_logits(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from experiments.recording import attention

    class Decode(attention.Gathered):
        """Triton for the requests that have one token, and copies of the pages for the others."""

        def prepare(self):
            super().prepare()
            ends = self.batch.ends[self.batch.chunks :].astype(np.int32)
            tables = self.on_device(self.batch.tables[self.batch.chunks :])
            self._of_steps = tables, self.on_device(ends), int(ends.max(initial=1))

        steps = attention.TritonDecode.steps

    monkeypatch.setitem(attention.WAYS, "triton-on-cpu", Decode)
    shape = Shape(layers=1, heads=4, head_dim=16, vocabulary=97, kv_heads=2)
    monkeypatch.setattr("tests.experiments.test_recording.SHAPE", shape)
    trace = conversations(3, rows=8)
    model, _, logits = run(trace, blocks=60, dtype="float32", way="triton-on-cpu", max_num_batched_tokens=16)
    assert largest_error(model, trace, logits) < TOLERANCE["float32"]


def test_the_clock_is_that_of_the_steps_and_jumps_over_idle_time():
    trace = toy("0 1", "2 3", block_size=4, gap_ms=60_000.0)
    _, done, _ = run(trace, blocks=9)
    outcomes = done.outcomes
    assert [step.seconds for step in done.steps] == pytest.approx([0.001] * 2)
    assert outcomes["first"].tolist() == pytest.approx([0.001, 60.001])
    counted = [(step.decodes, step.chunks, step.tokens, step.pairs, step.context) for step in done.steps]
    assert counted == [(0, 1, 8, 64, 0)] * 2


def test_equal_blocks_have_equal_tokens_and_others_differ():
    trace = toy("0 1", "0 2", "3", block_size=16)
    tokens = Tokens(trace, 1 << 30)
    one, other, last = (tokens.of(row) for row in range(3))
    assert (one[:16] == other[:16]).all() and not set(one[16:]) & set(other[16:]) and not set(last) & set(one)


def test_a_shrunk_trace_shares_what_it_shared():
    trace = conversations(1, block_size=64)
    small = shrunk(trace, 16)
    assert small.block_size == 4 and small.hash_ids.tolist() == trace.hash_ids.tolist()
    assert (small.input_length == -(-trace.input_length // 16)).all()
    with pytest.raises(UsageError, match="does not divide"):
        shrunk(trace, 7)


def test_a_cut_leaves_out_long_requests_and_stretches_the_others_to_a_load():
    trace = toy("0 1", "0 2", "0 1 3", "4", block_size=10, gap_ms=1000.0)
    part, too_long = cut(trace, minutes=1, longest=25)
    assert too_long == 1 and len(part) == 3
    assert new_tokens(part).tolist() == [20, 10, 10]
    small, factor, seconds = to_budget(part, lambda new, output: new / 10.0, budget_s=100.0, load=0.5)
    assert seconds.tolist() == [2.0, 1.0, 1.0] and factor == pytest.approx(4 / 0.5 / 3)
    assert small.timestamp[-1] == pytest.approx(8000.0)
    assert len(to_budget(part, lambda new, output: new / 10.0, budget_s=4.5, load=0.5)[0]) == 2
    with pytest.raises(UsageError, match="--max-tokens"):
        cut(trace, minutes=1, longest=3)


def test_no_more_requests_arrive_when_the_budget_is_spent():
    trace = conversations(0)
    model = Transformer(SHAPE, device="cpu")
    store = BlockStore(model, 200, trace.block_size)
    scheduler = VllmScheduler(async_scheduling=False)
    done = serve(trace, model, store, scheduler, estimate_s=np.full(len(trace), 1e9), budget_s=1e8)
    assert len(done.trace) == 1 and done.left_out == len(trace) - 1


def test_the_folder_is_a_recording_that_kvtrace_reads(tmp_path):
    from experiments.recording.__main__ import main as command
    from experiments.recording.fit import replayed, steps_of
    from kvtrace.formats.reading import read
    from kvtrace.formats.writing import write
    from kvtrace.serving.hardware import gpu
    from kvtrace.serving.models import model_shape

    write(conversations(4, block_size=32, rows=40, gap_ms=100.0), tmp_path / "trace.jsonl")
    folder = tmp_path / "recording"
    arguments = ["--trace", str(tmp_path / "trace.jsonl"), "--budget-s", "60", "-o", str(folder), "--kv-gib", "0.01"]
    command.main(arguments, standalone_mode=False)
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["device"] == "cpu" and "CPU" in meta["note"] and meta["num_requests"] == 40
    recording = read_recording(folder, trace=read(folder / "trace.jsonl"))
    assert recording.settings.deployment.block_size == 16 and recording.settings.scheduler["async_scheduling"] is False
    assert (
        recording.settings.deployment.max_num_seqs == 64
        and recording.settings.blocks == meta["kv_cache"]["num_gpu_blocks"]
    )
    assert len(recording) == 40 and recording.left_out == 0
    steps = steps_of(folder)
    assert recording.ended_s.max() == pytest.approx(steps["begin"][-1] + steps["seconds"][-1])
    # the files hold all that decides the steps: replayed with the measured seconds, each request has its times
    first_s, ended_s = replayed(recording, steps)
    np.testing.assert_allclose([first_s, ended_s], [recording.first_s, recording.ended_s], atol=1e-9)
    with pytest.raises(InputError, match="other tokens"):
        replayed(recording, steps | {"tokens": steps["tokens"] + 1})
    assert model_shape(folder / "config.json").layers == SIZES["tiny"].layers and gpu(folder / "gpu.json").flops > 0
    with pytest.raises(UsageError, match="no GPU"):
        if pytest.importorskip("torch").cuda.is_available():
            raise UsageError("no GPU is missing here")
        command.main(["--device", "cuda", *arguments], standalone_mode=False)


def test_the_files_of_a_recording_count_the_same_tokens(tmp_path):
    trace = conversations(6, gap_ms=2000.0)
    _, done, _ = run(trace, blocks=30, max_num_batched_tokens=16, max_num_seqs=4)
    rows, seconds = request_rows(done), timeseries(done, 30)
    steps = done.steps
    assert sum(step.decodes for step in steps) == sum(row["output_toks"] - 1 for row in rows)
    computed = sum(row["input_toks"] - row["cached_toks"] + row["recomputed_toks"] for row in rows)
    assert sum(step.tokens for step in steps) == computed + sum(step.decodes for step in steps)
    assert seconds["gen_throughput"].sum() == sum(row["output_toks"] for row in rows)
    assert seconds["prompt_throughput"].sum() == computed
    assert max(step.held for step in steps) <= 30 and seconds["running"][-1] == seconds["waiting"][-1] == 0
    write_folder(tmp_path, done, meta={}, config=config_of(SHAPE, "float64"), gpu={}, slots=30)
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == len(steps) + 1


def test_each_size_has_the_parameters_that_it_names():
    from kvtrace.serving.models import model_shape

    billions = {name: model_shape(config_of(shape, "bfloat16")).parameters / 1e9 for name, shape in SIZES.items()}
    assert {name: round(count, 1) for name, count in billions.items()} == {"tiny": 0.0, "1b": 1.5, "3b": 3.6, "8b": 8.0}


def test_a_made_up_batch_reads_and_writes_blocks_of_its_requests():
    batch = Batch.made_up([5, 20, 0], [1, 1, 9], 50, 4, 97)
    assert batch.chunks == 1 and batch.counts.tolist() == [9, 1, 1] and batch.ends.tolist() == [9, 6, 21]
    assert batch.positions.tolist() == [*range(9), 5, 20] and len(set(batch.places.tolist())) == 11
    assert batch.context(1).tolist()[-1] == batch.places[9]


def test_packed_contexts_are_the_places_of_each_request():
    from experiments.recording.attention import PackedFlash

    model = Transformer(SHAPE, device="cpu")
    batch = Batch.made_up([5, 20, 0, 30], [1, 1, 9, 6], 50, 4, 97)
    packed = PackedFlash(BlockStore(model, 50, 4), batch)
    for (places, begin_q, begin_k, most_q, most_k), parts in ((packed._of_chunks, [0, 1]), (packed._of_steps, [2, 3])):
        assert places.tolist() == [place for part in parts for place in batch.context(part)]
        assert begin_q.tolist() == [0, *np.cumsum(batch.counts[parts])] and most_q == batch.counts[parts].max()
        assert begin_k.tolist() == [0, *np.cumsum(batch.ends[parts])] and most_k == batch.ends[parts].max()


def test_the_fastest_way_that_is_right_is_chosen():
    from experiments.recording.machine import fastest, tried_ways

    ways = tried_ways(SHAPE, "cpu", "float32", 16)
    assert list(ways) == ["gathered"] and fastest(ways, "float32") == "gathered"
    assert "failed" in tried_ways(SHAPE, "cpu", "float32", 16, only="packed-flash")["packed-flash"]  # it needs a GPU
    with pytest.raises(UsageError, match="--attention"):
        fastest({"paged-flash": {"error": 1.0, "seconds": 1e-6}}, "bfloat16")


def test_a_cost_fitted_to_steps_is_the_one_that_they_took():
    from experiments.recording.fit import fitted_to_steps, seconds_of
    from kvtrace.serving.simulation import StepCost

    pytest.importorskip("scipy")
    random = np.random.default_rng(0)
    names = {"tokens": 512, "pairs": 90_000, "context": 9_000, "decodes": 30, "chunks": 4}
    steps = {name: random.integers(1, most, 200).astype(float) for name, most in names.items()}
    cost = StepCost(1e-4, overhead_s=2e-3, request_s=5e-4, attention_pair_s=4e-8, attention_read_s=2e-6)
    steps["seconds"] = seconds_of(steps, cost)
    fitted = fitted_to_steps(steps)
    for name, value in vars(cost).items():
        assert getattr(fitted, name) == pytest.approx(value, rel=1e-6)
