"""The pipeline: raw logs in, a trace out, the same bytes for any number of workers, and no text anywhere."""

import importlib
import json
from collections import Counter

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import InputError, RowError, UsageError
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import sources
from kvtrace.trace.trace_figures import figures
from tests import unaudited
from tests.ingest.flat import anonymize_rows

# the example that the block-hash form was published with: five requests, and what becomes of them
PUBLISHED_LOG = [
    (0, "What is the capital of France?", 30),
    (100, "Explain what machine learning is in simple terms.", 46),
    (200, "How do I make a good cup of coffee?", 69),
    (300, "What is the capital of Finland?", 7),
    (100, "Explain what machine learning is in simple terms. It should be a short answer.", 46),
]


def write_log(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def token_log(path, prompts, *, times=None, **columns):
    """A log of prompts that are token ids already: no tokenizer is needed."""
    rows = []
    for i, prompt in enumerate(prompts):
        row = {"timestamp": times[i] if times else i, "input": prompt, "output": 3}
        rows.append(row | {name: values[i] for name, values in columns.items() if values[i] is not None})
    return write_log(path, rows)


def anonymized(path, **options):
    return kvtrace.ingest.anonymize(path, **({"tokenizer": None, "block_size": 2, "profile": "exact"} | options))


# -- ids ---------------------------------------------------------------------------------------------------------


def test_equal_prefixes_get_equal_ids(tmp_path):
    #  1 2 | 3 4 | 5      the second shares two blocks, the third one, the fourth none: its first block differs
    log = token_log(tmp_path / "log.jsonl", [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 9, 9], [3, 4, 3, 4]])
    trace = anonymized(log)
    assert [trace.prompt(row).tolist() for row in range(4)] == [[0, 1, 2], [0, 1, 3], [0, 4], [5, 6]]
    assert trace.is_chained and trace.block_size == 2


@pytest.mark.parametrize(("tail", "ids"), [("kept", [0, 1, 0, 1]), ("unique", [0, 1, 0, 2]), ("dropped", [0, 0])])
def test_the_tail_is_shared_unique_or_dropped(tmp_path, tail, ids):
    log = token_log(tmp_path / "log.jsonl", [[1, 2, 3], [1, 2, 3]])
    assert anonymized(log, tail=tail).hash_ids.tolist() == ids


def test_rows_are_numbered_in_time_order_or_as_they_come(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[5, 6], [7, 8], [5, 6, 9]], times=[200, 0, 100])
    trace = anonymized(log)
    assert trace.timestamp.tolist() == [0, 100, 200] and trace.hash_ids.tolist() == [0, 1, 2, 1]
    rows = anonymize_rows(log, tokenizer=None, profile="exact", block_size=2, keep_order=True).columns
    assert rows.timestamp.tolist() == [200, 0, 100] and rows.hash_ids.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("times", "session_ids", "is_named"),
    [([30, 20, 10], None, True), ([10, 20, 30], None, False), ([20, 40, 10, 30], ["a", "b", "a", "b"], True)],
)
def test_a_log_in_reverse_time_order_is_named(tmp_path, times, session_ids, is_named):
    columns = {"session_id": session_ids} if session_ids else {}
    log = token_log(tmp_path / "log.jsonl", [[1, 2]] * len(times), times=times, **columns)
    notes = []
    rows = anonymize_rows(log, tokenizer=None, block_size=2, profile="exact", on_note=notes.append)
    assert any("reverse time order" in note for note in notes) == is_named
    assert not is_named or kvtrace.analysis.analyze(rows.trace()).notes == []  # sorted, and nothing to say of it again


def test_another_model_or_image_shares_nothing(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2]] * 3, model=["a", "b", "a"])
    assert anonymized(log, keep_domains=False).hash_ids.tolist() == [0, 1, 0]


def test_times_are_whole_milliseconds_from_the_first(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1], [2]], times=[1760428436442742, 1760428438776726])
    assert anonymized(log).timestamp.tolist() == [0.0, 2333.0]


def test_sessions_are_numbered_and_turns_linked_in_time_order(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1], [2], [3], [4]], times=[30, 10, 20, 40], session=["b", "a", "b", None])
    trace = anonymized(log)
    #  in time order: a, b, b, none
    assert trace.session.tolist() == [0, 1, 1, -1]
    assert trace.parent.tolist() == [-1, -1, 1, -1]
    assert trace.extra["turn"].tolist() == [1, 1, 2, 1]


def test_output_blocks_continue_the_prompts_chain(tmp_path):
    #  1 2 | 3 + 7 | 8 9   then a second turn  1 2 | 3 7 | 8 9 | 5 6: its first three blocks were prompt and output
    rows = [
        {"timestamp": 0, "input": [1, 2, 3], "output": [7, 8, 9]},
        {"timestamp": 1, "input": [1, 2, 3, 7, 8, 9, 5, 6], "output": [4]},
        {"timestamp": 2, "input": [1, 2], "output": 4},
    ]
    trace = anonymized(write_log(tmp_path / "log.jsonl", rows), outputs=True)
    assert [trace.prompt(row).tolist() for row in range(3)] == [[0, 1], [0, 2, 3, 4], [0]]
    assert trace.output_ids.tolist() == [2, 3, 5] and trace.output_offsets.tolist() == [0, 2, 3, 3]
    assert kvtrace.trace.unlimited_hits(trace).tolist() == [0, 1, 1]
    assert kvtrace.trace.unlimited_hits(trace, outputs=True).tolist() == [0, 3, 1]


def test_an_output_counted_otherwise_by_the_log_has_no_blocks(tmp_path):
    log = write_log(tmp_path / "log.jsonl", [{"timestamp": 0, "input": [1, 2], "output": [7, 8], "output_length": 90}])
    rows = anonymize_rows(log, tokenizer=None, profile="exact", block_size=2, outputs=True)
    assert rows.trace().output_length.tolist() == [90] and rows.trace().output_offsets.tolist() == [0, 0]
    assert rows.counts.without_output_blocks == 1


# -- the published example ---------------------------------------------------------------------------------------


def published(tmp_path):
    rows = [
        {"timestamp": time, "input": [{"role": "user", "content": question}], "output": length}
        for time, question, length in PUBLISHED_LOG
    ]
    return write_log(tmp_path / "input_raw.jsonl", rows)


EXPECTED = [
    '{"timestamp": 0, "input_length": 12, "output_length": 30, "hash_ids": [1, 2, 3]}',
    '{"timestamp": 100, "input_length": 14, "output_length": 46, "hash_ids": [4, 5, 6, 7]}',
    '{"timestamp": 200, "input_length": 15, "output_length": 69, "hash_ids": [8, 9, 10, 11]}',
    '{"timestamp": 300, "input_length": 12, "output_length": 7, "hash_ids": [1, 12, 13]}',
    '{"timestamp": 100, "input_length": 21, "output_length": 46, "hash_ids": [4, 5, 14, 15, 16, 17]}',
]


def test_the_published_example_comes_out_to_the_character(tmp_path):
    from kvtrace.cli import run

    log, out = published(tmp_path), tmp_path / "out.jsonl"
    status = run(
        ["anonymize", str(log), "-o", str(out), "--block-size", "4", "--first-id", "1", "--profile", "exact",
         "--keep-order", "--quiet", "--generation-prompt", r"<｜Assistant｜><think>\n"]
    )  # fmt: skip
    assert status == 0 and out.read_text().splitlines() == EXPECTED


def test_the_published_example_from_its_own_text(tmp_path, shared):
    from kvtrace.cli import run

    gist = (shared / "seeds/block-hash-gist.txt").read_text(encoding="utf-8").splitlines()
    raw = [line for line in gist if line.startswith('{"timestamp"') and '"input": [' in line][-5:]
    log, out = tmp_path / "raw.jsonl", tmp_path / "out.jsonl"
    log.write_text("\n".join(raw), encoding="utf-8")
    status = run(
        ["anonymize", str(log), "-o", str(out), "--tokenizer", str(shared / "data/tokenizers/deepseek-r1-think"),
         "--block-size", "4", "--first-id", "1", "--profile", "exact", "--keep-order", "--quiet"]
    )  # fmt: skip
    assert status == 0 and out.read_text().splitlines() == EXPECTED


# -- many workers, one result ------------------------------------------------------------------------------------


def long_log(path, rows=1000):
    rng = np.random.default_rng(5)
    stems = [rng.integers(0, 50, rng.integers(1, 400)).tolist() for _ in range(40)]
    prompts = [stems[rng.integers(40)] + rng.integers(0, 50, rng.integers(0, 30)).tolist() for _ in range(rows)]
    times = rng.integers(0, 10**6, rows).tolist()
    return token_log(path, prompts, times=times, session=[f"s{rng.integers(200)}" for _ in range(rows)])


@pytest.mark.parametrize("tail", ["kept", "unique", "dropped"])
def test_the_same_bytes_for_any_number_of_workers(tmp_path, monkeypatch, tail):
    monkeypatch.setattr(importlib.import_module("kvtrace.ingest.pipeline"), "SMALL", 0)
    monkeypatch.setattr(sources, "PIECE_BYTES", 50_000)
    log, written = long_log(tmp_path / "log.jsonl"), set()
    for workers in (1, 2, 8):
        rows = anonymize_rows(
            log, tokenizer=None, profile="exact", block_size=4, tail=tail, workers=workers, key=Key.random()
        )
        unaudited.write(rows.trace(), tmp_path / "out.jsonl", format="bailian")
        written.add((tmp_path / "out.jsonl").read_bytes())
    assert len(written) == 1


def test_many_files_are_one_log(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    token_log(folder / "a.jsonl", [[1, 2], [3, 4]], times=[0, 20])
    token_log(folder / "b.jsonl", [[1, 2, 5]], times=[10])
    assert anonymized(folder).hash_ids.tolist() == [0, 0, 1, 2]
    assert anonymized([folder / "b.jsonl", folder / "a.jsonl"]) == anonymized(str(folder / "*.jsonl"))


# -- bad rows ----------------------------------------------------------------------------------------------------


def bad_log(path):
    rows = [
        {"timestamp": 0, "input": [1, 2], "output": 1},
        {"timestamp": 1, "input": [1, 2], "response": "Yes"},
        {"timestamp": 2, "input": {}, "output": 1},
        {"timestamp": 3, "input": [1, 2, 3], "output": 1},
    ]
    write_log(path, rows)
    path.write_text(path.read_text() + "{broken\n")
    return path


def test_the_first_bad_row_stops_the_run(tmp_path):
    with pytest.raises(RowError, match=r"log\.jsonl:2: response: is not an answer") as error:
        anonymized(bad_log(tmp_path / "log.jsonl"))
    assert (error.value.line, error.value.offset) == (2, 47) and error.value.status == 3


def test_bad_rows_can_be_skipped_and_are_noted(tmp_path):
    noted = []
    rows = anonymize_rows(
        bad_log(tmp_path / "log.jsonl"),
        tokenizer=None,
        profile="exact",
        block_size=2,
        max_errors=-1,
        on_reject=noted.append,
    )
    assert len(rows.trace()) == 2 and [error.line for error in noted] == [2, 3, 5]
    assert (rows.counts.rows, rows.counts.requests, rows.counts.rejected) == (5, 2, 3)
    assert sum(rows.counts.reasons.values()) == 3 and isinstance(rows.counts.reasons, Counter)


def test_one_bad_row_too_many_stops_the_run(tmp_path):
    with pytest.raises(InputError, match="bad row 3: --max-errors is 2"):
        anonymized(bad_log(tmp_path / "log.jsonl"), max_errors=2)


def test_a_log_of_bad_rows_alone_gives_nothing(tmp_path):
    log = tmp_path / "log.jsonl"
    write_log(log, [{"timestamp": 0, "input": []}, {"timestamp": 0, "output": 1}])
    with pytest.raises(
        InputError,
        match=r"no usable request. 1 row cannot be read: \S+/log.jsonl:2: input: is missing.",
    ):
        anonymized(log, max_errors=-1)


def test_rows_with_an_empty_prompt_are_left_out_and_counted(tmp_path):
    #  agent logs have such rows; an engine would refuse them, and so do the clients that replay traces
    rows = [{"timestamp": t, "input": prompt, "output": 1} for t, prompt in enumerate([[1], "", [], [2]])]
    rows = anonymize_rows(write_log(tmp_path / "log.jsonl", rows), tokenizer=None, profile="exact", block_size=2)
    assert len(rows.trace()) == 2 and rows.counts.rows == 4 and rows.counts.filtered == 2


@pytest.mark.parametrize(
    "options", [{"block_size": 0}, {"tail": "cut"}, {"profile": "loose"}, {"log_format": "xml"}, {"time_unit": "min"}]
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, options):
    log = token_log(tmp_path / "log.jsonl", [[1, 2]])
    with pytest.raises(UsageError):
        anonymized(log, **options)


# -- what is said ------------------------------------------------------------------------------------------------


def test_the_log_s_own_token_counts_are_compared(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2], [1, 2], [1]], prompt_tokens=[2, 5, None])
    counts = anonymize_rows(log, tokenizer=None, profile="exact", block_size=2).counts
    assert (counts.with_logged_tokens, counts.equal_to_logged, counts.logged_difference) == (2, 1, 3)


def test_the_summary_counts_tokens_blocks_and_three_hit_rates(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2, 3, 4], [1, 2]], session=["a", "a"])
    found = figures(anonymize_rows(log, tokenizer=None, profile="exact", block_size=2).trace())
    assert (found["requests"], found["tokens"], found["blocks"], found["distinct_blocks"]) == (2, 6, 3, 2)
    assert found["sessions"] == 1
    assert [found["hits"][f"{kind}_hit_rate"] for kind in ("block", "token", "request")] == [1 / 3, 1 / 3, 1 / 2]


def test_types_come_from_the_log_or_from_its_parts(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1], [2]], type=["search", None])
    assert anonymized(log).extra["type"].tolist() == ["search", "text"]


# -- real logs, when they are beside the project -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "block_size", "rate"),
    [("miniswe", 402, 16, 0.933), ("miniswe", 402, 512, 0.865), ("magagent", 693, 16, 0.842),
     ("magagent", 693, 512, 0.813)],
)  # fmt: skip
def test_agent_logs_as_measured_elsewhere(shared, name, rows, block_size, rate):
    log = shared / f"data/agent_logs/{name}.jsonl"
    trace = kvtrace.ingest.anonymize(log, profile="exact", use_template=False, block_size=block_size)
    hits = kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace))
    assert len(trace) == rows and round(hits.block_hit_rate, 3) == rate


# -- users, tenants, profiles ------------------------------------------------------------------------------------


def test_the_default_profile_is_standard_and_counts_the_users_of_the_log(tmp_path):
    #  two users, four requests: what they share is split, what one of them says again is not
    log = token_log(tmp_path / "log.jsonl", [[1, 2], [1, 2], [1, 2], [5, 6]], user=["a", "b", "a", "c"])
    rows = anonymize_rows(log, tokenizer=None, block_size=2)
    assert rows.trace().hash_ids.tolist() == [0, 1, 0, 2] and rows.trace().tail == "unique"
    assert rows.meta["profile"] == "standard" and rows.meta["release"]["k_counted"] == "client_users"
    assert [step.hits.hit_blocks for step in rows.released.steps] == [2, 2, 1]
    assert "costs" not in rows.meta["release"]  # the difference of two steps would tell who sent the same text
    assert not {"a", "b", "c"} & set(json.dumps(rows.meta)[1:-1].split('"'))


def test_users_are_read_under_any_name_and_tenants_with_the_tenant_field(tmp_path):
    rows = [{"timestamp": 0, "input": [1, 2], "output": 1, "user": name, "org": {"id": org}}
            for name, org in (("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"))]  # fmt: skip
    log = write_log(tmp_path / "log.jsonl", rows)
    assert anonymized(log, profile="standard").hash_ids.tolist() == [0, 0, 0, 0]  # four users
    assert anonymized(log, profile="standard", tenant_field="org.id").hash_ids.tolist() == [0, 0, 0, 1]  # two tenants


def test_isolated_tenants_share_no_block_even_with_equal_users(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[1, 2], [1, 2], [1, 2]], tenant=["x", "y", "x"])
    assert anonymized(log).hash_ids.tolist() == [0, 0, 0]
    assert anonymized(log, isolate_tenants=True).hash_ids.tolist() == [0, 1, 0]


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
def test_every_row_is_written_left_out_or_rejected_under_every_profile(tmp_path, profile):
    prompts = [[1, 2, 3], [], [1, 2], "text without a tokenizer", [4]]
    rows = [{"timestamp": t, "input": p, "output": 3, "session": t % 50} for t, p in enumerate(prompts * 40)]
    log = write_log(tmp_path / "log.jsonl", rows)
    options = dict(tokenizer=None, block_size=2, profile=profile, max_errors=-1)
    counts = anonymize_rows(log, **options).counts
    assert counts.rows == 200 == counts.requests + counts.filtered + counts.rejected
    sampled = anonymize_rows(log, sample_sessions=0.5, key=Key(bytes(range(16))), **options)
    assert counts.requests == len(sampled.trace()) + sampled.counts.unsampled
    assert "counts" not in sampled.meta  # they would tell how large the whole is


def test_a_sample_is_drawn_by_the_key(tmp_path):
    log = token_log(tmp_path / "log.jsonl", [[i] for i in range(200)], session=[f"s{i}" for i in range(200)])
    one, two = Key(bytes(16)), Key(bytes(range(16)))
    drawn = [anonymized(log, sample_sessions=0.5, key=key).input_length.sum() for key in (one, one, two)]
    times = [anonymized(log, sample_sessions=0.5, key=key).timestamp.tolist() for key in (one, one, two)]
    assert times[0] == times[1] != times[2] and 60 < drawn[0] < 140


@pytest.mark.parametrize("options", [{"profile": "standard"}, {"k": 3}, {"time_step_ms": 1000}])
def test_rows_in_the_logs_order_are_for_use_inside_the_house(tmp_path, options):
    with pytest.raises(UsageError, match="--keep-order is for internal use only"):
        anonymize_rows(
            token_log(tmp_path / "log.jsonl", [[1]]),
            tokenizer=None,
            **({"profile": "exact"} | options),
            keep_order=True,
        )


@pytest.mark.parametrize(("tail", "ids"), [("kept", [0, 1, 0, 1]), ("unique", [0, 1, 0, 2]), ("dropped", [0, 0])])
def test_tails_are_shared_unique_or_dropped_in_the_logs_order_too(tmp_path, tail, ids):
    log = token_log(tmp_path / "log.jsonl", [[1, 2, 3], [1, 2, 3]], times=[5, 0])
    rows = anonymize_rows(log, tokenizer=None, profile="exact", tail=tail, block_size=2, keep_order=True)
    assert rows.columns.hash_ids.tolist() == ids and rows.columns.timestamp.tolist() == [5, 0]


def test_blocks_of_outputs_do_not_go_with_rounded_lengths(tmp_path):
    with pytest.raises(UsageError, match="--outputs requires exact lengths"):
        anonymized(token_log(tmp_path / "log.jsonl", [[1]]), profile="strict", outputs=True)
