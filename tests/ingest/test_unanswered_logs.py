"""Logs of prompts without answers, logs of lengths, and logs with delays in place of times."""

import json

import numpy as np
import orjson
import pytest

from kvtrace._base.errors import EmptyPrompt, NotARequest, RowError
from kvtrace._base.row_counts import RowCounts
from kvtrace.ingest.checkpoint import packed, unpacked
from kvtrace.ingest.collector import Collector
from kvtrace.ingest.encoding import Batch
from kvtrace.ingest.logs import NO_TIME, READERS, open_reader, records_of
from kvtrace.ingest.logs.sources import LogPiece
from kvtrace.ingest.logs.times import ArrivalModel, times_after_delays
from kvtrace.ingest.row_counts import RowCounter
from kvtrace.report.raw_logs import closing
from kvtrace.trace.unknown import UNKNOWN_LENGTH
from tests.attacks.canary import CANARY, all_of, require_none
from tests.ingest.flat import prepare

from .media import media_of

USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "Hi"}
DATE = "2031-03-04T05:06:07Z"

# -- rows without an answer ------------------------------------------------------------------------------------------

PROMPTS = {  # reader -> rows that hold a prompt, and nothing of its answer
    "block-hash": [{"timestamp": 0, "input": "Hello"}, {"timestamp": 0, "input": [USER], "output": None}],
    "openai": [
        {"timestamp": 0, "messages": [USER]}, {"timestamp": 0, "request": {"messages": [USER]}, "response": None},
        {"timestamp": 0, "prompt": "Hello", "choices": None}, {"timestamp": 0, "messages": [USER], "response": {}},
        {"timestamp": 0, "request": {"messages": [USER, SAID]}},
        {"timestamp": 0, "messages": [USER, SAID], "continue_final_message": True},
    ],
    "anthropic": [{"timestamp": 0, "system": "Be brief.", "messages": [USER], "content": None}],
    "responses": [{"timestamp": 0, "instructions": "Be brief.", "input": "Hello", "output": None}],
    "tokens": [{"timestamp": 0, "prompt_token_ids": [1, 2]}],
    "litellm": [{"call_type": "acompletion", "startTime": 5.5, "messages": [USER], "response": "{}", "metadata": {}}],
    "langfuse": [{"traceId": "t", "type": "GENERATION", "startTime": DATE, "input": [USER], "output": None}],
    "langsmith": [{"run_type": "llm", "start_time": DATE, "inputs": {"messages": [USER]}, "outputs": None}],
    "helicone": [{"request_created_at": DATE, "response_status": 200, "request_body": {"messages": [USER]}}],
    "portkey": [{"created_at": DATE, "ai_model": "m", "request": {"messages": [USER]}}],
    "otel": [{"start_time": DATE, "attributes": {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi"}}],
    "sglang": [{"timestamp": "2031-01-01T00:00:09", "event": "request.finished", "rid": "a", "obj": {"text": "Hello"},
                "out": {"meta_info": {}}}],
    "vllm": [{"vllm": "request", "timestamp": DATE, "prompt": "Hello"}],
    "ucm": [{"timestamp": 5.5, "input_length": 3, "output_length": None, "hash_ids": ["0" * 32]}],
    "lengths": [{"timestamp": 0, "input_length": 3}, {"timestamp": 0, "input_length": 3, "output_length": None}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, rows in PROMPTS.items() for row in rows])
def test_a_row_without_an_answer_is_a_request_of_unknown_output(name, row):
    assert next(one for one, reader in READERS.items() if reader.matches(row)) == name
    (record,) = records_of(READERS[name], row)
    assert not record.has_output and record.output_length is None


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"messages": [USER], "response": {"status": 200}}, "response: is not an answer that this log format reads."),
        ({"messages": [USER], "choices": []}, "choices: is not an answer"),
        ({"messages": [USER], "answer": CANARY}, "answer: is not an answer"),
        (
            {"input": "Hello", "response": CANARY},
            "response: is not an answer that this log format reads. Try --map out",
        ),
        ({"prompt_token_ids": [1], "response": {"choices": [{"message": SAID}]}}, "response: is not an answer"),
        ({"prompt_token_ids": CANARY}, "prompt_token_ids: is a string; expected a list of token ids."),
        ({"system": "x", "messages": [USER], "content": []}, "content: is not an answer: it has no message,"),
        ({"instructions": "x", "input": "Hello", "output": []}, "output: is not an answer: it has no message,"),
        ({"messages": [USER, SAID]}, "messages: end with a message of the assistant, and the row has no other answer"),
        ({"input": [USER, SAID]}, "messages: end with a message of the assistant, and the row has no other answer"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_and_not_unknown(row, line):
    row = {"timestamp": 0} | row
    reader = open_reader("auto", [orjson.dumps(row)])
    with pytest.raises(RowError) as error:
        reader.read(orjson.dumps(row))
    assert str(error.value).startswith(line) and not isinstance(error.value, NotARequest)
    require_none(all_of(error.value), where="the error")


def batch_of(rows, tmp_path, **options):
    """The batch that a worker makes of these rows."""
    path = tmp_path / "log.jsonl"
    data = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    path.write_bytes(data)
    job = prepare(path, tokenizer=None, block_size=2, profile="exact", **options)
    return job, job.encoder(LogPiece(str(path), 0, 0, len(data), 0, data))


def test_an_unknown_output_length_comes_through_a_batch_and_has_no_blocks(tmp_path):
    rows = [
        {"timestamp": 0, "input": [1, 2, 3]},
        {"timestamp": 1, "input": [1, 2], "output": [7, 8]},
        {"timestamp": 2, "input": [1, 2], "output": ""},
    ]
    job, batch = batch_of(rows, tmp_path, outputs=True)
    assert batch.output_length.tolist() == [UNKNOWN_LENGTH, 2, 0] and batch.outputs.tolist() == [0, 1, 0]
    assert unpacked(packed(batch)).output_length.tolist() == [UNKNOWN_LENGTH, 2, 0]
    counter = RowCounter()
    counter.add(batch, LogPiece("log.jsonl", 0, 0, 0, 0, b""))
    assert (counter.counts.without_output, counter.counts.without_output_blocks) == (1, 1)
    collector = Collector.of(job.recipe)
    collector.add(unpacked(packed(batch)))
    draft, _ = collector.finish(job.meta, keep_order=False)
    assert draft.rows.output_length.tolist() == [UNKNOWN_LENGTH, 2, 0]


def test_the_summary_says_how_many_answers_are_missing_and_what_to_do():
    figures = {"requests": 2, "duration_ms": 0, "sessions": 0, "tokens": 4, "output_tokens": 1, "blocks": 0,
               "distinct_blocks": 0}  # fmt: skip
    rows = closing(figures, RowCounts(requests=2, without_output=1))
    ((count, note),) = [(count, note) for name, count, note in rows if name == "no answer"]
    assert count == "1" and "unknown output length" in note and "--map output_length=FIELD" in note
    assert "without_output" in RowCounts().to_dict()


# -- logs of lengths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "lengths"),
    [
        ({"timestamp": 0, "input_length": 9, "output_length": 2}, (9, 2)),
        ({"timestamp": 0, "input_tokens": 9, "output_tokens": "2"}, (9, 2)),
        ({"timestamp": 0.5, "prompt_tokens": 9, "completion_tokens": 2}, (9, 2)),
        ({"arrived_at": 1.5, "num_prefill_tokens": 9, "num_decode_tokens": 2}, (9, 2)),
        ({"createdAt": DATE, "isl": 9, "osl": 2, "sessionId": "s"}, (9, 2)),
        ({"timestamp": 0, "input_length": 9}, (9, None)),
    ],
)
def test_lengths_are_read_in_each_spelling(row, lengths):
    line = orjson.dumps(row)
    reader = open_reader("auto", [line])
    record = reader.read(line)
    assert reader.name == "lengths" and not reader.holds_prompts and reader.time_ns(record) >= 0
    assert (record.input_length, record.output_length, record.prompt_tokens) == (*lengths, None)


def test_rows_with_a_prompt_or_with_hashes_are_no_rows_of_lengths():
    for more in ({"messages": [USER]}, {"prompt": "x"}, {"hash_ids": [1]}, {"input": "x"}, {"response": {}}):
        assert not READERS["lengths"].matches({"timestamp": 0, "input_length": 9, "output_length": 2} | more)
    with pytest.raises(EmptyPrompt, match="^input_length: the prompt is empty"):
        READERS["lengths"].read({"timestamp": 0, "input_length": 0, "output_length": 2})
    with pytest.raises(RowError, match="^output_tokens: is negative"):
        READERS["lengths"].read({"timestamp": 0, "input_tokens": 1, "output_tokens": -2})


def test_a_log_of_lengths_shares_nothing(tmp_path):
    rows = [{"timestamp": t, "input_length": 4, "output_length": 1} for t in (0, 250)]
    _, batch = batch_of(rows, tmp_path)
    assert batch.lengths_only == 2 and batch.input_length.tolist() == [4, 4]
    assert len(np.unique(batch.digests, axis=0)) == 4


# -- AIPerf's data sets, and delays ----------------------------------------------------------------------------------


def test_texts_and_media_of_aiperf_are_a_message():
    row = {"texts": [{"name": "q", "contents": ["a", "b"]}, "c"], "image": "https://example.com/x.png", "timestamp": 5}
    (record,) = records_of(READERS["aiperf"], row)
    parts = record.messages[0]["content"]
    assert [part["text"] for part in parts[:3]] == ["a", "b", "c"] and parts[3]["type"] == "image_url"
    assert record.type == "image" and len(media_of(record)) == 1 and not record.has_output
    (body,) = records_of(READERS["aiperf"], {"payload": {"messages": [USER], "tools": [{"a": 1}]}, "timestamp": 5})
    assert body.messages == [USER] and body.tools == [{"a": 1}]
    for bad in ({"text": 5}, {"texts": 5}, {"texts": [5]}, {"turns": [5]}, {"turns": [{"delay": 1}]}):
        with pytest.raises(RowError):
            records_of(READERS["aiperf"], {"timestamp": 0} | bad)


def test_later_turns_lack_the_answers_before_them():
    turns = [{"role": "system", "text": "Be brief."}, {"text": "Hello"}, {"text": "Why?", "delay": 1000}]
    row = {"session_id": "s", "turns": turns}
    first, second = records_of(READERS["aiperf"], row)
    assert [message["role"] for message in first.messages] == ["system", "user"] and first.lacks is None
    assert second.lacks == "the answers of the turns before it" and second.delay_ms == 1000
    with pytest.raises(RowError, match=r"the prompt is incomplete: it lacks the answers of the turns before it\."):
        open_reader("auto", [orjson.dumps(row)], untimed=True).records(orjson.dumps(row))
    delta = orjson.dumps({"session_id": "s", "message_mode": "delta", "messages": [USER], "timestamp": 0})
    with pytest.raises(RowError, match="it lacks the turns before it"):
        open_reader("auto", [delta]).records(delta)


def test_delays_count_from_the_end_of_the_turn_before_them():
    times, none = [0, -1, 100, -1, -1], [-1] * 5
    sessions, delays = np.array([0, 0, 1, 1, 0]), np.array([-1, 50, -1, 7, 10])
    after = times_after_delays(np.array(times), sessions, delays, np.array(none))
    assert after.tolist() == [0, 50, 100, 107, 60]
    after = times_after_delays(np.array(times), sessions, delays, np.array([5, 3, -1, -1, -1]))
    assert after.tolist() == [0, 55, 100, 107, 68]  # 0 + 5 + 50, and 55 + 3 + 10


def test_an_arrival_model_takes_delays_for_think_times():
    model = ArrivalModel(1.0, 30_000.0)
    delays = np.array([-1, 250_000_000, -1, 500_000_000])
    times = model.times_ns(np.full(4, NO_TIME), np.array([0, 0, 1, 1]), delays)
    assert (times[1] - times[0], times[3] - times[2]) == (250_000_000, 500_000_000)
    assert (model.times_ns(np.full(4, NO_TIME), np.array([0, 0, 1, 1]))[[0, 2]] == times[[0, 2]]).all()


SESSION = [
    {"session_id": "s", "messages": [USER], "output_length": 3, "delay": None, "timestamp": 1000},
    {"session_id": "t", "messages": [USER], "output_length": 3, "timestamp": 1100},
    {"session_id": "s", "messages": [USER, SAID, USER], "output_length": 3, "delay": 250},
    {"session_id": "s", "messages": [USER, SAID, USER], "output_length": 3, "delay": 50.5},
]


def drafted(rows, tmp_path, **options):
    ids = [row | {"input": [1, 2]} for row in rows]
    job, batch = batch_of(ids, tmp_path, log_format="block-hash", **options)
    assert not batch.rejects
    collector = Collector.of(job.recipe, job.arrival_model)
    collector.add(unpacked(packed(batch)))
    return job, collector.finish(job.meta, keep_order=False)[0].rows


def test_delays_give_the_times_of_later_turns(tmp_path):
    job, rows = drafted(SESSION, tmp_path)
    assert rows.timestamp.tolist() == [0, 100, 250, 300] and rows.session.tolist() == [0, 1, 0, 0]
    notes = []
    notes += filter(None, job.notes())
    assert any(note.startswith("`delay` counts from the end of the answer before it") for note in notes)


def test_sessions_without_a_start_need_an_arrival_model(tmp_path):
    rows = [{name: value for name, value in row.items() if name != "timestamp"} for row in SESSION]
    rows[1]["delay"] = None
    with pytest.raises(RowError, match=r"the first request of a conversation has no time\. .* --arrivals rate=1/s"):
        drafted(rows, tmp_path)
    _, made = drafted(rows, tmp_path, arrivals="rate=2/s")
    times = made.timestamp[made.session == made.session[0]]
    assert np.diff(times if len(times) == 3 else made.timestamp[made.session != made.session[0]]).tolist() in (
        [250, 50], [250, 51])  # fmt: skip


@pytest.mark.parametrize("delay", [-1, "5", True, [1], 1e300, CANARY])
def test_a_delay_that_is_no_duration_is_a_bad_row(delay):
    row = {"session_id": "s", "input": [1, 2], "output": 1, "delay": delay}
    with pytest.raises(RowError, match=r"^delay: is not a number of milliseconds, from 0 to 30 days\.") as error:
        records_of(READERS["block-hash"], row)
    require_none(all_of(error.value), where="the error")


def test_a_row_without_time_and_delay_stays_an_error(tmp_path):
    line = json.dumps({"messages": [USER], "output_length": 3}).encode()
    with pytest.raises(RowError, match="A trace needs the time of each request"):
        open_reader("auto", [line]).read(line)
    reader = open_reader("auto", [line], untimed=True)
    assert reader.time_ns(reader.read(line)) == NO_TIME


def test_a_batch_without_delays_has_no_column_of_them():
    assert Batch().delay_ns is None
