"""A trace larger than one would like to hold: the conversation trace again and again, as a folder of parts.

Three copies of four have blocks of their own; the fourth is a copy from halfway back again, so that blocks are wanted
after millions of others. `python -m benchmarks.large_trace FOLDER.dataset [REFERENCES]` writes one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from kvtrace.formats import reading
from kvtrace.formats.dataset import DatasetWriter
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace

from .apart import apart
from .raw_logs import SHARED
from .table import Claim

CONVERSATION = SHARED / "data/mooncake/conversation_trace.jsonl"
REFERENCES = 30_000_000


def write_large(path: str, references: int = REFERENCES) -> None:
    """Write a folder of parts of at least so many block references."""
    once = original()
    with DatasetWriter(path, block_size=once.block_size, tail=once.tail) as writer:
        for columns in copies(once, -(-references // len(once.hash_ids))):
            writer.add(columns)


def copies(once: Trace, count: int) -> Iterator[Columns]:
    """So many copies of a trace in a row, one after the other in time."""
    first_ids: list[int] = []  # copy -> its first id
    fresh, lasts = 0, float(once.timestamp[-1]) + 1000
    for number in range(count):
        again = number % 4 == 3
        first_ids.append(first_ids[number // 2] if again else fresh)
        fresh += 0 if again else once.distinct
        yield replace_columns(once, timestamp=once.timestamp + number * lasts, hash_ids=once.hash_ids + first_ids[-1])


def original() -> Trace:
    """The trace that is copied."""
    return whole() if CONVERSATION.exists() else made_up()


def whole() -> Trace:
    """The conversation trace of Mooncake."""
    return reading.read(CONVERSATION)


def made_up(requests: int = 10_000) -> Trace:
    """A trace of chats that grow by three blocks a turn, eight turns each."""
    rng = np.random.default_rng(7)
    chats, prompts = rng.integers(requests // 8, size=requests), []
    turns = np.zeros(requests // 8, dtype=np.int64)
    for chat in chats.tolist():
        turns[chat] = turns[chat] % 8 + 1
        prompts.append(" ".join(["0", *(str(1 + chat * 100 + block) for block in range(3 * int(turns[chat])))]))
    return toy(*prompts, block_size=512)


def claims(folder: str, references: int = REFERENCES) -> list[Claim]:
    """The peak of commands over the folder, whole processes, beside a gigabyte."""
    path = os.path.join(folder, "large.dataset")
    write_large(path, references)
    return [
        Claim(f"{name}, {references:,} references, peak memory", apart(peak_of, name, path) / 1e6, 1000, "MB", 1.0)
        for name in ("analyze", "simulate --capacity 1000000 --no-gap", "curve --sample 0.01")
    ]


def peak_of(command: str, path: str) -> float:
    """The largest resident memory of a command, in bytes."""
    name, *options = command.split()
    call = [sys.executable, "-m", "kvtrace", name, path, "-q", *options, "--memory", "1GB"]
    subprocess.run(call, stdout=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


if __name__ == "__main__":
    write_large(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else REFERENCES)
