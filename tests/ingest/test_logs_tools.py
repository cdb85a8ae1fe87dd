"""Readers of the exports of observability tools (Langfuse, LangSmith, Helicone, Portkey) and of vLLM's own log."""

from pathlib import Path

import pytest

from kvtrace._base.errors import NotARequest, RowError
from kvtrace.ingest.logs import READERS, open_reader, records_of, sources

DATA = Path(__file__).parents[1] / "data/logs"
WHOLE = {  # example -> (time in s after 05:06:00, session, user, prompt tokens, output length, messages)
    "langfuse": [
        (7.1, "s-1", "kim", 20, 8, 2), (20.25, "s-1", "kim", 38, 6, 4), (30.1, "s-2", "lee", 30, 7, 2),
        (32.1, "s-2", "lee", 9, 4, 0),
    ],
    "langsmith": [
        (7.1, "th-1", "kim", 25, 9, 2), (15.3, "th-2", "lee", 17, 7, 2), (20.0, "th-2", None, None, None, 0),
    ],
    "helicone": [(7.123, "s-1", "kim", 20, 8, 2), (12.5, None, "lee", 17, 7, 2), (13.5, "s-1", None, None, None, 1)],
    "portkey": [(7.123, "s-1", "kim", 20, 8, 2), (9.5, None, None, 30, 7, 2), (12.0, None, "lee", None, None, 1)],
}  # fmt: skip
START_NS = 1_930_367_160 * 10**9
LANGFUSE = {"traceId": "t", "type": "GENERATION", "startTime": "2031-03-04T05:06:07Z", "input": "Hello", "output": "Hi"}
HELICONE = {"request_created_at": "2031-03-04T05:06:07Z", "request_body": {"prompt": "Hello"}, "response_body": {}}
LANGSMITH = {
    "run_type": "llm",
    "start_time": "2031-03-04T05:06:07",
    "inputs": {"prompt": "Hello"},
    "outputs": {"text": "Hi"},
}
PORTKEY = {"created_at": "2031-03-04T05:06:07Z", "ai_model": "m", "request": {"prompt": "Hello"}, "response": {}}


@pytest.mark.parametrize("name", WHOLE)
def test_an_export_is_recognised_and_read_to_its_end(name):
    lines = sources.sample(sources.find(DATA / f"{name}.jsonl"))
    reader, read, left_out = open_reader("auto", lines), [], 0
    for line in lines:
        try:
            for one in reader.records(line):
                seconds = (reader.time_ns(one) - START_NS) / 10**9
                messages = len(one.messages or [])
                read.append((seconds, one.session, one.user, one.prompt_tokens, one.output_length, messages))
        except NotARequest:
            left_out += 1
    assert (reader.name, reader.note, read) == (name, None, WHOLE[name])
    assert left_out >= 1


@pytest.mark.parametrize(
    ("row", "name", "refusal"),
    [
        (LANGFUSE | {"startTime": None}, "langfuse", "startTime: is missing. A trace needs the time of each request."),
        (LANGFUSE | {"input": None}, "langfuse", "input: is missing. It must hold the prompt."),
        (LANGFUSE | {"output": {"a": 1}}, "langfuse", "output: is not an answer"),
        (LANGFUSE | {"usageDetails": {"output": -1}}, "langfuse", "usageDetails.output: is negative."),
        (
            HELICONE | {"request_body": None},
            "helicone",
            "request_body: is missing: the prompt was not exported. Export",
        ),
        (HELICONE | {"request_body": {"messages": 5}}, "helicone", "request_body.messages: is a number; expected"),
        (HELICONE | {"request_created_at": None}, "helicone", "request_created_at: is missing."),
        (LANGSMITH | {"inputs": {}}, "langsmith", "inputs.messages: is missing. It must hold the prompt."),
        (LANGSMITH | {"outputs": {"a": 1}}, "langsmith", "outputs: is not an answer"),
        (LANGSMITH | {"start_time": None}, "langsmith", "start_time: is missing."),
        (PORTKEY | {"request": {"messages": 5}}, "portkey", "request.messages: is a number"),
        (PORTKEY | {"created_at": None}, "portkey", "created_at: is missing."),
    ],
)
def test_a_bad_row_is_refused_with_its_path(row, name, refusal):
    with pytest.raises(RowError) as error:
        records_of(READERS[name], row)
    assert str(error.value).startswith(refusal)


def test_the_project_of_a_run_is_neither_its_session_nor_its_tenant():
    (record,) = records_of(READERS["langsmith"], LANGSMITH | {"session_id": "project", "tenant_id": "workspace"})
    assert (record.session, record.tenant) == (None, None)
    (record,) = records_of(READERS["langfuse"], LANGFUSE | {"projectId": "project", "project_id": "project"})
    assert (record.session, record.tenant) == (None, None)


def test_cached_tokens_count_as_prompt_tokens_only_if_they_make_up_the_total():
    counts = {"input": 4, "input_cached_tokens": 16, "output": 8}
    (apart,) = records_of(READERS["langfuse"], LANGFUSE | {"usageDetails": counts | {"total": 28}})
    (within,) = records_of(READERS["langfuse"], LANGFUSE | {"usageDetails": counts | {"total": 12}})
    assert (apart.prompt_tokens, within.prompt_tokens) == (20, 4)


def test_anthropic_blocks_and_langchain_messages_become_chat_messages():
    use = {"type": "tool_use", "id": "c1", "name": "oven", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "on"}
    blocks = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    (record,) = records_of(READERS["langfuse"], LANGFUSE | {"input": blocks})
    assert [message["role"] for message in record.messages] == ["assistant", "tool"]
    chain = [{"type": "human", "data": {"content": "Is it?"}}, {"type": "ai", "content": "Yes.", "tool_calls": []}]
    (record,) = records_of(READERS["langsmith"], LANGSMITH | {"inputs": {"messages": chain}})
    assert record.messages == [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes."}]


# -- vLLM ------------------------------------------------------------------------------------------------------------

RECEIVED = b"INFO 06-10 23:35:35 [logger.py:39] Received request a: prompt: 'Hi', params: SamplingParams(%s), "
ENDLESS = b"ignore_eos=True, max_tokens=5"


def test_the_requests_of_vllms_log_are_read_and_its_other_lines_left_out():
    lines = sources.sample(sources.find(DATA / "vllm.log"))
    reader, read, left_out = open_reader("auto", lines), [], 0
    for line in lines:
        try:
            one = reader.read(line)
            prompt = one.text or list(one.token_ids)
            read.append((reader.time_ns(one) // 10**9, prompt, one.output_length, one.adapter))
        except NotARequest:
            left_out += 1
    start = read[0][0]
    assert [(time - start, *rest) for time, *rest in read] == [
        (0, "<|user|>Is the baker's oven on?\n<|assistant|>", 16, None),
        (6, [15, 27, 29, 4], 7, "rye"),
        (1467, "<|user|>Rye?<|assistant|>", 9, None),
    ]
    assert (reader.name, left_out) == ("vllm", 6)


def test_a_limit_of_vllm_is_the_output_length_only_if_it_is_reached_or_mapped():
    line = RECEIVED % b"ignore_eos=False, max_tokens=5"
    assert not open_reader("auto", [line]).read(line).has_output
    assert open_reader("auto", [line], field_map={"output_length": "max_tokens"}).read(line).output_length == 5
    assert open_reader("auto", [RECEIVED % ENDLESS]).read(RECEIVED % ENDLESS).output_length == 5


@pytest.mark.parametrize("ids", [b"[01, 2]", b"[1 2]", b"[,]", b"[" + b"9" * 400 + b"]"])
def test_ids_of_vllm_that_are_not_whole_numbers_are_no_prompt(ids):
    line = b"INFO 06-10 23:35:35 [x.py:1] Received request a: params: P(%s), prompt_token_ids: %s" % (ENDLESS, ids)
    with pytest.raises(NotARequest, match=r"^prompt: logs a request without its prompt\.$"):
        open_reader("auto", [line]).read(line)


def test_the_stamp_of_a_container_is_the_time():
    line = b"2031-03-04T05:06:07.123456789Z " + RECEIVED % ENDLESS
    reader = open_reader("auto", [line])
    assert reader.time_ns(reader.read(line)) == START_NS + 7_123_456_789


def test_a_preview_of_the_greatest_length_is_taken_as_cut():
    text = b"x" * 4096
    line = b"INFO 06-10 23:35:35 [x.py:1] Received request a: params: P(%s), lora_request: None, prompt: '%s'." % (
        ENDLESS,
        text,
    )
    with pytest.raises(RowError, match="was cut short by the logger"):
        open_reader("auto", [line]).read(line)
