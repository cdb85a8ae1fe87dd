"""Domains: ids of one trace, kept apart by tenant, adapter or salt, or shared up to a depth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace


def with_domains(trace, domain):
    """The trace with a column of domains."""
    columns = fields_of(trace) | {"domain": np.asarray(domain)}
    return Trace(**columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def paths(trace, domain, shared_blocks):
    """Twin: each prompt as the list of (domain or nothing, prefix) of its blocks, in plain Python."""
    made = []
    for row, own in enumerate(domain):
        prompt = trace.prompt(row).tolist()
        made.append(
            [(None if depth < shared_blocks else own, tuple(prompt[: depth + 1])) for depth in range(len(prompt))]
        )
    return made


def numbered(rows):
    """Keys as numbers by first appearance."""
    number = {}
    return [number.setdefault(key, len(number)) for row in rows for key in row]


THREE = with_domains(toy("0 1 2", "0 1 2", "0 1 3", block_size=4), [0, 1, 0])


def test_split_keeps_the_blocks_of_domains_apart():
    assert in_domains(THREE, "split").hash_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6]
    assert in_domains(THREE).domain is None
    assert in_domains(THREE) == in_domains(THREE, "split")


def test_merge_shares_equal_text():
    assert in_domains(THREE, "merge").hash_ids.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 3]


@pytest.mark.parametrize(
    "tokens, ids",
    [(0, [0, 1, 2, 3, 4, 5, 0, 1, 6]), (3, [0, 1, 2, 3, 4, 5, 0, 1, 6]), (4, [0, 1, 2, 0, 3, 4, 0, 1, 5]),
     (11, [0, 1, 2, 0, 1, 3, 0, 1, 4]), (12, [0, 1, 2, 0, 1, 2, 0, 1, 3])],
)  # fmt: skip
def test_only_whole_blocks_within_the_first_tokens_are_shared(tokens, ids):
    assert in_domains(THREE, f"shared:{tokens}").hash_ids.tolist() == ids


def test_an_output_is_split_with_its_prompt_and_counts_from_its_depth():
    columns = fields_of(toy("0", "0", block_size=2)) | {
        "output_length": np.array([4, 4]), "output_ids": np.array([1, 2, 1, 2]), "output_offsets": np.array([0, 2, 4]),
        "domain": np.array([0, 1]),
    }  # fmt: skip
    trace = Trace(**columns, block_size=2)
    assert (in_domains(trace).hash_ids.tolist(), in_domains(trace).output_ids.tolist()) == ([0, 3], [1, 2, 4, 5])
    shared = in_domains(trace, "shared:4")
    assert (shared.hash_ids.tolist(), shared.output_ids.tolist()) == ([0, 0], [1, 2, 1, 3])


def test_requests_without_a_domain_are_one_domain_together():
    trace = with_domains(toy("0", "0", "0"), [-1, 0, -1])
    assert in_domains(trace).hash_ids.tolist() == [0, 1, 0]
    assert kvtrace.trace.count_domains(trace) == 2


def test_a_trace_without_domains_is_its_own_view_and_has_no_other():
    trace = toy("0 1", "0 2")
    assert in_domains(trace) is trace
    with pytest.raises(kvtrace.UsageError, match=r"--domains split: the trace has no domains\."):
        in_domains(trace, "split")


@pytest.mark.parametrize("word", ["apart", "shared", "shared:", "shared:-1", "shared:1k", "split:2", "merge:1"])
def test_another_word_is_refused(word):
    with pytest.raises(kvtrace.UsageError, match="Use merge, split or shared:N"):
        in_domains(THREE, word)


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(-1, 2)), min_size=1, max_size=12),
       st.integers(0, 6))  # fmt: skip
def test_ids_are_those_of_prefixes_within_domains(rows, shared_blocks):
    prefix = {}
    text = [" ".join(str(prefix.setdefault(tuple(words[: i + 1]), len(prefix))) for i in range(len(words)))
            for words, _ in rows]  # fmt: skip
    trace = toy(*text)
    trace = with_domains(trace, [domain for _, domain in rows])
    for view, blocks in (("split", 0), (f"shared:{shared_blocks}", shared_blocks), ("merge", 99)):
        assert in_domains(trace, view).hash_ids.tolist() == numbered(paths(trace, trace.domain.tolist(), blocks))


def test_domains_count_by_first_appearance_in_a_slice_and_after_reading():
    trace = with_domains(toy("0", "1", "2", "3"), [0, 1, 2, 1])
    assert trace[1:].domain.tolist() == [0, 1, 0]
    columns = fields_of(trace) | {"domain": np.array([7, 3, -1, 3])}
    assert Trace.from_columns(kvtrace.trace.columns.Columns(**columns), block_size=1).domain.tolist() == [0, 1, -1, 1]


def test_concatenated_traces_have_domains_of_their_own_unless_they_are_shared():
    trace = with_domains(toy("0", "1"), [0, 1])
    assert kvtrace.trace.concat([trace, trace], gap_ms=1).domain.tolist() == [0, 1, 2, 3]
    assert kvtrace.trace.concat([trace, trace], gap_ms=1, shared=True).domain.tolist() == [0, 1, 0, 1]
    assert kvtrace.trace.concat([trace, toy("0")], gap_ms=1).domain.tolist() == [0, 1, -1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.dataset"])
def test_a_file_has_the_domains(name, tmp_path):
    trace = with_domains(toy("0", "0", "1"), [0, -1, 1])
    kvtrace.write(trace, tmp_path / name)
    assert kvtrace.read(tmp_path / name) == trace


def test_a_row_has_its_domain_if_it_has_one(tmp_path):
    trace = with_domains(toy("0", "0"), [0, -1])
    for format, start in (("mooncake", '{"timestamp": 0'), ("bailian", '{"chat_id": 0')):
        kvtrace.write(trace, tmp_path / "a.jsonl", format=format)
        first, second = (tmp_path / "a.jsonl").read_text().splitlines()
        assert first.startswith(start) and first.endswith('"hash_ids": [0], "domain": 0}')
        assert second.endswith('"hash_ids": [0]}')
        assert kvtrace.read(tmp_path / "a.jsonl").domain.tolist() == [0, -1]


def test_a_client_without_domains_gets_ids_that_keep_them_apart(tmp_path):
    kvtrace.write(THREE, tmp_path / "a.jsonl")
    done = kvtrace.formats.convert_file(tmp_path / "a.jsonl", tmp_path / "b.jsonl", to="aiperf")
    assert "2 domains were left out: blocks of different domains have different ids." in done.losses
    assert kvtrace.read(tmp_path / "b.jsonl", block_size=4).hash_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6]
