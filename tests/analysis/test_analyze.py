"""What a trace is like: the golden table, hand-worked cases, laws, and the commands that print it."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kvtrace
from kvtrace import cli
from kvtrace._native import forest as kernel
from kvtrace.analysis import reuse, session_statistics, summary_tables
from kvtrace.analysis.arrivals import arrival_statistics, dispersion
from kvtrace.analysis.block_sizes import by_block_size, each_block_size
from kvtrace.analysis.distribution import FIGURES, Distribution
from kvtrace.analysis.reuse import count_uses
from kvtrace.analysis.summary import DISTRIBUTIONS, analyze, basics
from kvtrace.cli import datagen
from kvtrace.serving.models.layers import chosen, kv_bytes_per_token
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.hits import unlimited_hits
from kvtrace.trace.trace import Trace
from tests.reference import uses as slow
from tests.strategies import traces

GOLDEN = {  # both tools agree on these
    "input_length": (12035.061341534369, 15800.344851301792, 891, 2306.5, 6909, 15367, 126195),
    "context_length": (6373.585487490649, 12024.627428204118, 512, 512, 1536, 7168, 122880),
    "unique_prompt_length": (5661.475854043721, 12353.496775322432, 0, 350, 594, 6071.5, 125683),
    "output_length": (342.6189011719724, 249.90803456204557, 1, 156.5, 350, 472, 2000),
    "request_hit_rate": (0.38425808746366197, 0.33651244604875785, 0, 1 / 15, 1 / 3, 2 / 3, 1),
}


def prompts_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


def with_blocks(trace):
    return len(trace.hash_ids) > 0


@pytest.fixture
def conversation(shared):
    return shared / "data/mooncake/conversation_trace.jsonl"


def test_the_golden_table_to_the_last_digit(conversation):
    found = basics(kvtrace.read(conversation))
    for name, figures in GOLDEN.items():
        assert getattr(found, name).figures() == figures, name
    assert (found.requests, found.blocks, found.distinct_blocks, found.prefix_groups) == (12031, 288500, 182790, 1)
    assert found.reuse_ratio == 0.519424610051993
    rates = found.hits.block_hit_rate, found.hits.token_hit_rate
    assert rates == pytest.approx((0.36641, 0.37362), abs=5e-6)


def test_every_figure_of_a_small_trace():
    #  0 1 2   0 and 1 occur again, 2 does not: context 2 of 3 blocks
    #  0 1 3   hits 2 of 3
    #  4       nothing;  then all of it again: context is the whole prompt, 3 tokens of a block of 4
    columns = Columns([0, 0, 1000, 3000], [12, 11, 3, 3], [1, 2, 3, 4], [0, 1, 2, 0, 1, 3, 4, 4], [0, 3, 6, 7, 8])
    found = basics(Trace.from_columns(columns, block_size=4))
    assert (found.requests, found.blocks, found.distinct_blocks, found.prefix_groups) == (4, 8, 5, 2)
    assert (found.repeated_blocks, found.reuse_ratio) == (6, 0.75)
    assert found.context_length == Distribution.of(np.array([8, 8, 3, 3]))
    assert found.unique_prompt_length == Distribution.of(np.array([4, 3, 0, 0]))
    assert found.request_hit_rate == Distribution.of(np.array([0, 2 / 3, 0, 1]))
    assert (found.hits.hit_blocks, found.hits.hit_tokens) == (3, 8 + 3)


@given(traces().filter(with_blocks))
def test_basics_equal_datagens_definitions(trace):
    found, (counts, hits, _) = basics(trace), slow.walk(prompts_of(trace))
    context = slow.context(prompts_of(trace), trace.input_length.tolist(), trace.block_size)
    assert found.context_length == Distribution.of(np.array(context))
    assert found.unique_prompt_length == Distribution.of(trace.input_length - np.array(context))
    assert found.hits.hit_blocks == sum(hits) and found.distinct_blocks == len(counts)
    firsts = [prompt[0] for prompt in prompts_of(trace) if prompt]
    assert found.prefix_groups == sum(firsts.count(block) > 1 for block in set(firsts))
    assert found.repeated_blocks == sum(count for count in counts.values() if count > 1)


@given(traces())
def test_the_walk_equals_its_twin(trace):
    found, (counts, hits, bands) = count_uses(trace), slow.walk(prompts_of(trace))
    assert found.uses.tolist() == [counts[block] for block in range(trace.distinct)]
    assert found.hit_blocks.tolist() == hits == unlimited_hits(trace).tolist()
    filled = {band: tuple(column) for band, column in enumerate(found.by_depth.T.tolist()) if any(column)}
    assert filled == bands
    assert found.repeated_blocks.tolist() == [sum(counts[block] > 1 for block in p) for p in prompts_of(trace)]


def test_the_walk_refuses_ids_it_has_no_place_for():
    for ids in ([2], [-1]):
        with pytest.raises(ValueError, match="not below"):
            kernel.walk(np.array(ids), np.array([0, 1]), 2)
        with pytest.raises(ValueError, match="not below"):
            kernel.repeated(np.array(ids), np.array([0, 1]), np.ones(2, dtype=np.int32))


@given(traces().filter(with_blocks))
def test_hits_and_distinct_blocks_make_up_all_blocks(trace):
    found = analyze(trace)
    basic, bands = found.basics, found.sharing_by_depth
    assert basic.hits.hit_blocks + basic.distinct_blocks == basic.blocks
    assert found.popularity.reuses == basic.hits.hit_blocks
    assert found.reuse_distance.count == found.reuse_time_ms.count == basic.hits.hit_blocks
    assert sum(band.blocks for band in bands) == basic.distinct_blocks
    assert sum(band.references for band in bands) == basic.blocks
    assert sum(band.shared_blocks for band in bands) == found.popularity.reused_blocks


@given(traces().filter(with_blocks), st.sampled_from([2, 3]))
def test_larger_blocks_never_hit_more_tokens(trace, factor):
    small, large = by_block_size(trace, [1, factor])
    # a partial tail that was shared counts whole at any size, so only traces without tails obey the law in full
    if not (trace.input_length % (factor * trace.block_size)).any():
        assert large.hits.hit_tokens <= small.hits.hit_tokens
    assert large.block_size == factor * small.block_size and large.blocks <= small.blocks


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=20), st.floats(0, 1))
def test_counted_values_are_repeated_values(pairs, quantile):
    assume(any(count for _, count in pairs))
    values, counts = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    counted = Distribution.of_counted(values, counts, [quantile])
    repeated = Distribution.of(np.repeat(values, counts), [quantile])
    assert counted.count == repeated.count
    assert counted.figures() == pytest.approx(repeated.figures(), rel=1e-9, abs=1e-9)
    assert counted.quantiles == pytest.approx(repeated.quantiles, rel=1e-9, abs=1e-9)


def test_of_no_values_nothing_is_said():
    nothing = np.array([], dtype=np.int64)
    assert set(Distribution.of(nothing).figures()) == {None}
    assert Distribution.of(nothing) == Distribution.of_counted(nothing, nothing) == Distribution(0)


def test_popularity_is_of_the_most_used_blocks():
    #  block 0 three times, 1 twice, 2 3 once: 2 + 1 reuses; the top tenth of four blocks is one block
    found = reuse.block_popularity(toy("0 1 2", "0 1", "0 3"))
    assert (found.reuses, found.reused_blocks, found.most_used) == (3, 2, 3)
    assert found.top_share == {0.01: 2 / 3, 0.1: 2 / 3}


@given(traces().filter(with_blocks), st.sampled_from([0.01, 0.1]))
def test_the_share_of_the_top_is_that_of_sorted_blocks(trace, share):
    counts = np.sort([count for count in count_uses(trace).uses if count])[::-1] - 1
    wanted = counts[: max(1, round(share * len(counts)))].sum() / max(1, counts.sum())
    assert reuse.block_popularity(trace).top_share[share] == wanted


def test_arrivals_of_a_steady_clock_are_even():
    found = arrival_statistics(toy(*["0"] * 31, gap_ms=100))
    assert (found.duration_ms, found.gap_ms.std, found.gap_cv) == (3000, 0, 0)
    assert found.requests_per_second == pytest.approx(31 / 3)
    assert found.dispersion == {1: 0.0, 10: None, 60: None}
    assert found.concurrency == 31 * 30 / 3000


def test_all_at_once_has_no_rate():
    found = arrival_statistics(toy("0", "1", gap_ms=0))
    assert (found.requests_per_second, found.concurrency, found.gap_cv) == (None, None, None)
    assert dispersion(np.array([]), 1000) is None


def test_turns_grow_and_hit():
    trace = toy("0 1", "5", "0 1 2 3", "6", gap_ms=10)
    columns = Columns(trace.timestamp, trace.input_length, trace.output_length, trace.hash_ids, trace.offsets,
                      session=[0, 1, 0, -1], parent=[-1, -1, 0, -1])  # fmt: skip
    chats = Trace.from_columns(columns, block_size=1)
    found = session_statistics.session_statistics(chats, unlimited_hits(chats))
    assert (found.sessions, found.requests_in_sessions, found.turns.max) == (2, 3, 2)
    assert (found.growth.mean, found.turn_gap_ms.mean, found.think_ms) == (2, 20, None)
    assert [(group.name, group.hits.requests, group.hits.hit_blocks) for group in found.by_turn] == [
        ("1", 2, 0), ("2", 1, 2)]  # fmt: skip


def test_types_are_apart_the_most_frequent_first():
    trace = toy("0 1", "0 2", "0 3")
    trace.extra = {"type": np.array(["b", "a", "a"], dtype=object)}
    groups = session_statistics.by_type(trace, unlimited_hits(trace))
    assert [(group.name, group.hits.hit_blocks) for group in groups] == [("a", 2), ("b", 0)]


def test_rare_types_are_counted_together():
    trace = toy(*["0"] * 23)
    trace.extra = {"type": np.array([f"t{row:02}" for row in range(23)], dtype=object)}
    groups = session_statistics.by_type(trace, unlimited_hits(trace))
    assert len(groups) == 21 and (groups[-1].name, groups[-1].hits.requests) == ("(others)", 3)


def test_what_outputs_leave_behind_is_a_hit_of_its_own():
    #  prompt 0 and output 1; then the prompt 0 1: one hit, two where outputs stay
    columns = Columns([0, 1], [1, 2], [1, 0], [0, 0, 1], [0, 1, 3], output_ids=[1], output_offsets=[0, 1, 1])
    found = analyze(Trace.from_columns(columns, block_size=1))
    assert (found.basics.hits.hit_blocks, found.hits_with_outputs.hit_blocks) == (1, 2)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_attention_heads": 32, "num_hidden_layers": 32, "hidden_size": 4096}, 2 * 32 * 4096 * 2),
        ({"num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 2, "head_dim": 8,
          "torch_dtype": "float32"}, 2 * 2 * 8 * 4),
        ({"text_config": {"num_hidden_layers": 3, "kv_lora_rank": 5, "qk_rope_head_dim": 2}}, 3 * 7 * 2),
    ],
)  # fmt: skip
def test_kv_bytes_of_each_kind_of_attention(config, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_bytes_per_token(config) == kv_bytes_per_token(tmp_path / "config.json") == expected
    assert chosen(tmp_path / "config.json", None) == expected


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_hidden_layers": true}', '{"num_hidden_layers": 1}'])
def test_a_config_that_lacks_something_says_what(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(kvtrace.InputError, match=r"config\.json: .* Try "):
        kv_bytes_per_token(tmp_path / "config.json")


# -- the order of the rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "session", "is_reversed"),
    [([30, 20, 10], None, True), ([30, 20, 20], None, True), ([30, 10, 20], None, False), ([20, 10], None, False),
     ([10, 20, 30], None, False), ([20, 40, 10, 30], [0, 1, 0, 1], True), ([20, 40, 10, 50], [0, 1, 0, 1], False),
     ([20, 40, 10, 30], [0, 1, -1, -1], False), ([30, 30, 40, 20], [0, 0, 1, -1], False)],
)  # fmt: skip
def test_rows_in_reverse_time_order_are_named(times, session, is_reversed):
    count = len(times)
    columns = Columns(times, [1] * count, [1] * count, range(count), range(count + 1), session=session)
    trace = Trace.from_columns(columns, block_size=1)
    assert trace.fixes.is_reversed == is_reversed
    assert ("newest first" in str(trace.fixes)) == is_reversed
    assert any("reverse time order" in note for note in analyze(trace).notes) == is_reversed


def test_analyze_prints_that_a_trace_came_newest_first(tmp_path, capsys):
    rows = [{"timestamp": at, "input_length": 16, "output_length": 1, "hash_ids": [0]} for at in (30, 20, 10, 0)]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    assert cli.run(["analyze", str(tmp_path / "new.jsonl"), "--block-size", "16"]) == 0
    assert capsys.readouterr().out.endswith(
        "The rows came in reverse time order (newest first) and were sorted by time.\n"
    )
    assert json_of(capsys, str(tmp_path / "new.jsonl"), "--block-size", "16")["notes"]


def test_contexts_that_shrink_turn_by_turn_are_named():
    #  a log without times was numbered from its newest request on
    prompts = [" ".join(map(str, range(length))) for length in range(20, 5, -1)]
    trace = toy(*prompts)
    trace = Trace.from_columns(replace_columns(trace, session=np.zeros(len(trace), dtype=np.int64)), block_size=1)
    assert "may run backwards" in analyze(trace).notes[0]
    assert analyze(trace[:10]).notes == []  # nine turns are too few


# -- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    kvtrace.write(toy("0 1 2 3", "0 1 2 4", "5", "0 1 2 3", block_size=16), tmp_path / "small.jsonl")
    return str(tmp_path / "small.jsonl")


def json_of(capsys, *arguments):
    assert cli.run(["analyze", *arguments, "--json"]) == 0
    return orjson.loads(capsys.readouterr().out)


def test_json_has_the_keys_that_are_promised(small, capsys):
    found = json_of(capsys, small)
    assert found["schema"] == 2 and found["requests"] == 4 and found["block_hit_rate"] == 7 / 13
    assert {"blocks", "distinct_blocks", "token_hit_rate", *DISTRIBUTIONS} <= found.keys()
    assert all(set(FIGURES) <= found[name].keys() for name in DISTRIBUTIONS)
    assert found == orjson.loads(orjson.dumps(analyze(kvtrace.read(small)).to_dict()))


def test_basic_is_a_part_of_everything(small, capsys):
    whole, basic = json_of(capsys, small), json_of(capsys, small, "--basic")
    assert basic.items() <= whole.items() and "popularity" in whole and "popularity" not in basic


def test_options_add_to_what_is_said(small, capsys):
    found = json_of(capsys, small, "--quantiles", "0.5,0.999", "--fold", "1,2", "--kv-bytes-per-token", "10")
    assert found["input_length"]["q0.5"] == found["input_length"]["median"] and "q0.999" in found["reuse_distance"]
    assert [(size["block_size"], size["hit_blocks"]) for size in found["by_block_size"]] == [(16, 7), (32, 3)]
    assert found["working_set_bytes"] == found["distinct_blocks"] * 16 * 10
    assert json_of(capsys, small, "--ms-per-token", "60")["arrivals"]["ms_per_token"] == 60


def test_a_pipe_gets_plain_text_that_is_not_wrapped(small):
    code = "from kvtrace.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "analyze", small, "--fold", "2", "--quantiles", "0.9,0.99"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "\x1b" not in done.stdout and done.stderr == ""
    for title in ("Trace", "Hit rates without eviction", "Reuse", "Popularity", "Arrivals", "By block size"):
        assert f"\n{title}\n" in f"\n{done.stdout}"
    assert len(done.stdout.splitlines()[-1].split()) == 6


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--quantiles", "0.9,2"], "quantiles"),
        (["--quantiles", ""], "quantiles"),
        (["--fold", "0"], "factors"),
        (["--fold", "1.5"], "factors"),
        (["--model-config", "x", "--kv-bytes-per-token", "3"], "cannot be combined"),
        (["--model-config", "no-such.json"], "no-such.json"),
    ],
)
def test_options_that_make_no_sense_are_status_2(small, capsys, options, expected):
    assert cli.run(["analyze", small, *options]) == 2
    said = capsys.readouterr()
    assert said.out == "" and expected in said.err and len(said.err.splitlines()) == 1


@pytest.mark.parametrize("command", [["analyze"], ["analyze", "--basic"]])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no requests"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n', "no hash_ids"),
        ('{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [0, 1]}\n'
         '{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [2, 1]}\n', "`--chain`"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 1]}\n', "at block size 2 there"),
    ],
)  # fmt: skip
def test_what_cannot_be_analyzed_is_one_line_and_status_3(tmp_path, capsys, text, expected, command):
    (tmp_path / "bad.jsonl").write_text(text)
    assert cli.run([*command, str(tmp_path / "bad.jsonl"), "--block-size", "2"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and expected in said.err and len(said.err.splitlines()) == 1


def test_chain_makes_a_forest_of_ids_hashed_alone(tmp_path, capsys):
    row = '{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [%d, 1]}\n'
    (tmp_path / "loose.jsonl").write_text(row % 0 + row % 2 + row % 0)
    found = json_of(capsys, str(tmp_path / "loose.jsonl"), "--block-size", "2", "--chain")
    assert (found["distinct_blocks"], found["hit_blocks"]) == (4, 2)


def test_a_type_cannot_steer_the_terminal():
    trace = toy("0", "0")
    trace.extra = {"type": np.array(["\x1b[2J[red]", "\x1b[2J[red]"], dtype=object)}
    from rich.console import Console

    console = Console(width=200, no_color=True)
    with console.capture() as kept:
        console.print(summary_tables.group_table("By type", "type", analyze(trace).by_type))
    assert "\x1b[2J" not in kept.get() and "[red]" in kept.get()


def run_datagen(*arguments):
    return cli.run(list(arguments), datagen.commands, "datagen")


def test_datagen_prints_its_own_table(small, capsys):
    assert run_datagen("analyze", "--input-file", small, "--block-size", "16") == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[2:]] == [
        "Input Length", "Context Length", "Unique Prompt Length", "Output Length", "Theoretical Hit Rates"]  # fmt: skip
    assert lines[1][-1].strip() == "Max" and lines[2][-1].strip() == "64.00"


def test_datagen_fails_as_kvtrace_does(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_datagen("analyze") == 3 and "mooncake_trace.jsonl: no such file" in capsys.readouterr().err
    (tmp_path / "small.jsonl.meta.json").unlink()
    assert run_datagen("analyze", "--input-file", small) == 3 and "Try --block-size 16" in capsys.readouterr().err
    assert run_datagen("synthesise") == 2 and "Try datagen --help" in capsys.readouterr().err


# -- odd times -------------------------------------------------------------------------------------------------------


def test_dispersion_counts_empty_windows_without_holding_them():
    times = np.array([0.0, 500.0, 2500.0, 10_000_000.0])
    plain = np.bincount((times // 1000).astype(int))[:10_000]
    assert dispersion(times, 1000) == pytest.approx(plain.var() / plain.mean())


def test_one_odd_time_costs_no_memory():
    times = np.append(np.arange(60) * 10.0, 2.0**53)  # 9e12 windows of a second
    tracemalloc.start()
    assert dispersion(times, 1000) == pytest.approx(60)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@given(traces(), st.sampled_from([[1, 2, 4, 8], [2, 3, 6], [4, 2, 1], [3, 3]]))
def test_folding_in_steps_gives_the_hits_of_folding_at_once(trace, factors):
    assert list(each_block_size(trace, factors)) == [by_block_size(trace, [factor])[0] for factor in factors]
