"""Trace files: how fast rows become columns and columns become rows, beside a loop of orjson over the same rows.

    python -m benchmarks.read_write             a synthetic trace of 300 MB
    python -m benchmarks.read_write FILE        a Mooncake file of yours

Rivals run in turn in one process, after one unmeasured round, and the medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from array import array

import numpy as np
import orjson

import kvtrace
from kvtrace.formats.reading import read_columns
from kvtrace.trace.columns import Columns


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="a Mooncake trace")
    parser.add_argument("--size-mb", type=int, default=300, help="of the synthetic trace")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or synthetic_file(folder, options.size_mb)
        report(path, measure(path, folder, options.rounds))


def measure(path, folder, rounds) -> dict[str, list[float]]:
    """Seconds of each run of each contender."""
    columns, again = read_columns(path).columns, os.path.join(folder, "again.jsonl")
    contenders = {
        "read: loop of orjson.loads": lambda: orjson_read(path),
        "read: kvtrace, 1 thread": lambda: read_columns(path, threads=1),
        "read: kvtrace, 2 threads": lambda: read_columns(path, threads=2),
        "read to a Trace, 2 threads": lambda: kvtrace.read(path, threads=2, block_size=512),
        "write: loop of orjson.dumps": lambda: orjson_write(columns, os.devnull),
        "write: kvtrace": lambda: kvtrace.write(columns, os.devnull, block_size=512),
        "write to a disk, with fsync": lambda: kvtrace.write(columns, again, block_size=512),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            kept = run()
            seconds[name].append(time.perf_counter() - start)
            del kept  # freeing it is not measured
    return {name: runs[1:] for name, runs in seconds.items()}


def report(path, seconds):
    size = os.path.getsize(path) / 1e6
    median = {name: statistics.median(runs) for name, runs in seconds.items()}
    print(f"{os.path.basename(path)}: {size:,.0f} MB, {len(os.sched_getaffinity(0))} cores")
    print(f"{'':30}{'MB/s':>8}{'x orjson':>10}")
    for name, taken in median.items():
        rival = median["write: loop of orjson.dumps" if name.startswith("write") else "read: loop of orjson.loads"]
        print(f"{name:30}{size / taken:8,.0f}{rival / taken:10.1f}")
    pairs = zip(seconds["read: kvtrace, 1 thread"], seconds["read: kvtrace, 2 threads"], strict=True)
    print(f"two threads, against one: x{statistics.median(one / two for one, two in pairs):.2f}")


# -- the rivals ----------------------------------------------------------------------------------------------------


def orjson_read(path):
    """The same arrays, filled row by row."""
    timestamp, hash_ids, offsets = array("d"), array("q"), array("q", [0])
    input_length, output_length = array("q"), array("q")
    with open(path, "rb") as file:
        for line in file:
            row = orjson.loads(line)
            timestamp.append(row["timestamp"])
            input_length.append(row["input_length"])
            output_length.append(row["output_length"])
            hash_ids.extend(row["hash_ids"])
            offsets.append(len(hash_ids))
    return [np.frombuffer(column) for column in (timestamp, input_length, output_length, hash_ids, offsets)]


def orjson_write(columns, path):
    with open(path, "wb") as file:
        for row in range(len(columns)):
            file.write(
                orjson.dumps(
                    {
                        "timestamp": int(columns.timestamp[row]),
                        "input_length": int(columns.input_length[row]),
                        "output_length": int(columns.output_length[row]),
                        "hash_ids": columns.hash_ids[columns.offsets[row] : columns.offsets[row + 1]].tolist(),
                    },
                    option=orjson.OPT_APPEND_NEWLINE,
                )
            )


# -- a trace to read -----------------------------------------------------------------------------------------------


def synthetic_file(folder, size_mb) -> str:
    path = os.path.join(folder, "synthetic.jsonl")
    kvtrace.write(synthetic(int(size_mb * 1e6 / 325), np.random.default_rng(7)), path, block_size=512)
    return path


def synthetic(requests, rng, turns=8) -> Columns:
    """Conversations of eight turns that share one system block; each turn adds some blocks to the one before."""
    added = 1 + rng.geometric(0.2, size=(-(-requests // turns), turns))
    ends = np.cumsum(added.ravel()).reshape(added.shape)
    starts = ends[:, :1] - added[:, :1]
    blocks = (1 + ends - starts).ravel()[:requests]
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    first = np.repeat(np.broadcast_to(starts, ends.shape).ravel()[:requests], blocks)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    hash_ids = np.where(place == 0, 0, first + place)  # 0 is the system block
    return Columns(
        np.cumsum(rng.integers(0, 600, requests)).astype(float),
        blocks * 512 - rng.integers(0, 512, requests), rng.integers(1, 2000, requests), hash_ids, offsets,
    )  # fmt: skip


if __name__ == "__main__":
    main()
