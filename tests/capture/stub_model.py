"""A model server of our own: it answers as the APIs of OpenAI and Anthropic do, from a script in the request.

`{"stub": {...}}` in a request's body is the script: `status`, `coding` (gzip, deflate, zstd, br), `break_after`
(events, then the connection is cut), `wait_s` (before the answer), `step_s` (before each event), `error` (an error
event after that many events), `size` (bytes of an answer without events). What it saw of each request is in `seen`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import dataclass, field

import brotli
import zstandard

from tests.attacks.canary import CANARY

COMPRESS = {
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "br": brotli.compress,
}
TEXT = f"It is a fine day, says {CANARY}. Ünïcödé: 你好 👋"
THINKING = f"Let me think about {CANARY}."
ARGUMENTS = {"city": CANARY, "days": [1, 2]}
CACHED, PROMPT, OUTPUT = 32, 57, 23


@dataclass
class Seen:
    """What the server saw of one request."""

    method: str
    target: str
    headers: list
    body: bytes = b""
    left: bool = False  # the client left before the end of the answer


@dataclass
class StubModel:
    """The ASGI app."""

    seen: list[Seen] = field(default_factory=list)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        query = scope["query_string"].decode()
        seen = Seen(scope["method"], scope["raw_path"].decode() + ("?" + query if query else ""), scope["headers"])
        self.seen.append(seen)
        more = True
        while more:
            message = await receive()
            seen.body += message.get("body", b"")
            more = message.get("more_body", False)
        api = next((api for ending, api in APIS.items() if scope["path"].endswith(ending)), None)
        if scope["method"] != "POST" or api is None:
            await self._other(scope, send, seen)
            return
        coding = dict(scope["headers"]).get(b"content-encoding", b"").decode()
        try:
            request = json.loads(gzip.decompress(seen.body) if coding == "gzip" else seen.body)
        except ValueError:
            request = {"stub": {"status": 400}}
        script = request.get("stub", {})
        await asyncio.sleep(script.get("wait_s", 0))
        if script.get("status", 200) >= 300:
            error = {"type": "error", "error": {"type": "stub_error", "message": f"no {CANARY}"}}
            await whole(send, script["status"], json.dumps(error).encode())
            return
        answer = api(request)
        if not request.get("stream"):
            body = json.dumps(answer, ensure_ascii=False).encode().ljust(script.get("size", 0))
            if script.get("break_after") is not None:
                await start(send, 200, [(b"content-length", b"%d" % len(body))])
                await piece(send, body[:20])
                return
            await whole(send, 200, body, script.get("coding"))
            return
        await self._stream(request, script, answer, api, receive, send, seen)

    async def _stream(self, request, script, answer, api, receive, send, seen):
        events = STREAMS[api](request, answer)
        if "error" in script:
            broken = {"type": "error", "error": {"type": "overloaded_error", "message": CANARY}}
            events = [*events[: script["error"]], broken]
        lines = [line(event, api) for event in events]
        if "error" not in script and api in (chat, completion):
            lines.append(b"data: [DONE]\n\n")
        if coding := script.get("coding"):
            await whole(send, 200, b"".join(lines), coding, b"text/event-stream; charset=utf-8")
            return
        gone = asyncio.ensure_future(receive())
        await start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        for i, text in enumerate(lines):
            if i == script.get("break_after"):
                gone.cancel()
                return
            await asyncio.sleep(script.get("step_s", 0.0005))
            if gone.done():
                seen.left = True
                return
            half = len(text) // 2 if i % 2 else len(text)  # a piece may end inside an event
            await piece(send, text[:half])
            if text[half:]:
                await piece(send, text[half:])
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _other(self, scope, send, seen):
        path = scope["path"]
        if path.endswith("/moved"):
            await whole(send, 307, b"", location=b"/v1/models?again=1")
        elif path.endswith("/empty"):
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif path.endswith("/models"):
            await whole(send, 200, b'{"object": "list", "data": []}')
        elif path.endswith("/count_tokens"):
            await whole(send, 200, b'{"input_tokens": 57}')
        elif path.endswith("/files"):
            await whole(send, 200, b'{"bytes": %d}' % len(seen.body))
        else:
            await whole(send, 404 if scope["method"] in ("GET", "HEAD") else 405, b'{"error": {"message": "nothing"}}')


async def start(send, status, headers):
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def piece(send, body):
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def whole(send, status, body, coding=None, kind=b"application/json", **headers):
    body = COMPRESS[coding](body) if coding else body
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"x-stub", b"1"), (b"x-stub", b"2")]
    fields += [(b"set-cookie", f"a={CANARY}".encode()), (b"x-request-id", b"req_1")]
    fields += [(b"content-encoding", coding.encode())] if coding else []
    fields += [(name.encode(), value) for name, value in headers.items()]
    await start(send, status, fields)
    await send({"type": "http.response.body", "body": body})


def line(event, api):
    text = json.dumps(event, ensure_ascii=False)
    name = f"event: {event['type']}\n" if api in (message, response) and "type" in event else ""
    return f"{name}data: {text}\n\n".encode()


def cut(text, size=7):
    """The text in pieces, as a model generates it."""
    return [text[i : i + size] for i in range(0, len(text), size)]


# -- OpenAI's chat completions and completions -----------------------------------------------------------------------


def chat(request):
    said = {"role": "assistant", "content": TEXT, "refusal": None}
    if request.get("reasoning_effort"):
        said["reasoning_content"] = THINKING
    if request.get("tools"):
        said["content"] = None
        said["tool_calls"] = [
            {"id": f"call_{i}", "type": "function",
             "function": {"name": tool["function"]["name"], "arguments": json.dumps(ARGUMENTS)}}
            for i, tool in enumerate(request["tools"])
        ]  # fmt: skip
    end = "tool_calls" if request.get("tools") else "stop"
    choices = [
        {"index": i, "message": said, "logprobs": None, "finish_reason": end} for i in range(request.get("n", 1))
    ]
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": request["model"],
            "choices": choices, "usage": openai_usage()}  # fmt: skip


def openai_usage():
    return {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "total_tokens": PROMPT + OUTPUT,
            "prompt_tokens_details": {"cached_tokens": CACHED}}  # fmt: skip


def chat_stream(request, answer):
    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    asked = (request.get("stream_options") or {}).get("include_usage")
    head |= {"usage": None} if asked else {}

    def chunk(i, delta, end=None):
        return head | {"choices": [{"index": i, "delta": delta, "logprobs": None, "finish_reason": end}]}

    chunks = [chunk(c["index"], {"role": "assistant", "content": ""}) for c in answer["choices"]]
    for choice in answer["choices"]:
        said, i = choice["message"], choice["index"]
        chunks += [chunk(i, {"reasoning_content": text}) for text in cut(said.get("reasoning_content") or "")]
        chunks += [chunk(i, {"content": text}) for text in cut(said["content"] or "")]
        for j, call in enumerate(said.get("tool_calls", [])):
            opened = call | {"index": j, "function": call["function"] | {"arguments": ""}}
            chunks.append(chunk(i, {"tool_calls": [opened]}))
            chunks += [
                chunk(i, {"tool_calls": [{"index": j, "function": {"arguments": text}}]})
                for text in cut(call["function"]["arguments"])
            ]
    chunks += [chunk(c["index"], {}, c["finish_reason"]) for c in answer["choices"]]
    return chunks + ([head | {"choices": [], "usage": answer["usage"]}] if asked else [])


def completion(request):
    choices = [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length"}]
    return {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": request["model"],
            "choices": choices, "usage": openai_usage()}  # fmt: skip


def completion_stream(request, answer):
    head = answer | {"usage": None}
    choice = answer["choices"][0]
    chunks = [head | {"choices": [choice | {"text": text, "finish_reason": None}]} for text in cut(choice["text"])]
    chunks.append(head | {"choices": [choice | {"text": ""}]})
    asked = (request.get("stream_options") or {}).get("include_usage")
    return chunks + ([head | {"choices": [], "usage": answer["usage"]}] if asked else [])


# -- OpenAI's Responses ----------------------------------------------------------------------------------------------


def response(request):
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    items = [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}]
    for i, tool in enumerate(request.get("tools") or []):
        items.append({"type": "function_call", "id": f"fc_{i}", "call_id": f"call_{i}", "name": tool["name"],
                      "status": "completed", "arguments": json.dumps(ARGUMENTS)})  # fmt: skip
    usage = {"input_tokens": PROMPT, "input_tokens_details": {"cached_tokens": CACHED, "cache_write_tokens": 0},
             "output_tokens": OUTPUT, "output_tokens_details": {"reasoning_tokens": 0},
             "total_tokens": PROMPT + OUTPUT}  # fmt: skip
    return {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": "completed", "error": None,
            "model": request["model"], "instructions": request.get("instructions"), "output": items, "usage": usage,
            "tools": request.get("tools") or [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {},
            "incomplete_details": None, "temperature": 1.0, "top_p": 1.0}  # fmt: skip


def response_stream(request, answer):
    opened = answer | {"status": "in_progress", "output": [], "usage": None}
    events = [{"type": "response.created", "response": opened}, {"type": "response.in_progress", "response": opened}]
    for i, item in enumerate(answer["output"]):
        place = {"output_index": i, "item_id": item["id"]}
        empty = item | ({"content": []} if item["type"] == "message" else {"arguments": ""}) | {"status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": i, "item": empty})
        if item["type"] == "message":
            part, place = item["content"][0], place | {"content_index": 0}
            events.append({"type": "response.content_part.added"} | place | {"part": part | {"text": ""}})
            events += [{"type": "response.output_text.delta", "delta": text, "logprobs": []} | place
                       for text in cut(part["text"])]  # fmt: skip
            events.append({"type": "response.output_text.done", "text": part["text"], "logprobs": []} | place)
            events.append({"type": "response.content_part.done", "part": part} | place)
        else:
            events += [{"type": "response.function_call_arguments.delta", "delta": text} | place
                       for text in cut(item["arguments"])]  # fmt: skip
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append({"type": "response.function_call_arguments.done"} | done | place)
        events.append({"type": "response.output_item.done", "output_index": i, "item": item})
    events.append({"type": "response.completed", "response": answer})
    return [event | {"sequence_number": i} for i, event in enumerate(events)]


# -- Anthropic's Messages --------------------------------------------------------------------------------------------


def message(request):
    blocks = [{"type": "thinking", "thinking": THINKING, "signature": "c2ln"}] if request.get("thinking") else []
    blocks.append({"type": "text", "text": TEXT, "citations": None})
    for i, tool in enumerate(request.get("tools") or []):
        blocks.append({"type": "tool_use", "id": f"toolu_{i}", "name": tool["name"], "input": ARGUMENTS})
    usage = {"input_tokens": PROMPT - CACHED - 5, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 5,
             "output_tokens": OUTPUT}  # fmt: skip
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "content": blocks,
            "stop_reason": "tool_use" if request.get("tools") else "end_turn", "stop_sequence": None,
            "usage": usage}  # fmt: skip


def message_stream(request, answer):
    opened = answer | {"content": [], "stop_reason": None, "usage": answer["usage"] | {"output_tokens": 1}}
    events = [{"type": "message_start", "message": opened}, {"type": "ping"}]
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
    for i, block in enumerate(answer["content"]):
        kind = block["type"]
        events.append({"type": "content_block_start", "index": i, "content_block": block | empty[kind]})
        deltas = {
            "text": [{"type": "text_delta", "text": text} for text in cut(block.get("text", ""))],
            "thinking": [{"type": "thinking_delta", "thinking": text} for text in cut(block.get("thinking", ""))]
            + [{"type": "signature_delta", "signature": "c2ln"}],
            "tool_use": [{"type": "input_json_delta", "partial_json": ""}]
            + [{"type": "input_json_delta", "partial_json": t} for t in cut(json.dumps(block.get("input")))],
        }[kind]
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": i})
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": OUTPUT}})
    return [*events, {"type": "message_stop"}]


APIS = {"/chat/completions": chat, "/completions": completion, "/responses": response, "/messages": message}
STREAMS = {chat: chat_stream, completion: completion_stream, response: response_stream, message: message_stream}
