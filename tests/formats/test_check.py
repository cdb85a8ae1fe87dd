"""What is wrong with a trace file, line by line; each rule on a file of a few rows."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, toy
from kvtrace.formats import check
from kvtrace.trace import Columns
from kvtrace.trace.columns import replace_columns
from tests.conftest import drawn
from tests.make_vectors_formats import BROKEN
from tests.strategies import traces


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(*prompts, block_size=4, **keys):
    """A Mooncake file: one prompt a string, full blocks; `7*3` is a tail block 7 of 3 tokens. Keys change columns."""
    lines = []
    for row, prompt in enumerate(prompts):
        words = prompt.split()
        tail = int(words[-1].split("*")[1]) if words and "*" in words[-1] else 0
        tokens = len(words) * block_size - (block_size - tail if tail else 0)
        found = {
            "timestamp": row,
            "input_length": tokens,
            "output_length": 1,
            "hash_ids": [int(w.split("*")[0]) for w in words],
        }
        lines.append(json.dumps(found | {key: values[row] for key, values in keys.items()}) + "\n")
    Path("t.jsonl").write_text("".join(lines))
    return "t.jsonl"


def found(path="t.jsonl", **options):
    """(line, rule) of each violation."""
    return [(violation.line, violation.rule) for violation in check(path, **options)]


def said(path="t.jsonl", **options):
    return [str(violation) for violation in check(path, **options)]


def test_a_sound_file_has_no_violation(folder):
    assert not check(put("0 1 2*3", "0 1 3", "4*1"), block_size=4)
    assert not check(put("1 2 3*3", "1 2 4", "5*1"), block_size=4)  # ids from 1


def test_the_public_conversation_trace_has_no_violation(shared):
    assert not check(shared / "data/mooncake/conversation_trace.jsonl")


@settings(max_examples=30, deadline=None)
@given(
    traces(), st.sampled_from(["t.jsonl", "t.parquet", "t.jsonl.gz"]), st.sampled_from(["mooncake", "bailian", None])
)
def test_what_we_write_has_no_violation(tmp_path_factory, trace, name, format):
    path = tmp_path_factory.mktemp("f") / name
    kvtrace.write(trace, path, format=None if name.endswith("parquet") else format, first_id=7)
    assert not check(path)


def test_times_begin_at_0_and_never_fall(folder):
    path = put("0", "0", "1", timestamp=[5, 3, 4])
    assert said(path, block_size=4) == [
        "t.jsonl:1: the first timestamp is not 0.",
        "t.jsonl:2: the timestamp is less than in the row before.",
    ]


def test_block_counts_fit_the_lengths(folder):
    path = put("0 1", "0 1 2", "3 4", input_length=[8, 8, 13])
    assert said(path, block_size=4) == [
        "t.jsonl:2: 3 hash_ids for 8 tokens; at block size 4 there should be 2.",
        "t.jsonl:3: 2 hash_ids for 13 tokens; at block size 4 there should be 4.",
    ]


def test_a_block_size_that_nothing_tells_is_a_violation(folder):
    assert said(put("0")) == ["t.jsonl: all block sizes from 4 fit its prompts. Try --block-size 4 or 8 or 16 or 32."]
    assert found(put("0 1 2", "0 1", input_length=[9, 90])) == [(2, "block counts")]


def test_ids_are_numbered_by_first_appearance(folder):
    #                      2 before 1      5 is no next number
    assert found(put("0", "0 2", "0 1 2", "0 3 5"), block_size=4) == [(2, "numbering"), (4, "numbering"), (3, "chains")]
    assert found(put("9 10", "9 11"), block_size=4) == [(1, "numbering")]
    assert found(put("0", "-1"), block_size=4) == [(2, "numbering")]


def test_an_id_follows_the_same_id_everywhere(folder):
    #        1 follows 0   1 follows 2   2 begins a prompt, and follows 0
    assert found(put("0 1", "2 1", "0 2"), block_size=4) == [(2, "chains"), (3, "chains")]


def test_an_id_has_one_size(folder):
    #             1 is full    1 has 3 tokens   2 has 3 tokens, and 2
    assert found(put("0 1", "0 1*3", "0 2*3", "0 2*2"), block_size=4) == [(2, "block sizes"), (4, "block sizes")]


def test_lengths_are_not_negative(folder):
    path = put("0", "0", "", input_length=[4, -4, 0], output_length=[1, 1, -1])
    assert found(path, block_size=4) == [(2, "input_length"), (3, "output_length")]


def test_output_blocks_continue_the_prompt(folder):
    #  0 1*3   with 5 tokens of output: full blocks 2 and 3 follow 0
    sound = {"output_length": [5, 1], "output_hash_ids": [[2, 3], []]}
    assert not check(put("0 1*3", "0 2", **sound), block_size=4)
    assert found(put("0 1*3", "0 2", **sound | {"output_length": [4, 1]}), block_size=4) == []
    assert found(put("0 1*3", "0 2", **sound | {"output_length": [9, 1]}), block_size=4) == [(1, "output blocks")]
    assert found(put("0 1*3", "2", **sound), block_size=4) == [(2, "chains")]


def test_parents_exist_and_names_are_borne_once(folder):
    row = {"timestamp": 0.0, "input_length": 16, "output_length": 1, "type": "text", "turn": 1, "hash_ids": [0]}
    names = [(1, 9), (2, 3), (3, -1), (3, -1)]
    lines = [json.dumps({"chat_id": chat, "parent_chat_id": parent} | row) for chat, parent in names]
    Path("t.jsonl").write_text("\n".join(lines))
    assert said(block_size=16) == [
        "t.jsonl:1: the parent is not in the file.",
        "t.jsonl:2: the parent is not an earlier row.",
        "t.jsonl:4: an earlier row has the same chat_id.",
    ]


def test_a_request_without_a_name_is_a_violation(folder):
    row = {"timestamp": 0.0, "input_length": 16, "output_length": 1, "hash_ids": [0]}
    Path("t.jsonl").write_text(json.dumps({"chat_id": 1, "parent_chat_id": -1} | row) + "\n" + json.dumps(row))
    assert found(block_size=16) == [(2, "rows"), (2, "rows")]


def test_broken_rows_are_violations_and_the_others_are_checked(folder):
    put("0", "1", "0", timestamp=[0, 5, 3])
    text = Path("t.jsonl").read_text().splitlines()
    Path("t.jsonl").write_text("\n".join([text[0], "", "{", text[1], "[]", text[2]]))
    assert said(block_size=4) == [
        "t.jsonl:3: the row is not JSON from character 2. A trace has one object on each line. "
        "Try jq -c '.[]' or jq -c .",
        "t.jsonl:5: the row is not a JSON object. A trace has one object on each line.",
        "t.jsonl:6: the timestamp is less than in the row before.",
    ]


@pytest.mark.parametrize("name", sorted(set(BROKEN) - {"several block sizes fit"}))
def test_every_broken_file_has_a_violation(folder, name):
    Path("t.jsonl").write_text(BROKEN[name])
    assert check("t.jsonl")


def test_many_violations_of_a_kind_are_counted(folder):
    path = put(*["0 1"] * 40, block_size=3)
    lines = said(path, block_size=2, max_per_rule=5)
    assert len(lines) == 6 and lines[5] == "t.jsonl: ... and 35 more: block counts."
    Path("t.jsonl").write_text("x\n" * 30)
    assert said()[19:] == ["t.jsonl:20: the row is not JSON from character 1.", "t.jsonl: ... and 10 more: rows.",
                           "t.jsonl: the file has no requests."]  # fmt: skip


def test_a_file_that_cannot_be_read_is_an_error(folder):
    with pytest.raises(InputError, match="no such file"):
        check("gone.jsonl")


def test_the_sidecar_says_block_size_tail_and_first_id(folder):
    trace = kvtrace.Trace([0.0, 1.0], [5, 5], [1, 1], [0, 1, 0, 2], [0, 2, 4], block_size=4, tail="unique")
    kvtrace.write(trace, "t.jsonl", first_id=100)
    assert not check("t.jsonl")
    text = Path("t.jsonl").read_text()
    Path("t.jsonl").write_text(text.replace("102", "101"))
    assert found() == [(1, "tails"), (2, "tails")]
    Path("t.jsonl").write_text(text * 2)
    assert said()[0] == (
        "t.jsonl: the sidecar describes 2 requests, but the file has 4: it belongs to another file. "
        "Delete it or pass --block-size."
    )


def test_rows_kept_in_input_order_are_reported(folder):
    columns = Columns([9.0, 0.0], [2, 2], [1, 1], [0, 1, 0, 2], [0, 2, 4])
    kvtrace.write(columns, "t.jsonl", block_size=1)
    assert found() == [(1, "times"), (2, "times")]


def test_parquet_rows_are_counted_from_1(folder):
    columns = replace_columns(toy("0 1", "0 2"), timestamp=np.array([0.0, -1.0]))
    kvtrace.write(columns, "t.parquet", block_size=1)
    assert said("t.parquet") == ["t.parquet:2: the timestamp is less than in the row before."]


# -- the law: the rules find exactly what a plain walk finds ---------------------------------------------------------


@settings(max_examples=drawn(150), deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6))
def test_numbering_and_chains_equal_a_plain_walk(tmp_path_factory, prompts):
    path = tmp_path_factory.mktemp("f") / "t.jsonl"
    rows = [{"timestamp": 0, "input_length": len(p), "output_length": 1, "hash_ids": p} for p in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reached, parent, gaps, forks = None, {}, set(), set()
    for row, prompt in enumerate(prompts, 1):
        before = -1
        for block in prompt:
            if reached is None:
                first = 1 if block == 1 else 0
                reached = first - 1
            if block > reached + 1 or block < first:
                gaps.add(row)
            reached = max(reached, block)
            if parent.setdefault(block, before) != before:
                forks.add(row)
            before = block
    violations = found(path, block_size=1)
    assert {line for line, rule in violations if rule == "numbering"} == gaps
    assert {line for line, rule in violations if rule == "chains"} == forks
