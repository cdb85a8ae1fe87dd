"""Calls through LiteLLM with kvtrace's callback, with a logger of our own beside it, and with its `generic_api`.

Run in an environment that has litellm, with kvtrace on PYTHONPATH, as MODEL_SERVER RECEIVER FOLDER: it writes what
each of them gets of the same calls to `callback.jsonl` and `own.jsonl`, and posts to RECEIVER if it is not empty.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from litellm.integrations.custom_logger import CustomLogger

from kvtrace.capture import LiteLLMCallback
from kvtrace.capture.sources import SOURCES

MODEL, RECEIVER, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


class Lines:
    """A recorder that keeps the lines of the payloads."""

    def __init__(self):
        self.payloads = []

    def put(self, source, payload, requests):
        assert (source, requests) == ("litellm", 1)
        self.payloads += SOURCES[source].rows().of(payload)
        return True


class Own(CustomLogger):
    """LiteLLM's own payload of each call."""

    def __init__(self):
        self.calls = []

    def log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.calls.append(json.dumps(kwargs["standard_logging_object"], default=str))

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.calls.append(json.dumps(kwargs["standard_logging_object"], default=str))


recorder, own = Lines(), Own()
litellm.callbacks = [LiteLLMCallback(recorder), own]
TOOLS = [{"type": "function", "function": {"name": "bake", "parameters": {"type": "object", "properties": {}}}}]


def request(number, **options):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Is oven {number} on? \u00fc"}]
    return {"model": "openai/stand-in", "api_base": MODEL, "api_key": "sk-secret", "messages": messages,
            "max_tokens": 3, "user": "anna", "metadata": {"session_id": "s-1"}} | options  # fmt: skip


async def answer(number, **options):
    done = await litellm.acompletion(**request(number, **options))
    if options.get("stream"):
        async for _ in done:
            pass


async def main():
    if RECEIVER:
        from litellm.integrations.generic_api.generic_api_callback import GenericAPILogger

        posted = GenericAPILogger(RECEIVER, log_format=sys.argv[4])
        litellm.callbacks.append(posted)
    await asyncio.gather(*(answer(n) for n in range(5)))
    await asyncio.gather(*(answer(n, stream=True, stream_options={"include_usage": True}) for n in range(5, 10)))
    await answer(10, tools=TOOLS)
    try:
        await answer(11, api_base="http://127.0.0.1:1", num_retries=0, max_retries=0)  # nobody answers there
        raise AssertionError("the call did not fail")
    except litellm.InternalServerError:
        pass
    deadline = time.monotonic() + 20
    while len(own.calls) < 11 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    if RECEIVER:
        await posted.async_send_batch()


asyncio.run(main())
if not RECEIVER:  # calls without an event loop: LiteLLM logs them in a thread
    litellm.completion(**request(12))
    for _ in litellm.completion(**request(13, stream=True)):
        pass
    deadline = time.monotonic() + 20
    while len(own.calls) < 13 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
(FOLDER / "callback.jsonl").write_bytes(b"\n".join(recorder.payloads) + b"\n")
(FOLDER / "own.jsonl").write_text("\n".join(own.calls) + "\n")
print(json.dumps({"version": litellm.__version__ if hasattr(litellm, "__version__") else "", "calls": len(own.calls)}))
