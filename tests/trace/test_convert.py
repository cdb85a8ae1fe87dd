"""Converting: folded blocks, windows, samples, speed; and the command around them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace._base.units import milliseconds
from kvtrace.cli import run
from kvtrace.trace.building import toy
from kvtrace.trace.columns import TAILS, Columns, replace_columns
from kvtrace.trace.conversion import convert, first, fold, sample_rows, sample_sessions, speed_up, window
from kvtrace.trace.trace import Trace
from tests import unaudited
from tests.strategies import traces


def numbered(requests, block_size, tail, outputs):
    """The trace of (prompt, output) tokens, in the plainest Python: one id a distinct prefix, tails by their rule."""
    number, rows = {}, {"hash_ids": [], "output_ids": []}

    def ids(tokens, first_block, owner):
        ends = range(block_size, len(tokens) + block_size, block_size)
        found = []
        for end in list(ends)[first_block:]:
            partial = end > len(tokens)
            if not (partial and tail == "dropped"):
                key = owner if partial and tail == "unique" else tuple(tokens[:end])
                found.append(number.setdefault(key, len(number)))
        return found

    for row, (prompt, output) in enumerate(requests):
        rows["hash_ids"].append(ids(prompt, 0, ("prompt", row)))
        both = ids(prompt + output, len(prompt) // block_size, ("output", row)) if output else []
        rows["output_ids"].append(both)
    columns = Columns(
        np.arange(len(requests)), [len(prompt) for prompt, _ in requests], [len(output) for _, output in requests],
        *ragged(rows["hash_ids"]),
    )  # fmt: skip
    if outputs:
        columns.output_ids, columns.output_offsets = ragged(rows["output_ids"])
    return Trace.from_columns(columns, block_size=block_size, tail=tail)


def ragged(lists):
    ids = np.array([block for row in lists for block in row], dtype=np.int64)
    return ids, np.concatenate([[0], np.cumsum([len(row) for row in lists], dtype=np.int64)])


tokens = st.lists(st.integers(0, 1), max_size=14)
requests = st.lists(st.tuples(tokens, st.lists(st.integers(0, 1), max_size=5)), min_size=1, max_size=8)


@given(requests, st.integers(1, 4), st.integers(1, 4), st.sampled_from(TAILS), st.booleans())
def test_folding_is_the_same_as_cutting_the_tokens_into_larger_blocks(requests, block_size, factor, tail, outputs):
    fine = numbered(requests, block_size, tail, outputs)
    assert fold(fine, factor) == numbered(requests, block_size * factor, tail, outputs)


def test_a_group_goes_by_its_last_id_and_a_partial_group_too():
    #  blocks of 1:  0 1 2 | 3 4      in threes:  0 | 1
    #                0 1 2 | 3 5                  0 | 2
    #                0 1 2                        0
    folded = fold(toy("0 1 2 3 4", "0 1 2 3 5", "0 1 2"), 3)
    assert folded.hash_ids.tolist() == [0, 1, 0, 2, 0] and folded.block_size == 3
    assert folded.prompt_blocks.tolist() == [2, 2, 1]


def test_a_unique_tail_stays_unique_when_full_blocks_become_a_tail():
    #  blocks of 2, no tails: both prompts are 0 1 2; in blocks of 4 their last block is half full
    columns = replace_columns(toy("0 1 2", "0 1 2", block_size=2))
    trace = Trace.from_columns(columns, block_size=2, tail="unique")
    assert fold(trace, 2).hash_ids.tolist() == [0, 1, 0, 2]


def test_dropped_tails_leave_complete_groups_only():
    columns = Columns([0.0], [7], [1], [0, 1, 2], [0, 3])
    assert fold(Trace.from_columns(columns, block_size=2, tail="dropped"), 2).hash_ids.tolist() == [0]


def test_an_output_continues_the_prompt_in_larger_blocks():
    #  prompt 0 1 2, output 3 4 5: in twos the prompt is (01)(2.), and the output's chain goes on after (01): (23)(45)
    columns = Columns([0.0], [3], [3], [0, 1, 2], [0, 3], output_ids=[3, 4, 5], output_offsets=[0, 3])
    folded = fold(Trace.from_columns(columns, block_size=1), 2)
    assert folded.hash_ids.tolist() == [0, 1] and folded.output_ids.tolist() == [2, 3]


def test_unchained_ids_are_not_folded_until_they_are_chained():
    trace = toy("0 1", "2 1")
    with pytest.raises(InputError, match="--chain"):
        fold(trace, 2)
    assert fold(trace.chained(), 2).hash_ids.tolist() == [0, 1]


@pytest.mark.parametrize("factor", [0, -2, 1.5, True])
def test_only_whole_factors_fold(factor):
    with pytest.raises(UsageError, match="whole number"):
        fold(toy("0 1"), factor)


@given(traces(unknown_outputs=True), st.integers(1, 3), st.integers(1, 3))
def test_folding_twice_is_folding_by_the_product(trace, a, b):
    assert fold(fold(trace, a), b) == fold(trace, a * b)


@given(traces(unknown_outputs=True), st.integers(1, 4), st.data())
def test_selecting_and_folding_commute(trace, factor, data):
    rows = data.draw(st.lists(st.sampled_from(range(len(trace))), unique=True, min_size=1))
    assert fold(trace.select(rows), factor) == fold(trace, factor).select(rows)


def test_larger_blocks_hit_less():
    fine = toy("0 1 2 3", "0 1 2 4")
    assert kvtrace.trace.unlimited_hits(fine).tolist() == [0, 3]
    assert kvtrace.trace.unlimited_hits(fold(fine, 2)).tolist() == [0, 1]


def test_a_window_begins_at_zero_again():
    part = window(toy("0", "1", "2", "3", gap_ms=100.0), 100.0, 300.0)
    assert part.timestamp.tolist() == [0.0, 100.0] and part.hash_ids.tolist() == [0, 1]


def test_a_window_without_requests_is_told():
    with pytest.raises(UsageError, match="none of the 2 requests"):
        window(toy("0", "1", gap_ms=1000.0), 5000.0)
    with pytest.raises(UsageError, match="at least 0"):
        window(toy("0"), 5.0, 5.0)


def in_sessions(sessions):
    columns = replace_columns(toy(*map(str, range(len(sessions)))), session=sessions)
    return Trace.from_columns(columns, block_size=1)


def test_sessions_are_kept_whole_or_not_at_all():
    trace = in_sessions(np.repeat(np.arange(50), 4)[np.random.default_rng(1).permutation(200)])
    part = sample_sessions(trace, 0.4, np.random.default_rng(3))
    assert 0 < len(part) < 200 and set(np.bincount(part.session)) == {4}


def test_a_request_of_no_session_is_one_by_itself():
    part = sample_sessions(in_sessions([-1] * 40), 0.5, np.random.default_rng(3))
    assert 0 < len(part) < 40 and set(part.session.tolist()) == {-1}


def test_without_sessions_only_rows_can_be_sampled():
    with pytest.raises(UsageError, match="--sample"):
        sample_sessions(toy("0"), 0.5, np.random.default_rng())


@given(traces(unknown_outputs=True), st.floats(0.05, 1.0), st.integers(0, 2**32))
def test_a_larger_share_keeps_the_same_rows_and_more(trace, share, seed):
    def kept(share):
        named = replace_columns(trace, extra={"row": np.arange(len(trace))})
        named = Trace.from_columns(named, block_size=trace.block_size, tail=trace.tail)
        try:
            return set(sample_rows(named, share, np.random.default_rng(seed)).extra["row"].tolist())
        except UsageError:
            return set()

    assert kept(share / 2) <= kept(share) <= kept(1.0) == set(range(len(trace)))


def test_the_same_seed_draws_the_same_sample():
    trace = toy(*map(str, range(100)))
    assert convert(trace, row_share=0.3, seed=7) == convert(trace, row_share=0.3, seed=7)
    assert len(convert(trace, row_share=0.3, seed=7)) != len(convert(trace, row_share=0.3, seed=8))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_more_than_nothing_and_at_most_all(share):
    with pytest.raises(UsageError, match="share"):
        convert(toy("0"), row_share=share)


def test_speed_keeps_fractions_of_a_millisecond_and_order():
    fast = speed_up(toy(*map(str, range(5)), gap_ms=3.0), 1000.0)
    assert fast.timestamp.tolist() == pytest.approx([0.0, 0.003, 0.006, 0.009, 0.012])
    with pytest.raises(UsageError, match="above 0"):
        speed_up(fast, 0.0)


def test_the_first_requests_are_kept():
    assert len(first(toy("0", "1", "2"), 2)) == 2 and len(first(toy("0"), 9)) == 1
    with pytest.raises(UsageError, match="at least 1"):
        first(toy("0"), 0)


def test_steps_come_in_one_order():
    #  times 0 100 200 300: from 100 on, the first two of them, folded, twice as fast
    trace = toy("0 1", "2 3", "2 4", "5 6", gap_ms=100.0)
    part = convert(trace, start_ms=100.0, limit=2, factor=2, ratio=2.0)
    assert part.timestamp.tolist() == [0.0, 50.0] and part.hash_ids.tolist() == [0, 1] and part.block_size == 2


@given(traces(unknown_outputs=True))
def test_no_step_is_the_trace_itself(trace):
    assert convert(trace) == trace


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("30s", 30_000), ("10m", 600_000), ("1.5h", 5_400_000), ("1 d", 86_400_000)]
)
def test_durations_have_units(text, ms):
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "10", "m", "-3s", "1e3s", "10 fortnights"])
def test_a_duration_without_a_unit_is_refused(text):
    with pytest.raises(UsageError, match="not a duration"):
        milliseconds(text)


# -- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace = toy("0 1", "0 2", "0 1 3", "4", gap_ms=60_000.0, block_size=16)
    unaudited.write(trace, path, meta={"profile": "exact", "counts": {"requests": 4}, "figures": {"requests": 4}})
    return path


def test_a_window_in_minutes_folded_and_renumbered(file, tmp_path):
    out = tmp_path / "part.jsonl"
    options = ["--start", "1m", "--stop", "3m", "--fold", "2", "--first-id", "5", "-q"]
    assert run(["convert", str(file), "-o", str(out), *options]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["hash_ids"] for row in rows] == [[5], [6, 7]] and rows[1]["timestamp"] == 60_000
    assert kvtrace.read(out).block_size == 32


def test_a_sidecar_says_what_was_done_and_not_how_much_was_left_out(file, tmp_path):
    out = tmp_path / "part.jsonl"
    assert run(["convert", str(file), "-o", str(out), "--limit", "2", "--fold", "2", "--speedup-ratio", "4", "-q"]) == 0
    meta = json.loads((tmp_path / "part.jsonl.meta.json").read_text())
    assert meta["converted"] == {"folded_from": 16, "speedup_ratio": 4.0, "part": True}
    assert not {"profile", "release", "counts", "figures"} & meta.keys()


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t.parquet"])
def test_formats_and_packing_are_told_by_the_name(file, tmp_path, name):
    out = tmp_path / name
    assert run(["convert", str(file), "-o", str(out), "-q"]) == 0
    assert kvtrace.read(out) == kvtrace.read(file)


def test_sessions_cross_to_mooncake_when_asked_to(tmp_path):
    columns = replace_columns(toy("0", "1", block_size=4), session=[0, 0], extra={"type": np.array(["a", "b"], object)})
    source, out = tmp_path / "s.parquet", tmp_path / "t.jsonl"
    kvtrace.write(Trace.from_columns(columns, block_size=4), source)
    assert run(["convert", str(source), "-o", str(out), "--extra", "-q"]) == 0
    assert kvtrace.read(out).session.tolist() == [0, 0] and kvtrace.read(out).extra["type"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--to", "xml"], 2, "'xml' is not a format or a client"),
        (["--start", "10"], 2, "not a duration"),
        (["--start", "1h"], 2, "none of the 4 requests"),
        (["--sample", "0"], 2, "share"),
        (["--sample-sessions", "0.5"], 2, "no sessions"),
        (["--fold", "0"], 2, "whole number"),
        (["--fold", "1" + "0" * 30], 2, "blocks can have at most"),
        (["--speedup-ratio", "0"], 2, "above 0"),
        (["--block-size", "8"], 2, "sidecar states 16"),
    ],
)
def test_what_cannot_be_converted_is_told_in_one_line(file, tmp_path, capsys, options, status, expected):
    out = tmp_path / "part.jsonl"
    assert run(["convert", str(file), "-o", str(out), *options]) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and expected in lines[0] and not out.exists()


def test_from_a_pipe_for_a_client_into_a_pipe(file):
    command = [sys.executable, "-m", "kvtrace", "convert", "-", "-o", "-", "--to", "vidur", "--block-size", "16"]
    done = subprocess.run(command, input=file.read_bytes(), capture_output=True)
    assert done.returncode == 0 and done.stdout.splitlines()[1] == b"0,32,1" and b"FILE" in done.stderr


def test_unchained_files_are_folded_with_chain_only(tmp_path, capsys):
    path, out = tmp_path / "t.jsonl", tmp_path / "out.jsonl"
    kvtrace.write(toy("0 1", "2 1", block_size=16), path)
    assert run(["convert", str(path), "-o", str(out), "--fold", "2"]) == 3
    assert "--chain" in capsys.readouterr().err and not out.exists()
    assert run(["convert", str(path), "-o", str(out), "--fold", "2", "--chain", "-q"]) == 0


def test_the_conversation_trace_folds_as_its_tokens_would(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    folded = fold(trace, 4)
    assert folded.block_size == 2048 and len(folded.hash_ids) == int(np.ceil(trace.input_length / 2048).sum())
    fine, coarse = kvtrace.trace.unlimited_hits(trace), kvtrace.trace.unlimited_hits(folded)
    full = np.minimum(fine, trace.full_blocks)  # a hit of a full prefix of blocks is one of the groups within it
    assert (np.minimum(coarse, folded.full_blocks) == full // 4).all()
