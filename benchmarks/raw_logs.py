"""Raw logs to measure with: chats request by request, and an agent's long prompts; made up where no real ones are."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import orjson

SHARED = Path(os.environ.get("KVTRACE_SHARED", Path(__file__).parents[2] / "shared"))
CHATS, AGENT = SHARED / "data/chats/intercode.jsonl", SHARED / "data/agent_logs/miniswe.jsonl"
WORDS = ["the", "a", "of", "to", "in", "is", "that", "file", "error", "line", "test", "list", "sort", "value", "boat"]


def large(folder: str, megabytes: float) -> str:
    """A log of so many megabytes or a little more: each turn of each chat as a request, then agents' prompts."""
    path, size, copy = os.path.join(folder, f"large-{megabytes:g}.jsonl"), 0, 0
    with open(path, "wb") as file:
        while size < megabytes * 1e6:
            for row in mixed(copy):
                size += file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                if size >= megabytes * 1e6:
                    break
            copy += 1
    return path


def mixed(copy: int) -> Iterator[dict]:
    """The requests of all chats, and the agent's five times; other text in each copy from the first line on."""
    mark = f"copy {copy}\n" if copy else ""
    for number, messages in enumerate(_chats()):
        for end, message in enumerate(messages):
            if message["role"] == "user":
                first = {"role": messages[0]["role"], "content": mark + messages[0]["content"]}
                row = {"timestamp": 1000 * number + end, "session_id": f"{copy}-{number}"}
                yield row | {"input": [first, *messages[1 : end + 1]] if end else [message], "output": 100}
    for again in range(5):
        for number, prompt in enumerate(_agent_prompts()):
            yield {"timestamp": 1000 * number, "input": f"{copy} {again}\n{prompt}", "output": 100}


def agent(folder: str) -> str:
    """A log of 10 MB of an agent's prompts, as text."""
    if AGENT.exists():
        return str(AGENT)
    path = os.path.join(folder, "agent.jsonl")
    with open(path, "wb") as file:
        for number, prompt in enumerate(_agent_prompts()):
            row = {"timestamp": 1000 * number, "input": prompt, "output": 100}
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    return path


def token_ids(folder: str, requests: int, tokens: int) -> str:
    """A log of prompts that are token ids already, `tokens` each, 300 beginnings shared among them."""
    rng = random.Random(7)
    stems = [",".join(str(rng.randrange(1000)) for _ in range(tokens - 1)) for _ in range(300)]
    path = os.path.join(folder, f"tokens-{requests}.jsonl")
    with open(path, "w", encoding="ascii") as file:
        for number in range(requests):
            prompt = f"{stems[rng.randrange(300)]},{rng.randrange(1000)}"
            file.write(f'{{"timestamp":{number},"input":[{prompt}],"output":3}}\n')
    return path


def _chats() -> Iterator[list[dict]]:
    if CHATS.exists():
        with open(CHATS, "rb") as file:
            yield from (orjson.loads(line)["messages"] for line in file)
        return
    rng = random.Random(7)
    for _ in range(8000):
        turns = [{"role": role, "content": _words(rng, 30)} for _ in range(6) for role in ("user", "assistant")]
        yield [{"role": "system", "content": _words(rng, 40)}, *turns]


def _agent_prompts() -> Iterator[str]:
    if AGENT.exists():
        with open(AGENT, "rb") as file:
            yield from (prompt for line in file if (prompt := orjson.loads(line)["input"]))
        return
    rng = random.Random(8)
    for _ in range(40):
        text = _words(rng, 800)
        for _ in range(10):
            text += "\n" + _words(rng, 700)
            yield text


def _words(rng, count) -> str:
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(50) or ''}" for _ in range(count))
