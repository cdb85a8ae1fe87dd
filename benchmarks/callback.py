"""LiteLLM's callback: microseconds of the gateway's event loop for a call, beside the same fields as JSON.

python -m benchmarks.callback                medians of 300 calls of each kind
python -m benchmarks.callback --calls 1000

Both turn the same call into bytes, in turn, each time with texts of their own: Python keeps a text's UTF-8 once it was
made. Kinds are prose, prose with characters that JSON escapes, other scripts, schemas of tools, and long chats.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from kvtrace.capture.litellm_fields import needed
from kvtrace.capture.litellm_packing import packed, unpacked

from .apart import wait_for_quiet

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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    load = wait_for_quiet(5)
    print(f"load {load:.1f}; medians of {options.calls} calls, in microseconds\n{'':36}{'JSON':>8}{'ours':>8}")
    gc.disable()
    for name, make in kinds().items():
        json_us, ours_us = measured(make, options.calls)
        print(f"{name:36}{json_us:8.1f}{ours_us:8.1f}")


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
    """Median microseconds of a call as JSON, and as the callback packs it."""
    times: dict[Callable, list[int]] = {as_json: [], as_packed: []}
    for number in range(calls):
        for write in (as_json, as_packed) if number % 2 else (as_packed, as_json):
            one = make()
            start = time.perf_counter_ns()
            write(one)
            times[write].append(time.perf_counter_ns() - start)
    assert orjson.loads(as_json(make())) == unpacked(as_packed(make()))
    json_us, ours_us = (statistics.median(taken) / 1e3 for taken in times.values())
    return json_us, ours_us


def as_json(one: dict[str, Any]) -> bytes:
    """The fields that we need as JSON."""
    return orjson.dumps(needed(one), default=str, option=orjson.OPT_NON_STR_KEYS)


def as_packed(one: dict[str, Any]) -> bytes:
    """The fields that we need as the callback puts them into the queue."""
    return packed(needed(one))


if __name__ == "__main__":
    main()
