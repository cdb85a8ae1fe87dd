"""`kvtrace analyze` beside a bare loop of orjson.loads over the same file, and from a cold start on a small one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import orjson

from .apart import medians
from .read_write import synthetic_file
from .table import Claim

CONVERSATION = "data/mooncake/conversation_trace.jsonl"  # in the folder that KVTRACE_SHARED names
BYTES = 1.5e9  # the most memory that analysing may take
SECONDS = 0.4  # and the longest that a small trace may take, Python's start included


def claims(folder: str, megabytes: float, rounds: int) -> list[Claim]:
    """Seconds and memory of the commands, whole processes, beside the loop."""
    once, large = files(folder, megabytes)
    found = medians(
        {
            "bare": (bare, large),
            "basic": (seconds_of, large, "--basic"),
            "all": (seconds_of, large),
            "small": (seconds_of, once),
            "peak": (peak_of, large),
        },
        rounds,
    )
    size = f"{os.path.getsize(large) / 1e6:.0f} MB"
    return [
        Claim(f"analyze --basic {size} / bare orjson.loads", found["basic"], found["bare"], "s", 1.0),
        Claim(f"analyze {size} / bare orjson.loads", found["all"], found["bare"], "s", 2.0),
        Claim(f"analyze {size}, peak memory", found["peak"] / 1e6, BYTES / 1e6, "MB", 1.0),
        Claim(f"analyze {os.path.getsize(once) / 1e6:.0f} MB, cold start", found["small"], SECONDS, "s", 1.0),
    ]


def files(folder: str, megabytes: float) -> tuple[str, str]:
    """The conversation trace, or one made up where it is not at hand, and so many megabytes of copies of it."""
    once = os.path.join(os.environ.get("KVTRACE_SHARED", os.path.join("..", "shared")), CONVERSATION)
    if not os.path.exists(once):
        once = synthetic_file(folder, 4)
    large = os.path.join(folder, "copies.jsonl")
    repeat(once, large, max(1, round(megabytes * 1e6 / os.path.getsize(once))))
    return once, large


def repeat(path: str, into: str, copies: int) -> None:
    """The trace so many times over, one after the other, each with ids of its own."""
    with open(path, "rb") as file:
        rows = [orjson.loads(line) for line in file]
    ids = 1 + max(max(row["hash_ids"], default=0) for row in rows)
    duration = 1000 + max(row["timestamp"] for row in rows)
    with open(into, "wb") as file:
        for copy in range(copies):
            for row in rows:
                moved = (np.array(row["hash_ids"], dtype=np.int64) + copy * ids).tolist()
                file.write(orjson.dumps(row | {"timestamp": row["timestamp"] + copy * duration, "hash_ids": moved}))
                file.write(b"\n")


def bare(path: str) -> float:
    """Seconds to decode each line and keep nothing."""
    start = time.perf_counter()
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
    return time.perf_counter() - start


def seconds_of(path: str, *options: str) -> float:
    """Seconds of the command, from start to exit."""
    start = time.perf_counter()
    command(path, *options)
    return time.perf_counter() - start


def peak_of(path: str) -> float:
    """The largest resident memory of the command, in bytes."""
    import resource

    command(path)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def command(path: str, *options: str) -> None:
    """Run `kvtrace analyze`."""
    call = [sys.executable, "-m", "kvtrace", "analyze", path, "--block-size", "512", *options]
    subprocess.run(call, stdout=subprocess.DEVNULL, check=True)
