"""One row of a trace as a line of JSON, for whoever is to send its text. A form is a function and a row in FORMS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """What a line is made of."""

    text: str
    timestamp: float  # ms
    input_length: int
    output_length: int
    session: int  # -1 = none
    model: str | None = None


def prompt(request: Request) -> dict[str, Any]:
    """A plain prompt with the trace's columns beside it."""
    time = request.timestamp
    row = {
        "timestamp": int(time) if time.is_integer() else time,
        "input_length": request.input_length,
        "output_length": request.output_length,
        "prompt": request.text,
    }
    return row if request.session < 0 else row | {"session": request.session}


def openai(request: Request) -> dict[str, Any]:
    """The body of an OpenAI chat completion: the text is one user message."""
    body: dict[str, Any] = {} if request.model is None else {"model": request.model}
    messages = [{"role": "user", "content": request.text}]
    return body | {"messages": messages, "max_tokens": max(1, request.output_length)}


def vllm(request: Request) -> dict[str, Any]:
    """A line of vLLM's `bench serve --dataset-name custom`."""
    return {"prompt": request.text, "output_tokens": max(1, request.output_length)}


def aiperf(request: Request) -> dict[str, Any]:
    """A row of AIPerf's `mooncake-trace` that brings its text."""
    return {
        "timestamp": prompt(request)["timestamp"],
        "text_input": request.text,
        "output_length": max(1, request.output_length),
    }


FORMS: dict[str, Callable[[Request], dict[str, Any]]] = {
    "prompts": prompt,
    "openai": openai,
    "vllm": vllm,
    "aiperf": aiperf,
    "sglang": openai,  # `bench_serving --dataset-name openai` reads chat bodies
}
IS_CHAT = {"openai", "sglang"}  # a server puts its chat template around the text


def usage(form: str, path: str, rows: int) -> list[str]:
    """How to send the file.

    >>> usage("prompts", "p.jsonl", 3)
    []
    """
    if form == "vllm":
        return [
            f"vllm bench serve --dataset-name custom --dataset-path {path} --custom-output-len -1 --num-prompts {rows} "
            "--skip-chat-template --disable-shuffle --ignore-eos"
        ]
    if form == "aiperf":
        return [f"aiperf profile --input-file {path} --custom-dataset-type mooncake-trace --fixed-schedule"]
    if form == "sglang":
        return [
            f"python -m sglang.bench_serving --backend sglang-oai-chat --dataset-name openai --dataset-path {path} "
            f"--num-prompts {rows}"
        ]
    return []
