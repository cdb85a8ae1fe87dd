"""Output formats for prompts: one row of a trace as a line of JSON. A format is a function and a row in FORMS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..._base.errors import pasted


@dataclass(frozen=True)
class PromptRequest:
    """The data of one line."""

    text: str
    timestamp: float  # ms
    input_length: int
    output_length: int | None  # None = unknown
    session: int  # -1 = none
    model: str | None = None


def plain_line(request: PromptRequest) -> dict[str, Any]:
    """A plain prompt with the trace's columns."""
    time = request.timestamp
    row = {
        "timestamp": int(time) if time.is_integer() else time,
        "input_length": request.input_length,
        "output_length": request.output_length,
        "prompt": request.text,
    }
    return row if request.session < 0 else row | {"session": request.session}


def openai_body(request: PromptRequest) -> dict[str, Any]:
    """The body of an OpenAI chat completion, with the text as its only message."""
    body: dict[str, Any] = {} if request.model is None else {"model": request.model}
    messages = [{"role": "user", "content": request.text}]
    return body | {"messages": messages, "max_tokens": max(1, request.output_length or 0)}


def vllm_line(request: PromptRequest) -> dict[str, Any]:
    """A line for vLLM's `bench serve --dataset-name custom`."""
    return {"prompt": request.text, "output_tokens": max(1, request.output_length or 0)}


def aiperf_line(request: PromptRequest) -> dict[str, Any]:
    """A row of AIPerf's `mooncake-trace` with a text."""
    return {
        "timestamp": plain_line(request)["timestamp"],
        "text_input": request.text,
        "output_length": None if request.output_length is None else max(1, request.output_length),
    }


FORMS: dict[str, Callable[[PromptRequest], dict[str, Any]]] = {
    "prompts": plain_line,
    "openai": openai_body,
    "vllm": vllm_line,
    "aiperf": aiperf_line,
    "sglang": openai_body,  # `bench_serving --dataset-name openai` reads chat bodies
    "dag-jsonl": openai_body,  # turns of agents, which writing.py makes of the requests
}
DAG = "dag-jsonl"
OUTPUTS_MAY_BE_UNKNOWN = ("prompts", "aiperf")  # forms whose lines may have null; the others limit the output
CHAT_FORMS = {"openai", "sglang", DAG}  # the server adds its chat template to the text


def usage(form: str, path: str, rows: int) -> list[str]:
    """The commands that send the file.

    >>> usage("prompts", "p.jsonl", 3)
    []
    """
    if form == "vllm":
        return [
            f"vllm bench serve --dataset-name custom --dataset-path {pasted(path)} --custom-output-len -1 "
            f"--num-prompts {rows} --skip-chat-template --disable-shuffle --ignore-eos"
        ]
    if form == "aiperf":
        return [f"aiperf profile --input-file {pasted(path)} --custom-dataset-type mooncake-trace --fixed-schedule"]
    if form == DAG:
        return [f"aiperf profile --input-file {pasted(path)} --custom-dataset-type dag_jsonl --endpoint-type chat"]
    if form == "sglang":
        return [
            f"python -m sglang.bench_serving --backend sglang-oai-chat --dataset-name openai "
            f"--dataset-path {pasted(path)} --num-prompts {rows}"
        ]
    return []
