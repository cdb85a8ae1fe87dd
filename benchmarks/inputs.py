"""Logs and traces to measure with, the real ones repeated; made up where they are missing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

import kvtrace
from kvtrace._base.arrays import offsets_of
from kvtrace.formats import writing
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace

from .measuring import SHARED

BLOCK = 512
CHATS, AGENT = SHARED / "data/chats/intercode.jsonl", SHARED / "data/agent_logs/miniswe.jsonl"
CONVERSATIONS = SHARED / "data/mooncake/conversation_trace.jsonl"  # 12,031 requests, 288,500 block references
SESSIONS = SHARED / "data/agents/claude-code"
ONE = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'
WORDS = ["the", "a", "of", "to", "in", "is", "that", "file", "error", "line", "test", "list", "sort", "value", "boat"]


def conversations() -> Trace:
    """The conversation trace of Mooncake, or one of its size that is made up."""
    if CONVERSATIONS.exists():
        return kvtrace.read(CONVERSATIONS)
    return Trace.from_columns(synthetic(12_000), block_size=BLOCK)


def synthetic(requests: int) -> Columns:
    """Conversations, many at a time, that share one system block; each turn adds some blocks to the one before."""
    rng = np.random.default_rng(7)
    turns = rng.geometric(0.55, size=requests)  # of each conversation: there are enough of them
    session = np.repeat(np.arange(requests), turns)[:requests]
    ends = np.cumsum(1 + rng.geometric(0.07, size=requests))  # each turn's last block, all turns end to end
    first = np.flatnonzero(np.diff(session, prepend=-1))  # turn -> the first one of its conversation
    start = np.concatenate([[0], ends[:-1]])[first][session]
    passed = np.cumsum(rng.exponential(60_000, requests))  # a minute between two turns
    times = np.floor((rng.random(requests) * 300 * requests)[session] + passed - passed[first][session])  # whole ms
    order = np.argsort(times, kind="stable")
    blocks = (1 + ends - start)[order]
    offsets = offsets_of(blocks)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    hash_ids = np.where(place == 0, 0, np.repeat(start[order], blocks) + place)  # 0 is the system block
    return Columns(
        times[order], blocks * BLOCK - rng.integers(0, BLOCK, requests), rng.integers(1, 2000, requests), hash_ids,
        offsets,
    )  # fmt: skip


def synthetic_file(folder: str, megabytes: float) -> str:
    """A synthetic trace of so many megabytes."""
    path = os.path.join(folder, f"synthetic-{megabytes:g}.jsonl")
    kvtrace.write(synthetic(max(1, int(megabytes * 1e6 / 325))), path, block_size=BLOCK)
    return path


def one_request(folder: str) -> str:
    """A trace of one request."""
    path = Path(folder, "one.jsonl")
    path.write_text(ONE)
    return str(path)


def repeated(path: str, count: int, again: bool = False) -> int:
    """Write so many copies of the conversation trace, as rows or as a data set; returns its block references."""
    once, copies = conversations(), list[int]()
    for number in range(count):  # every fourth copy may have the ids of one from halfway back
        copies.append(copies[number // 2] if again and number % 4 == 3 else number)
    starts = {copy: place * once.distinct for place, copy in enumerate(dict.fromkeys(copies))}
    later = float(once.timestamp[-1]) + 1000
    chunks = (
        replace_columns(once, timestamp=once.timestamp + number * later, hash_ids=once.hash_ids + starts[copy])
        for number, copy in enumerate(copies)
    )
    kind = "dataset" if path.endswith(".dataset") else "mooncake"
    writing.write_chunks(chunks, path, block_size=BLOCK, tail=once.tail, format=kind)
    return count * len(once.hash_ids)


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


def agent(folder: str, share: float) -> str:
    """A log of an agent's prompts as text, 10 MB or a share of it."""
    path, prompts = os.path.join(folder, "agent.jsonl"), [*_agent_prompts()]
    with open(path, "wb") as file:
        for number, prompt in enumerate(prompts[: round(len(prompts) * share)]):
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
    systems = [_words(rng, 40) for _ in range(20)]  # of as many applications
    for _ in range(8000):
        turns = [{"role": role, "content": _words(rng, 30)} for _ in range(6) for role in ("user", "assistant")]
        yield [{"role": "system", "content": rng.choice(systems)}, *turns]


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
