"""Texts of ids and ids of texts: lengths and sharing survive the way to text and back."""

import json
import runpy
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace import InputError, Trace, UsageError, read, toy
from kvtrace.text.prompts import PromptBuilder, hashes_to_texts, texts_to_hashes
from kvtrace.text.prompts.blocks import PromptBlocks
from kvtrace.text.prompts.bodies import DAG, FORMS
from kvtrace.text.prompts.words import LOREM, WordList
from kvtrace.text.prompts.writing import Verifier, write_prompts
from kvtrace.text.tokenizers import load
from kvtrace.trace.columns import Columns
from tests.conftest import ROOT
from tests.strategies import traces

TINY = str(ROOT / "tests/data/tokenizers/tiny/tokenizer.json")
DEEPSEEK = load("deepseek-r1")


@pytest.fixture(scope="module", params=["deepseek-r1", TINY], ids=["deepseek-r1", "tiny"])
def tokenizer(request):
    return DEEPSEEK if request.param == "deepseek-r1" else load(request.param)


def run(*arguments):
    """The exit status of `kvtrace texts` with these arguments."""
    from kvtrace.cli import run as run_command

    return run_command(["texts", *map(str, arguments)])


def ids_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


# -- texts -> ids ------------------------------------------------------------------------------------------------


def test_ids_are_consecutive_and_equal_for_equal_prefixes_tail_included():
    #  tokens: One two | three four      -> 0 1
    #          One two | three five      -> 0 2
    #          One two | three           -> 0 3: a partial block is none of a full one's beginning
    #          two     | ...             -> the same tokens after another block are another block
    texts = ["One two three four", "One two three five", "One two three", "three four three four"]
    assert texts_to_hashes(DEEPSEEK, texts, 2)[:3] == [[0, 1], [0, 2], [0, 3]]
    assert texts_to_hashes(DEEPSEEK, texts, 2)[3][0] == 4


def test_an_empty_text_has_no_block():
    assert texts_to_hashes(DEEPSEEK, ["", "a"], 4) == [[], [0]]


def test_no_special_token_is_added(tokenizer):
    text = " in in"
    assert len(texts_to_hashes(tokenizer, [text], 1)[0]) == len(tokenizer.encode(text))


def test_blocks_of_no_tokens_are_refused():
    with pytest.raises(UsageError, match="block size is 0"):
        texts_to_hashes(DEEPSEEK, ["a"], 0)


# -- ids -> texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", ["none", "bos", "eos"])
@settings(max_examples=25, deadline=None)
@given(trace=traces(outputs=False))
def test_texts_of_a_trace_have_its_ids(tokenizer, separator, trace):
    ids = ids_of(trace)
    made_up = hashes_to_texts(tokenizer, ids, trace.input_length, trace.block_size, separator=separator)
    assert [len(tokenizer.encode(text)) for text in made_up] == trace.input_length.tolist()
    assert texts_to_hashes(tokenizer, made_up, trace.block_size) == ids


@settings(max_examples=25, deadline=None)
@given(trace=traces(outputs=False), seed=st.integers(0, 2**64))
def test_the_verifier_finds_every_row_exact(tokenizer, trace, seed):
    blocks = PromptBlocks.of_trace(trace)
    prompts, verifier = PromptBuilder(blocks, WordList.of(tokenizer), seed=seed), Verifier(blocks)
    verifier.add(0, *tokenizer.encode_batch([prompts.text(row) for row in range(len(trace))]))
    assert verifier.exact() == len(trace)


def test_the_separator_is_the_first_token_of_each_block():
    tokenizer = DEEPSEEK
    (text,) = hashes_to_texts(tokenizer, [[0, 1, 2]], [10], 4, separator="bos")
    bos = tokenizer.encode("<｜begin▁of▁sentence｜>")[0]
    assert np.flatnonzero(tokenizer.encode(text) == bos).tolist() == [0, 4, 8]


def test_siblings_too_short_for_a_separator_stay_different():
    #  a hundred tails of one token after the same block: one can be the separator alone, and the others cannot
    rows = [[0, 1 + tail] for tail in range(100)]
    texts = hashes_to_texts(DEEPSEEK, rows, [5] * 100, 4, separator="bos")
    assert texts_to_hashes(DEEPSEEK, texts, 4) == rows


def test_prompts_part_in_the_token_where_their_ids_part():
    rows = [[0, 1 + leaf] for leaf in range(31)]  # as many as Lorem Ipsum has words of one token
    tokenizer = DEEPSEEK
    tokens, offsets = tokenizer.encode_batch(hashes_to_texts(tokenizer, rows, [32] * 31, 16))
    assert len(WordList.of(tokenizer).single) == 31
    assert len(set(tokens[offsets[:-1] + 16].tolist())) == 31


def test_more_siblings_of_one_token_than_lorem_has_words_get_other_words():
    rows = [[leaf] for leaf in range(1500)]
    texts = hashes_to_texts(DEEPSEEK, rows, [1] * 1500, 16)
    assert len(set(texts)) == 1500
    assert all(len(DEEPSEEK.encode(text)) == 1 for text in texts)


def test_more_siblings_than_a_vocabulary_can_tell_apart_are_an_error():
    with pytest.raises(InputError, match="5,000 blocks follow the same block; .* words of one token are too few"):
        hashes_to_texts(TINY, [[leaf] for leaf in range(5000)], [1] * 5000, 16)


def test_ids_may_be_any_numbers_and_need_not_form_a_forest():
    #  7 follows 2**70 and begins a prompt: its run of tokens is the same in both
    tokenizer = DEEPSEEK
    one, other = hashes_to_texts(tokenizer, [[2**70, 7], [7]], [8, 4], 4)
    assert tokenizer.encode(one)[4:].tolist() == tokenizer.encode(other).tolist()


def test_rows_without_an_id_for_their_tail_get_a_tail_of_their_own():
    texts = hashes_to_texts(DEEPSEEK, [[0], [0], [0]], [6, 6, 4], 4)
    assert texts_to_hashes(DEEPSEEK, texts, 4) == [[0, 1], [0, 2], [0]]


def test_texts_are_lorem_ipsum_by_default_and_other_words_by_choice():
    rows, lengths = [[0, 1], [0, 2]], [64, 64]
    (lorem, _), (other, _) = (
        hashes_to_texts(DEEPSEEK, rows, lengths, 32, words=words) for words in (None, ["red", "green", "blue"] * 9)
    )
    assert set(lorem.split()) <= set(LOREM)
    assert {"red", "green", "blue"} <= set(other.split())


def test_the_same_seed_gives_the_same_texts_and_another_one_others():
    trace = toy("0 1", "0 2", block_size=16)
    first, again, other = (
        hashes_to_texts(DEEPSEEK, ids_of(trace), trace.input_length, 16, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again and first != other


# -- errors ------------------------------------------------------------------------------------------------------


def test_an_id_with_two_sizes_is_an_error_with_both_rows():
    with pytest.raises(InputError, match=r"row 1: id 8 has 3 tokens, but in row 0 it has 4\. Check the block size"):
        hashes_to_texts(DEEPSEEK, [[5, 8], [5, 8]], [8, 7], 4)


def test_an_id_too_many_is_an_error_that_names_the_row():
    with pytest.raises(InputError, match=r"row 1: 3 ids for 8 tokens; at block size 4 there should be 2"):
        hashes_to_texts(DEEPSEEK, [[0, 1], [0, 1, 2]], [8, 8], 4)


def test_lengths_and_rows_must_be_as_many():
    with pytest.raises(InputError, match="2 rows of ids, but 1 input lengths"):
        hashes_to_texts(DEEPSEEK, [[0], [1]], [4], 4)


def test_words_without_a_stable_token_are_an_error(monkeypatch):
    monkeypatch.setattr("kvtrace.text.prompts.words.MIN_SINGLE", 0)  # and no short words come to help
    with pytest.raises(UsageError, match="none of 1 words is a single token of deepseek-r1"):
        hashes_to_texts(DEEPSEEK, [[0]], [4], 4, words=["Brzęczyszczykiewicz"])


def test_an_unknown_separator_is_an_error():
    with pytest.raises(UsageError, match="'pad' is not a --separator. Try none, bos, eos"):
        hashes_to_texts(DEEPSEEK, [[0]], [4], 4, separator="pad")


# -- the verifier can fail ---------------------------------------------------------------------------------------


def checked(rows, lengths, tokens):
    """Rows that a verifier finds exact of such tokens, at blocks of 2."""
    ids = np.array([block for row in rows for block in row])
    offsets = np.cumsum([0] + [len(row) for row in rows])
    verifier = Verifier(PromptBlocks.of(ids, offsets, np.array(lengths), 2))
    verifier.add(0, np.concatenate(tokens).astype(np.uint32), np.cumsum([0] + [len(row) for row in tokens]))
    return verifier.exact()


def test_rows_are_inexact_by_length_by_other_tokens_and_by_a_twin():
    rows, lengths = [[0, 1], [0, 2]], [4, 4]
    assert checked(rows, lengths, [[5, 6, 7, 8], [5, 6, 8, 7]]) == 2
    assert checked(rows, lengths, [[5, 6, 7, 8], [5, 6, 8]]) == 1  # too short
    assert checked(rows, lengths, [[5, 6, 7, 8], [6, 5, 8, 7]]) == 1  # block 0 has other tokens in the second row
    assert checked(rows, lengths, [[5, 6, 7, 8], [5, 6, 7, 8]]) == 0  # blocks 1 and 2 are not told apart


# -- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trace():
    """Two sessions' rows in blocks of 4: 6 tokens, 8 tokens, 3 tokens and no output."""
    columns = Columns([0.0, 1.5, 3.0], [6, 8, 3], [5, 9, 0], [0, 1, 0, 2, 3], [0, 2, 4, 5], session=[0, 0, -1])
    return Trace.from_columns(columns, block_size=4)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def text_of(row):
    return row["messages"][0]["content"] if "messages" in row else row.get("prompt", row.get("text_input"))


@pytest.mark.parametrize("form", [form for form in FORMS if form != DAG])  # a line an agent: test_dag.py
def test_each_form_holds_the_same_texts(trace, tmp_path, form):
    tokenizer = DEEPSEEK
    written = write_prompts(trace, tmp_path / "p.jsonl", tokenizer, to=form)
    assert (written.requests, written.exact, written.tokens) == (3, 3, 17)
    texts = [text_of(row) for row in rows_of(tmp_path / "p.jsonl")]
    assert texts == hashes_to_texts(tokenizer, ids_of(trace), trace.input_length, 4)


def test_a_plain_prompt_has_the_columns_beside_it(trace, tmp_path):
    write_prompts(trace, tmp_path / "p.jsonl", DEEPSEEK)
    first, second, third = rows_of(tmp_path / "p.jsonl")
    assert list(first) == ["timestamp", "input_length", "output_length", "prompt", "session"]
    assert (second["timestamp"], second["input_length"], second["output_length"], second["session"]) == (1.5, 8, 9, 0)
    assert "session" not in third


def test_bodies_ask_for_one_token_where_the_trace_has_none(trace, tmp_path):
    written = write_prompts(trace, tmp_path / "p.jsonl", DEEPSEEK, to="openai", model="m")
    assert [row["max_tokens"] for row in rows_of(tmp_path / "p.jsonl")] == [5, 9, 1] and written.no_output == 1
    assert rows_of(tmp_path / "p.jsonl")[0]["model"] == "m"


def test_anonymizing_the_prompts_gives_the_trace(tmp_path):
    from kvtrace.cli import run as command

    source, prompts, back = tmp_path / "t.jsonl", tmp_path / "p.jsonl", tmp_path / "back.jsonl"
    log = ROOT / "examples/raw_log.jsonl"
    assert command(["anonymize", str(log), "-o", str(source), "--block-size", "16", "-q"]) == 0
    assert run(source, "-o", prompts, "--tokenizer", "deepseek-r1", "-q") == 0
    assert command(["anonymize", str(prompts), "-o", str(back), "--block-size", "16", "-q"]) == 0
    first, second = read(source), read(back)
    assert second.hash_ids.tolist() == first.hash_ids.tolist()
    assert second.input_length.tolist() == first.input_length.tolist()
    assert second.output_length.tolist() == first.output_length.tolist()


def test_the_command_counts_exact_prompts(trace, tmp_path, capsys):
    from kvtrace import write as write_trace

    write_trace(trace, tmp_path / "t.jsonl")
    assert run(tmp_path / "t.jsonl", "-o", tmp_path / "p.jsonl", "--tokenizer", "deepseek-r1", "--to", "openai") == 0
    said = capsys.readouterr().err
    assert "3 of 3 prompts have the trace's lengths and sharing when tokenised again (100.00%)" in said
    assert "this tokenizer's template adds 3 tokens" in said  # beginning of sentence, user, assistant
    assert "1 requests have an output of 0 tokens" in said


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--to", "tarot"], 2),
        (["--separator", "pad"], 2),
        (["--tokenizer", "no/such/tokenizer.json"], 2),
        (["--words", "missing.txt"], 3),
        (["--model", "m"], 2),  # plain prompts name no model
    ],
)
def test_invalid_options_are_refused_and_leave_no_file(trace, tmp_path, capsys, options, status):
    from kvtrace import write as write_trace

    write_trace(trace, tmp_path / "t.jsonl")
    usual = [] if "--tokenizer" in options else ["--tokenizer", "deepseek-r1"]
    assert run(tmp_path / "t.jsonl", "-o", tmp_path / "p.jsonl", *usual, *options) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "p.jsonl").exists()


def test_a_trace_of_many_batches_is_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[write_prompts.__module__], "BATCH", 50)
    part = toy(*(f"0 {1 + row}" for row in range(40)), block_size=16)
    seen = []
    written = write_prompts(part, tmp_path / "p.jsonl", DEEPSEEK, progress=seen.append)
    assert written.exact == 40 and sum(seen) == 40 and len(seen) == 40  # 32 tokens a row: one row a batch


def test_an_empty_trace_gives_an_empty_file(tmp_path):
    assert write_prompts(toy(), tmp_path / "p.jsonl", DEEPSEEK).exact == 0
    assert (tmp_path / "p.jsonl").read_bytes() == b""


def test_every_prompt_of_the_conversation_trace_is_exact(shared, tmp_path):
    part = read(shared / "data/mooncake/conversation_trace.jsonl")[:300]
    tokenizer = load(str(shared / "data/tokenizers/qwen3"))
    for separator in ("none", "eos"):
        assert write_prompts(part, tmp_path / "p.jsonl", tokenizer, separator=separator).exact == 300


def test_the_workflow_of_lins_report_runs():
    made_up = runpy.run_path(str(ROOT / "examples/texts_workflow.py"))["main"](20)
    assert len(made_up) == 20 and all(made_up)
