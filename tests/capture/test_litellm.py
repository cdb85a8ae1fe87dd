"""LiteLLM's callback and its POSTs: which fields are kept, and that nothing reaches LiteLLM but an answer."""

import copy
import gzip
import subprocess
import sys
import types

import msgspec
import orjson
import pytest

import kvtrace.capture
from kvtrace._base.errors import NotARequest, RowError, UsageError
from kvtrace.capture.litellm_callback import LAST_CALLS, CallQueue
from kvtrace.capture.litellm_calls import TEXTS, needed, packed, unpacked
from kvtrace.capture.sources import SOURCES
from kvtrace.capture.sources.otlp import otlp_app
from kvtrace.ingest.logs import open_reader
from tests.capture.asgi import Queue, post
from tests.conftest import ROOT

JSON = "application/json"
SECRETS = {"user_api_key": "sk-1234", "api_base": "http://inside:8000", "requester_ip_address": "10.0.0.7"}
METADATA = {
    "user_api_key_hash": "88dc28d0", "user_api_key_user_id": "owner", "user_api_key_team_id": "bakers",
    "usage_object": {"prompt_tokens": 24, "prompt_tokens_details": {"cached_tokens": 16}},
}  # fmt: skip
PRIVATE = {"user_api_key_user_email": "anna@example.org", "requester_custom_headers": {"x-key": "sk-1234"},
           "user_api_key_auth_metadata": {"key": "sk-1234"}}  # fmt: skip


def call(number=0, **fields):
    """A StandardLoggingPayload."""
    base = {
        "id": f"r-{number}", "trace_id": f"t-{number}", "session_id": "s-1", "call_type": "acompletion",
        "status": "success", "startTime": 1.9e9 + number, "endTime": 1.9e9 + number + 0.5,
        "completionStartTime": 1.9e9 + number + 0.25, "response_time": 0.5, "model": "oven", "cache_hit": False,
        "end_user": "anna", "messages": [{"role": "user", "content": f"Is oven {number} on?"}],
        "response": {"choices": [{"message": {"role": "assistant", "content": "Yes."}}], "usage": {}},
        "model_parameters": {"temperature": 0.5, "tools": [{"type": "function", "function": {"name": "bake"}}]},
        "prompt_tokens": 24, "completion_tokens": 2, "response_cost": 0.01, "metadata": METADATA | PRIVATE,
    }  # fmt: skip
    return base | SECRETS | fields


def read(line):
    return open_reader("litellm", [line], time_unit="s").read(line)


def test_the_fields_that_are_kept_are_all_that_the_reader_needs():
    rows = [call(), call(1, call_type="responses"), call(2, call_type="text_completion", messages="Is it on?")]
    rows += [orjson.loads(line) for line in (ROOT / "tests/data/logs/litellm.jsonl").read_bytes().splitlines()]
    read_some = 0
    for row in rows:
        try:
            record = read(orjson.dumps(row))
        except (NotARequest, RowError) as error:
            with pytest.raises(type(error)) as again:
                read(orjson.dumps(needed(row)))
            assert str(again.value) == str(error)
        else:
            assert read(orjson.dumps(needed(row))) == record
            read_some += 1
    assert read_some >= 5
    record = read(orjson.dumps(needed(call())))
    assert (record.user, record.account, record.tenant, record.cached_tokens) == ("anna", "owner", "bakers", 16)


def line_of(queue):
    """The line of the last call."""
    (line,) = SOURCES["litellm"].rows().of(queue.items[-1][1])
    return line


def test_keys_addresses_and_costs_are_dropped_before_the_queue():
    queue = Queue()
    CallQueue(queue).take({"standard_logging_object": call()})
    assert post(otlp_app(queue), "/litellm", orjson.dumps([call(1)]), JSON).status == 200
    for source, payload, count in queue.items:
        assert (source, count) == ("litellm", 1)
        (payload,) = SOURCES[source].rows().of(payload)
        for private in (b"sk-1234", b"example.org", b"10.0.0.7", b"inside", b"response_cost"):
            assert private not in payload
    CallQueue(queue, keep=["requester_ip_address", "user_api_key_user_email"]).take({"standard_logging_object": call()})
    assert b"10.0.0.7" in line_of(queue) and b"anna@example.org" in line_of(queue)


def test_a_call_that_is_reported_twice_counts_once():
    queue = Queue(room=10**6)
    calls = CallQueue(queue)
    for number in (0, 0, 1, 0, 1):
        calls.take({"standard_logging_object": call(number)})
    assert len(queue.items) == 2 and calls.repeated == 3
    for number in range(2 * LAST_CALLS):
        calls.take({"standard_logging_object": call(number)})
    assert len(queue.items) == 2 * LAST_CALLS and len(calls._last) == LAST_CALLS


class Broken:
    """A recorder that is closed."""

    def put(self, *_):
        raise ValueError("closed")


@pytest.mark.parametrize(
    "kwargs", [{}, {"standard_logging_object": None}, {"standard_logging_object": "x"}, {"standard_logging_object": {}}]
)
def test_nothing_is_raised_into_litellm(kwargs):
    CallQueue(Queue()).take(kwargs)
    broken = CallQueue(Broken())
    broken.take({"standard_logging_object": call()})
    assert broken.failed == 1
    broken.take({"standard_logging_object": call(7, messages=[{"role": "user", "content": "\ud800"}])})
    assert broken.failed == 2


@pytest.mark.parametrize("depth", [300, 100_000])
def test_a_call_that_has_no_json_is_counted(depth):
    deep, queue = "oven", Queue()
    for _ in range(depth):
        deep = [deep]
    calls = CallQueue(queue)
    calls.take({"standard_logging_object": call(messages=deep)})
    if depth > 1000:
        assert (calls.failed, queue.items) == (1, [])
    else:
        with pytest.raises(RowError, match="cannot be written as JSON") as error:
            line_of(queue)
        assert "oven" not in repr(error.value)


PHRASES = {
    "prose": "the oven is on, ", "escapes": 'the "oven"\nis\t\\on\x00', "latin": "Größe und Maß, ",
    "cyrillic": "печь включена, ", "chinese": "烤箱开着吗", "emoji": "oven 🍞 is ", "last": "\uffff\U0010ffff",
}  # fmt: skip
LENGTHS = (0, 1, 4095, 4096, 5000, 20_000)


@pytest.mark.parametrize("text", PHRASES.values(), ids=PHRASES)
def test_a_packed_call_is_the_call_as_json(text):
    """orjson is the oracle, and LiteLLM's own call is left as it was."""
    for length in LENGTHS:
        whole = (text * (length // len(text) + 1))[:length]
        parts = [{"type": "text", "text": whole}, {"type": "image_url", "image_url": {"url": whole[:9]}}, whole, None]
        messages = [{"role": "system", "content": whole}, {"role": "user", "content": parts}, {"content": None}, whole]
        for prompt in (messages, whole, {"input": whole}, [1, 2], None):
            one = call(messages=prompt, response={"choices": [{"message": {"content": whole}}]})
            before, queue = copy.deepcopy(one), Queue()
            CallQueue(queue).take({"standard_logging_object": one})
            assert line_of(queue) == orjson.dumps(needed(one)) and one == before
    whole = text * 2000
    whole.encode()  # numbers of the UTF-8 that Python may keep beside the text change nothing
    assert unpacked(packed({"messages": whole})) == {"messages": whole}


@pytest.mark.parametrize("text", PHRASES.values(), ids=PHRASES)
def test_a_long_chat_of_short_texts(text):
    part = {"type": "text", "text": text}
    turns = [
        {"role": "user", "content": text}, {"role": "assistant", "content": None, "tool_calls": [{"id": text}]},
        {"role": "tool", "content": text, "tool_call_id": "1"}, {"role": "user", "content": [part, text, None, part]},
        {"role": 5, "content": text}, {"role": "user", "content": "ja"}, {"role": "user", "content": [None]},
    ]  # fmt: skip
    for messages in (turns, turns * 1000, [{"role": "user", "content": text}] * 5000):
        one = call(messages=messages)
        before, queue = copy.deepcopy(one), Queue()
        CallQueue(queue).take({"standard_logging_object": one})
        assert line_of(queue) == orjson.dumps(needed(one)) and one == before


TAKEN = [  # texts that do not fit the messages ["user", {}]
    None, [], [[0]], [[0], [1], b"\x01"], [[0], [2], b"\x01", b""], [[0, 1], [1], b"\x01", b"x"],
    [[0], [1], b"\x03", b"xyz"], [[5], [1], b"\x01", b"x"], [[[1, 0]], [1], b"\x01", b"x"],
    [[0], [1], b"\x02", b"\x00\xd8"], [["a"], [1], b"\x01", b"x"],
]  # fmt: skip


@pytest.mark.parametrize(
    "payload",
    [b"\x81", b"\xc1", b"\xde\xff\xff",
     *(msgspec.msgpack.encode({"messages": ["user", {}], TEXTS: taken}) for taken in TAKEN)],
)  # fmt: skip
def test_a_payload_that_is_not_valid_is_a_bad_row(payload):
    with pytest.raises(RowError, match="cannot be written as JSON"):
        SOURCES["litellm"].rows().of(payload)


def test_values_that_are_not_json_are_written_as_litellm_does():
    class Model:
        def __str__(self):
            return "model"

    queue = Queue()
    CallQueue(queue).take({"standard_logging_object": call(response=Model(), model_parameters={7: Model()})})
    assert orjson.loads(line_of(queue))["response"] == "model"
    assert orjson.loads(line_of(queue))["model_parameters"] == {"7": "model"}


@pytest.mark.parametrize("form", ["array", "lines", "single", "gzip"])
def test_posts_of_every_form(form):
    calls = [call(0), call(1)] if form != "single" else [call(0)]
    indented = orjson.dumps(calls, option=orjson.OPT_INDENT_2)
    body = {"array": orjson.dumps([*calls, None]), "gzip": gzip.compress(indented),
            "lines": b"\n".join(map(orjson.dumps, calls)) + b"\n", "single": orjson.dumps(calls[0])}[form]  # fmt: skip
    queue = Queue()
    answer = post(otlp_app(queue), "/litellm", body, JSON, content_encoding="gzip" if form == "gzip" else None)
    assert (answer.status, answer.body) == (200, b"{}")
    ((source, payload, count),) = queue.items
    lines = SOURCES[source].rows().of(payload)
    assert count == len(lines) == len(calls)
    assert [read(line) for line in lines] == [read(orjson.dumps(one)) for one in calls]


@pytest.mark.parametrize("body", [b"5", b'"oven"', b"[1]", b"{", b'[{"oven"', b'{"a": 1}\noven', b"[" * 10_000])
def test_a_malformed_post_is_refused_without_showing_it(body):
    answer = post(otlp_app(None), "/litellm", body, JSON)
    assert answer.status == 400 and b"oven" not in answer.body


def test_a_post_to_a_full_queue():
    answer = post(otlp_app(Queue(room=0)), "/litellm", orjson.dumps([call()]), JSON)
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
    assert post(otlp_app(Queue(room=0)), "/litellm", b"[null]", JSON).status == 200


def test_litellm_is_imported_by_its_name_alone():
    code = "import kvtrace.capture, kvtrace.capture.sources, sys; assert 'litellm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        kvtrace.capture.Other  # noqa: B018


def test_without_litellm_the_callback_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    monkeypatch.setitem(sys.modules, "litellm.integrations.custom_logger", None)
    with pytest.raises(UsageError, match="pip install litellm"):
        kvtrace.capture.LiteLLMCallback  # noqa: B018


def test_without_msgspec_the_callback_says_what_to_install(monkeypatch):
    base = types.ModuleType("litellm.integrations.custom_logger")
    base.CustomLogger = object
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(UsageError, match="kvtrace\\[live\\]"):
        kvtrace.capture.LiteLLMCallback  # noqa: B018
