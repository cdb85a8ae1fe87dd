"""Recording: what LiteLLM's callback takes of a gateway's event loop, and `Recorder.put` of the thread that calls it.

The callback turns a call into bytes, beside the same fields as JSON. Each time the texts are new: Python keeps a text's
UTF-8 once it was made. For the recorder, requests come one after the other at a fixed rate, as in a gateway, while it
hands them to its digester; the rival is one copy of the payload.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from kvtrace.capture.litellm_calls import needed, packed, unpacked
from kvtrace.capture.recorder import Recorder

from .measuring import Line, apart

CALLS = 300
TEXTS = {
    "prose": "the oven is on, ", "every fifth escaped": 'the "ov\nen', "accents": "Größe und Maß, ",
    "Chinese": "烤箱开着吗是的今天", "emoji": "oven 🍞 is on, ",
}  # fmt: skip
LENGTHS = (1_000, 10_000, 100_000)  # characters
PROPERTIES = {f"p{i}": {"type": "string", "description": 'What to "bake".\n' * 8} for i in range(8)}
TOOLS = [
    {"type": "function", "function": {"name": f"bake_{i}", "description": "Bakes.\n" * 20,
                                      "parameters": {"type": "object", "properties": PROPERTIES}}}
    for i in range(20)
]  # fmt: skip
BYTES = (1_000, 10_000, 100_000)  # of a payload
RATE, SECONDS = 500, 3  # requests a second
COSTS = ("put, the calling thread", "put, the process and its sender", "put, no room")


def lines(folder: str, share: float) -> Iterator[Line]:
    """Microseconds of a call, beside JSON, and of a payload, beside a copy of it."""
    for name, (packed_s, json_s) in apart(callback, max(10, round(CALLS * share))).items():
        yield Line(f"callback, {name} / JSON", "us", packed_s, json_s)
    for size in BYTES:
        *costs, copy = apart(recorder, size, round(RATE * SECONDS * share))
        for name, cost in zip(COSTS, costs, strict=True):
            yield Line(f"{name}, {size:,} bytes / a copy", "us", cost, copy)


# -- the callback --------------------------------------------------------------------------------------------------


def callback(calls: int) -> dict[str, tuple[float, float]]:
    """Name of a kind -> median seconds of a call as the callback packs it, and as JSON."""
    gc.disable()
    return {name: measured(make, calls) for name, make in kinds().items()}


def kinds() -> dict[str, Callable[[], dict[str, Any]]]:
    """Name of a kind -> makes a call of it, with texts of its own."""
    made: dict[str, Callable[[], dict[str, Any]]] = {}
    for length in LENGTHS:
        for name, text in TEXTS.items():
            made[f"{length:,} characters, {name}"] = lambda text=text, length=length: call([fresh(text, length)])
    made["20 schemas of tools, 20 kB"] = lambda: call(["Is it on?"], tools=TOOLS)
    for name in ("prose", "every fifth escaped", "Chinese"):
        made[f"200 messages of 500, {name}"] = lambda text=TEXTS[name]: call([fresh(text, 500) for _ in range(200)])
    return made


def fresh(text: str, length: int) -> str:
    """A text of so many characters that no other text shares."""
    return (text * (length // len(text) + 1))[:length]


def call(prompts: list[str], **parameters: Any) -> dict[str, Any]:
    """A StandardLoggingPayload with what LiteLLM adds to the prompt and the answer."""
    usage = {"prompt_tokens": 24, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
    return {
        "id": "r-1", "trace_id": "t-1", "call_type": "acompletion", "status": "success", "startTime": 1.9e9,
        "endTime": 1.9e9 + 0.5, "completionStartTime": 1.9e9 + 0.25, "response_time": 0.5, "model": "oven",
        "cache_hit": False, "end_user": "anna", "prompt_tokens": 24, "completion_tokens": 2, "response_cost": 0.01,
        "messages": [{"role": "user", "content": prompt} for prompt in prompts],
        "response": {"choices": [{"message": {"role": "assistant", "content": "Yes."}}], "usage": usage},
        "model_parameters": {"temperature": 0.5, **parameters}, "api_base": "http://inside:8000",
        "metadata": {"user_api_key_hash": "88dc28d0", "user_api_key_team_id": "bakers", "usage_object": usage},
    }  # fmt: skip


def measured(make: Callable[[], dict[str, Any]], calls: int) -> tuple[float, float]:
    """Median seconds of a call as the callback packs it, and as JSON, in turn; ValueError unless they say the same."""
    times: dict[Callable, list[float]] = {as_packed: [], as_json: []}
    for number in range(calls):
        for write in (as_json, as_packed) if number % 2 else (as_packed, as_json):
            one = make()
            start = time.perf_counter()
            write(one)
            times[write].append(time.perf_counter() - start)
    if orjson.loads(as_json(make())) != unpacked(as_packed(make())):
        raise ValueError("the packed fields are not those of the JSON")
    packed_s, json_s = map(statistics.median, times.values())
    return packed_s, json_s


def as_json(one: dict[str, Any]) -> bytes:
    """The fields that we need as JSON."""
    return orjson.dumps(needed(one), default=str, option=orjson.OPT_NON_STR_KEYS)


def as_packed(one: dict[str, Any]) -> bytes:
    """The fields that we need as the callback puts them into the queue."""
    return packed(needed(one))


# -- the recorder --------------------------------------------------------------------------------------------------


def payload_of(number: int, size: int) -> bytes:
    """A row of so many bytes, of which readers need little, so that the digester keeps up."""
    row = b'{"timestamp": %d, "prompt_token_ids": [1, 2, %d], "output_length": 3, "note": "'
    row %= 1_900_000_000 + number, number
    return row + b"x" * (size - len(row) - 2) + b'"}'


def recorder(size: int, count: int) -> list[float]:
    """Processor seconds a payload: of COSTS, and of a copy."""
    payloads = [payload_of(number, size) for number in range(count)]
    options: dict[str, Any] = {"tokenizer": None, "profile": "exact"}
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, **options) as recorder:
        process_s, calling_s = paced(lambda payload: recorder.put("follow", payload), payloads)
    if recorder.counts().digested != len(payloads):
        raise ValueError("requests were dropped or lost")
    idle_s, timing_s = paced(lambda payload: None, payloads)
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, queue_bytes=0, **options) as recorder:
        _, full_s = paced(lambda payload: recorder.put("follow", payload), payloads)
    _, copy_s = paced(bytearray, payloads)
    seconds = (calling_s - timing_s, process_s - idle_s, full_s - timing_s, copy_s - timing_s)
    return [one / len(payloads) for one in seconds]


def paced(run: Callable[[bytes], object], payloads: Sequence[bytes]) -> tuple[float, float]:
    """Processor seconds of the process, and of the calls, with the calls at RATE."""
    calling_s, process_s, start = 0.0, time.process_time(), time.monotonic()
    for number, payload in enumerate(payloads):
        time.sleep(max(0.0, start + number / RATE - time.monotonic()))
        before = time.thread_time()
        run(payload)
        calling_s += time.thread_time() - before
    return time.process_time() - process_s, calling_s
