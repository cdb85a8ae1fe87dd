"""The traces: a public one, real chats and agents made into traces at three block sizes, and recorded sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import kvtrace
from experiments.hints.load import staggered
from kvtrace.cli import run
from kvtrace.trace.trace import Trace

CONVERSATIONS = "mooncake/conversation_trace.jsonl"
BLOCK_SIZES = (16, 64, 512)
ARRIVALS = "rate=2/s,think=30s,seed=1"
LIVE = 32  # recorded sessions that are open at a time, on average
SHARES = (0.02, 0.1, 0.3)  # of the working set


def traces_of(data: Path) -> Iterator[tuple[str, Trace]]:
    """Name and trace of each file of the shared data that exists."""
    public = data / CONVERSATIONS
    if public.exists():
        yield "conversation, 512", kvtrace.read(public)
    for log in sorted([*(data / "chats").glob("*.jsonl"), *(data / "agent_logs").glob("*.jsonl")]):
        for block_size in BLOCK_SIZES:
            yield f"{log.stem}, {block_size}", anonymized(log, block_size)
    if (data / "agents/claude-code").exists():
        yield "claude-code, 64", staggered(kvtrace.read(data / "agents/claude-code"), LIVE, seed=0)


def anonymized(log: Path, block_size: int) -> Trace:
    """The trace of a log, with made-up arrivals if it has no times."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["anonymize", str(log), "-o", f"{folder}/trace.jsonl", "--profile", "exact", "--quiet"]
        words += ["--block-size", str(block_size), "--arrivals", ARRIVALS]
        if run(words):
            raise SystemExit(f"{log.name} could not be made into a trace")
        return kvtrace.read(f"{folder}/trace.jsonl")


def capacities_of(trace: Trace) -> list[int]:
    """Shares of the working set, at least the longest request.

    >>> capacities_of(kvtrace.toy("0 1 2", "3", "4"))
    [3]
    """
    longest = int(trace.prompt_blocks.max())
    return list(dict.fromkeys(max(longest, int(trace.working_set * share)) for share in SHARES))
