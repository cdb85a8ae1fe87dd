"""Traces read in a stream: every result is that of the same trace in memory, within the bound that was said."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvtrace import InputError, Trace, UsageError
from kvtrace._base.memory import MemoryNeed, parse_memory
from kvtrace._native import forest as forest_kernel
from kvtrace._native import forest as uses_kernel
from kvtrace._native import recency as reuse_kernel
from kvtrace.analysis.curves import hit_curve
from kvtrace.analysis.distribution import Distribution, distribution_of_sorted
from kvtrace.analysis.reuse import find_segments, reuse_distances, reuse_times
from kvtrace.analysis.summary import analyze, basics
from kvtrace.cache.policies import POLICIES
from kvtrace.cache.simulation import simulate
from kvtrace.cli import run
from kvtrace.formats import reading, writing
from kvtrace.formats.converting import STREAMED, convert_dataset
from kvtrace.formats.dataset import DatasetWriter, open_dataset
from kvtrace.formats.lazy import LazyTrace
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns, rows_of
from kvtrace.trace.conversion import first as first_requests
from kvtrace.trace.conversion import speed_up
from tests.conftest import drawn
from tests.strategies import traces

ROOT = Path(__file__).resolve().parents[2]
SIZES = st.integers(1, 40)  # references of a piece


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def streamed(factory, trace, references=5, **options):
    """The same trace, read in a stream from parts of three rows."""
    path = factory.mktemp("parts") / "t.dataset"
    with DatasetWriter(path, block_size=trace.block_size, tail=trace.tail, rows=3) as writer:
        writer.add(trace)
    return LazyTrace(open_dataset(path), references=references, **options)


@cache
def chats(requests):
    """Chats that grow by three blocks a turn, under one root."""
    rng, prompts = np.random.default_rng(7), []
    turns = np.zeros(requests // 8, dtype=np.int64)
    for chat in rng.integers(requests // 8, size=requests).tolist():
        turns[chat] = turns[chat] % 8 + 1
        prompts.append(" ".join(["0", *(str(1 + chat * 100 + block) for block in range(3 * int(turns[chat])))]))
    return toy(*prompts, block_size=512)


# -- results are those of the trace in memory ----------------------------------------------------------------------


@given(traces(unknown_outputs=True), SIZES)
@settings(max_examples=drawn(60), deadline=None)
def test_what_is_known_of_requests_is_the_same(tmp_path_factory, trace, references):
    stream = streamed(tmp_path_factory, trace, references)
    for name in ("timestamp", "input_length", "output_length", "offsets", "session", "parent", "output_offsets"):
        assert np.array_equal(getattr(stream, name), getattr(trace, name))
    assert (stream.distinct, stream.working_set, stream.is_chained) == (trace.distinct, trace.working_set, True)
    assert stream.first_blocks.tolist() == trace.first_blocks.tolist()
    assert stream.has_output_blocks == trace.has_output_blocks
    assert [piece.hash_ids[0] for _, piece in stream.pieces() if len(piece.hash_ids)][:1] == trace.hash_ids[:1].tolist()


@given(traces(unknown_outputs=True), SIZES, st.booleans())
@settings(max_examples=drawn(100), deadline=None)
def test_every_statistic_is_the_same(tmp_path_factory, trace, references, has_types):
    assume(len(trace.hash_ids))
    if has_types:
        types = {"type": np.resize(np.array(["a", "b"], dtype=object), len(trace))}
        trace = Trace.from_columns(replace_columns(trace, extra=types), block_size=trace.block_size)
    stream = streamed(tmp_path_factory, trace, references)
    assert analyze(stream, quantiles=(0.1, 0.99)).to_dict() == analyze(trace, quantiles=(0.1, 0.99)).to_dict()
    assert basics(stream).to_dict() == basics(trace).to_dict()


@given(traces(unknown_outputs=True), SIZES)
@settings(max_examples=drawn(60), deadline=None)
def test_the_hit_curve_is_the_same(tmp_path_factory, trace, references):
    assume(len(trace.hash_ids))
    mine, theirs = hit_curve(streamed(tmp_path_factory, trace, references)), hit_curve(trace)
    assert mine.to_dict() == theirs.to_dict()
    assert mine.hits_per_request(3).tolist() == theirs.hits_per_request(3).tolist()


@given(st.integers(1, 3000), st.integers(0, 5))
@settings(max_examples=drawn(16), deadline=None)
def test_the_sampled_curve_is_the_same(tmp_path_factory, references, seed):
    trace = chats(400)
    stream = streamed(tmp_path_factory, trace, references)
    mine, theirs = (hit_curve(one, sample=0.4, seed=seed) for one in (stream, trace))
    assert mine.to_dict() == theirs.to_dict()


NEED_COLUMNS = {"priority", *(name for name, row in POLICIES.items() if row.sessions)}
SPECS = ["ttl:3ms" if name == "ttl" else name for name in POLICIES if name not in NEED_COLUMNS]


@given(traces(), SIZES, st.sampled_from(SPECS), st.sampled_from(["block", "token", "grow"]), st.integers(0, 20))
@settings(max_examples=drawn(100), deadline=None)
def test_every_simulation_is_the_same(tmp_path_factory, trace, references, policy, mode, more):
    stream = streamed(tmp_path_factory, trace, references, ids=True)
    capacity = int((-(-(trace.input_length + trace.output_length) // trace.block_size)).max()) + 1 + more
    for options in ({}, {"schedule": "concurrency:2"}, {"schedule": "open-loop:1"}, {"pool": "leaf-first"}):
        if mode != "block" or options == {}:
            mine, theirs = (simulate(one, capacity, policy, mode=mode, **options) for one in (stream, trace))
            assert mine.hit_blocks.tolist() == theirs.hit_blocks.tolist() and mine.evictions == theirs.evictions
            assert mine.to_dict() == theirs.to_dict() and mine.over_time(2) == theirs.over_time(2)


@given(traces(), SIZES, st.sampled_from(["vllm", "sglang", "nano-vllm", "tensorrt-llm"]))
@settings(max_examples=drawn(40), deadline=None)
def test_every_engine_does_the_same(tmp_path_factory, trace, references, engine):
    stream = streamed(tmp_path_factory, trace, references, ids=True)
    capacity = int(trace.prompt_blocks.max()) + 3
    mine, theirs = (simulate(one, capacity, engine=engine) for one in (stream, trace))
    assert mine.to_dict() == theirs.to_dict()


@given(traces(unknown_outputs=True), st.integers(1, 12), st.sampled_from([1.0, 0.5, 3.0]), st.sampled_from(STREAMED))
@settings(max_examples=drawn(60), deadline=None)
def test_every_conversion_is_the_same(tmp_path_factory, trace, limit, ratio, format):
    folder = tmp_path_factory.mktemp("converted")
    stream, names = streamed(tmp_path_factory, trace), [str(folder / name) for name in ("a.out", "b.out")]
    _, count, _ = convert_dataset(stream.dataset, names[0], limit, ratio, format=format, extra=True)
    expected = speed_up(first_requests(trace, limit), ratio)
    writing.write(expected, names[1], format=format, extra=True)
    assert count == len(expected)
    mine, theirs = (reading.read(name, block_size=trace.block_size) for name in names)
    assert mine == theirs and mine.meta["converted"] == (
        ({"speedup_ratio": ratio} if ratio != 1 else {}) | ({"part": True} if limit < len(trace) else {})
    )


# -- the pieces of the way -----------------------------------------------------------------------------------------


@given(traces(unknown_outputs=True), st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=drawn(60), deadline=None)
def test_kernels_fed_in_pieces_do_as_at_once(trace, cuts):
    ends = sorted({0, len(trace), *(cut for cut in cuts if cut < len(trace))})
    some = [rows_of(trace, start, stop) for start, stop in pairwise(ends)]
    recency = reuse_kernel.RecencyList(len(trace), trace.distinct)
    found = [recency.runs(piece.hash_ids, piece.offsets) for piece in some]
    for mine, theirs in zip(zip(*found, strict=True), vars(find_segments(trace)).values(), strict=True):
        assert np.concatenate(mine).tolist() == theirs.tolist()
    counted, bands = np.zeros(trace.distinct, np.int32), np.zeros((3, uses_kernel.BANDS), np.int64)
    hits = [uses_kernel.walk_on(piece.hash_ids, piece.offsets, counted, bands) for piece in some]
    whole = uses_kernel.walk(trace.hash_ids, trace.offsets, trace.distinct)
    for mine, theirs in zip((counted, np.concatenate(hits), bands), whole, strict=True):
        assert np.array_equal(mine, theirs)
    parent, distinct = np.full(trace.distinct, forest_kernel.UNSEEN, np.int64), 0
    for piece in some:
        arrays = (piece.hash_ids, piece.offsets, piece.input_length // trace.block_size)
        distinct, gap, fork = forest_kernel.verify(*arrays, piece.output_ids, piece.output_offsets, parent, distinct)
        assert (gap, fork) == (-1, -1)
    assert distinct == trace.distinct


def test_more_rows_than_were_said_are_refused():
    recency = reuse_kernel.RecencyList(1, 1)
    with pytest.raises(ValueError, match="more than"):
        recency.runs(np.array([0, 0]), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="not below"):
        recency.runs(np.array([1]), np.array([0, 1]))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=30), st.integers(1, 7), st.floats(0, 1))
def test_a_distribution_in_pieces_is_that_of_all_values(pairs, size, quantile):
    pairs = sorted(pairs)
    values, counts = np.array([v for v, _ in pairs], float), np.array([c for _, c in pairs], dtype=np.int64)
    cut = [(values[at : at + size], counts[at : at + size]) for at in range(0, len(pairs), size)]
    found, plain = (
        distribution_of_sorted(lambda: cut, [quantile]),
        Distribution.of(np.repeat(values, counts), [quantile]),
    )
    assert found.count == plain.count and (found.min, found.max) == (plain.min, plain.max)
    if len(pairs):
        names = ("mean", "std", "p25", "median", "p75")
        assert [getattr(found, n) for n in names] == pytest.approx([getattr(plain, n) for n in names], abs=1e-9)
        assert found.quantiles[quantile] == pytest.approx(plain.quantiles[quantile], abs=1e-9)


@given(traces(unknown_outputs=True))
@settings(max_examples=drawn(60), deadline=None)
def test_reuse_times_and_distances_are_those_of_the_plain_lists(trace):
    assume(len(trace.hash_ids))
    summary = analyze(trace)
    for mine, lists in (
        (summary.reuse_time_ms, reuse_times(trace)), (summary.reuse_distance, reuse_distances(trace)),
    ):  # fmt: skip
        theirs = Distribution.of_counted(*lists)
        assert mine.count == theirs.count
        if mine.count:
            assert mine.figures() == pytest.approx(theirs.figures(), abs=1e-9)


# -- what is no trace as it stands ---------------------------------------------------------------------------------

WRONG = {
    "times fall": (dict(timestamp=[0, 2, 1]), "row 2: the timestamp is less than"),
    "times begin later": (dict(timestamp=[1, 2, 3]), "the first timestamp is not 0"),
    "ids not numbered": (dict(hash_ids=[0, 1, 0, 3, 2]), "row 1: ids do not count 0, 1, 2"),
    "ids that the manifest lacks": (dict(hash_ids=[0, 1, 0, 2, 1]), None),
    "a parent that comes later": (dict(parent=[-1, 2, -1]), "row 1: the parent is not an earlier row"),
    "lengths that do not fit": (dict(input_length=[2, 2, 5]), "row 2: 1 hash_id for 5 tokens"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_a_stream_cannot_mend_is_told(folder, kind):
    changed, said = WRONG[kind]
    columns = Columns([0, 1, 2], [2, 2, 1], [1, 1, 1], [0, 1, 0, 2, 3], [0, 2, 4, 5])
    columns = replace(columns, **{name: np.array(values) for name, values in changed.items()})
    with DatasetWriter("t.dataset", block_size=1, tail="kept", rows=2) as writer:
        writer.add(columns)
    if said is None:  # block 1 follows no block here, so these ids are no forest, which is told where it matters
        stream = LazyTrace(open_dataset("t.dataset"))
        assert not stream.is_chained
        with pytest.raises(InputError, match="Use trace.chained"):
            analyze(stream)
        return
    with pytest.raises(InputError, match=said) as error:
        LazyTrace(open_dataset("t.dataset"))
    assert str(error.value).startswith("t.dataset") and error.value.__context__ is None


def test_ids_are_not_there_unless_they_were_asked_for(tmp_path_factory):
    with pytest.raises(AttributeError):
        streamed(tmp_path_factory, toy("0 1")).hash_ids  # noqa: B018
    assert streamed(tmp_path_factory, toy("0 1"), ids=True).hash_ids.dtype == np.int32


def test_a_sample_that_holds_too_much_is_refused(tmp_path_factory):
    stream = streamed(tmp_path_factory, chats(400))
    with pytest.raises(UsageError, match="smaller --sample"):
        hit_curve(stream, sample=0.4, max_references=10)


# -- the command line ----------------------------------------------------------------------------------------------


def large(path):
    """Chats, then others, then the first ones again."""
    once = chats(2000)
    with DatasetWriter(path, block_size=512, tail="kept", rows=1000) as writer:
        for number, first_id in enumerate((0, once.distinct, 0)):
            times = once.timestamp + number * 10_000
            writer.add(replace_columns(once, timestamp=times, hash_ids=once.hash_ids + first_id))


COMMANDS = [
    "analyze --json", "analyze --basic --json", "analyze --json --fold 1,2", "analyze --json --chain",
    "curve --csv", "curve --csv --sample 0.3 --seed 3", "curve --csv --chain",
    "simulate --csv --capacity 10%,50% --policy lru,sieve", "simulate --csv --mode token --engine vllm -q --no-gap",
    "simulate --csv --tiers hbm=5000,dram=6000", "simulate --csv --chain --capacity 5000",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_the_same_of_a_folder_and_of_a_file(folder, capsys, command):
    large("t.dataset")
    writing.write(reading.read("t.dataset"), "t.parquet")
    name, *options = command.split()
    assert run([name, "t.parquet", *options]) == 0
    file = capsys.readouterr().out
    assert run([name, "t.dataset", *options]) == 0
    shown = capsys.readouterr()
    assert shown.out == file
    assert ("memory      needs" in shown.err) != ("-q" in options)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--limit 2500",
        "--speedup-ratio 2 --limit 100",
        "--fold 2",
        "--start 1s",
        "--first-id 1 --extra",
        "--sample 0.5",
    ],
)
@pytest.mark.parametrize("output", ["{}.jsonl.gz", "{}.parquet"])
def test_conversions_of_a_folder_and_of_a_file_are_the_same_bytes(folder, options, output):
    large("t.dataset")
    writing.write(reading.read("t.dataset"), "t.parquet")
    for source in ("dataset", "parquet"):
        assert run(["convert", f"t.{source}", "-o", output.format(source), "-q", *options.split()]) == 0
    one, other = (Path(output.format(source)) for source in ("dataset", "parquet"))
    assert one.read_bytes() == other.read_bytes()
    assert Path(f"{one}.meta.json").read_bytes() == Path(f"{other}.meta.json").read_bytes()


def test_a_folder_becomes_another_folder_and_never_itself(folder):
    large("t.dataset")
    trace = reading.read("t.dataset")
    assert run(["convert", "t.dataset", "-o", "u/", "-q", "--limit", "500"]) == 0
    assert reading.read("u/") == first_requests(trace, 500)
    assert run(["convert", "t.dataset", "-o", "t.dataset", "-q", "--limit", "500"]) == 2
    assert reading.read("t.dataset") == trace


def test_each_request_is_written_from_a_stream(folder):
    large("t.dataset")
    assert run(["simulate", "t.dataset", "--capacity", "5000", "--per-request", "hits.csv", "--no-gap", "-q"]) == 0
    expected = simulate(reading.read("t.dataset"), 5000).hit_blocks
    lines = Path("hits.csv").read_text().splitlines()
    assert [int(row["hit_blocks"]) for row in csv.DictReader(lines)] == expected.tolist()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("analyze t.dataset --memory 150MB", "Use a machine with more memory"),
        ("curve t.dataset --memory 150MB", "Try --sample 0.01"),
        ("simulate t.dataset --memory 150MB", "--no-gap"),
        ("convert t.dataset -o u/ --memory 150MB", "--memory is 150 MB, but this needs at most"),
        ("convert t.dataset -o u/ --fold 2 --memory 100MB", "which this conversion needs"),
        ("analyze t.dataset --fold 2 --memory 100MB", "Omit --fold"),
        ("simulate t.dataset --engine vllm --memory 9GB", "not supported with engine vllm"),
        ("simulate t.dataset --mode grow --memory 9GB", "not supported with mode grow"),
        ("simulate t.dataset --tiers a=5000 --memory 9GB", "not supported with --tiers"),
        ("simulate t.dataset --over-time 1s --memory 9GB", "not supported with --over-time"),
        ("analyze t.dataset --memory much", "is not a memory size"),
        ("analyze t.parquet --memory 9GB", "is a single file"),
        ("analyze t.dataset --block-size 16", "the block size in the manifest is 512"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_any_row_is_read(folder, capsys, monkeypatch, command, said):
    large("t.dataset")
    writing.write(toy("0 1"), "t.parquet")
    monkeypatch.setattr("kvtrace.formats.dataset.Dataset.chunks", None)
    assert run(command.split()) == 2
    assert said in capsys.readouterr().err and not Path("u").exists()


def test_sizes_of_memory_are_read():
    assert parse_memory("2GB") == 2 * 10**9 and parse_memory("1GiB") == 2**30 and parse_memory("0.5 mb") == 500_000
    for text in ("", "2", "2 blocks", "GB", "-1GB", "1e3GB"):
        with pytest.raises(UsageError, match="not a memory size"):
            parse_memory(text)
    MemoryNeed({"here": 5}).require(5)
    with pytest.raises(UsageError, match="1 MB here"):
        MemoryNeed({"here": 10**6}).require(5)


# -- memory --------------------------------------------------------------------------------------------------------

PEAK = """
import sys
from kvtrace.cli import run
status = run(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("PEAK", status, int(peak) * 1024, file=sys.stderr)
"""

BOUNDED_COMMANDS = [
    "analyze t.dataset --json", "curve t.dataset --json --sample 0.05", "curve t.dataset --json",
    "simulate t.dataset --json --capacity 90% --no-gap", "simulate t.dataset --json --capacity 20% --policy pgdsf",
    "convert t.dataset -o u.dataset", "convert t.dataset -o u.jsonl", "analyze t.dataset --json --fold 4",
]  # fmt: skip
COMMANDS_OF = {"many short": slice(None), "few long": slice(0, None, 2), "outputs": slice(1, None, 2)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to tell the peak")
@pytest.mark.parametrize("shape", ["many short", "few long", "outputs"])
def test_no_process_takes_more_than_the_bound_that_it_said(folder, shape):
    SHAPES[shape]("t.dataset")
    # each command with the shape of most rows, and with another; all with all when it is thorough
    commands = BOUNDED_COMMANDS if drawn(4) > 1 else BOUNDED_COMMANDS[COMMANDS_OF[shape]]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *command.split()], capture_output=True, text=True, env=ENVIRONMENT, check=True
        )
        said = next(line for line in done.stderr.splitlines() if line.startswith("memory"))
        bound = int(said.split("at most ")[1].split(" MB")[0].replace(",", "")) * 10**6
        status, peak = done.stderr.split("PEAK")[1].split()
        assert int(status) == 0 and int(peak) <= bound, (command, said, peak)


def many_short(path, requests=300_000):
    """Conversations of four turns: a root and a block of each turn's own."""
    session = np.arange(requests) % (requests // 4)
    root, own = np.empty(requests, np.int64), np.empty(requests, np.int64)
    quarter = requests // 4
    root[:quarter], own[:quarter] = np.arange(quarter) * 2, np.arange(quarter) * 2 + 1
    root[quarter:] = session[quarter:] * 2
    own[quarter:] = 2 * quarter + np.arange(requests - quarter)
    parent = np.where(np.arange(requests) < quarter, -1, np.arange(requests) - quarter)
    columns = Columns(
        np.arange(requests) * 10.5, np.full(requests, 32), np.full(requests, 7), np.stack([root, own], 1).ravel(),
        np.arange(requests + 1) * 2, session=session, parent=parent,
        extra={"type": np.resize(np.array(["text", "image"], dtype=object), requests)},
    )  # fmt: skip
    with DatasetWriter(path, block_size=16, tail="kept") as writer:
        writer.add(columns)


def few_long(path, requests=800, blocks=5000):
    """Long prompts that share half of the one before."""
    before, fresh = np.empty(0, np.int64), 0
    with DatasetWriter(path, block_size=16, tail="kept", rows=200) as writer:
        for row in range(requests):
            kept = before[: blocks // 2 + row % 100]
            prompt = np.concatenate([kept, np.arange(fresh, fresh + blocks - len(kept))])
            fresh, before = fresh + blocks - len(kept), prompt
            writer.add(Columns([row * 9.0], [blocks * 16], [5], prompt, [0, blocks]))


def outputs(path, requests=100_000):
    """A root that all share, a block of each prompt's own, and two of its output."""
    own = 1 + np.arange(requests) * 3
    columns = Columns(
        np.arange(requests) * 7.0, np.full(requests, 2), np.full(requests, 2),
        np.stack([np.zeros(requests, np.int64), own], 1).ravel(), np.arange(requests + 1) * 2,
        output_ids=np.stack([own + 1, own + 2], 1).ravel(), output_offsets=np.arange(requests + 1) * 2,
    )  # fmt: skip
    with DatasetWriter(path, block_size=1, tail="kept") as writer:
        writer.add(columns)


SHAPES = {"many short": many_short, "few long": few_long, "outputs": outputs}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
