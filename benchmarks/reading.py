"""Files into columns and back, beside loops of orjson over the same rows, and recorded sessions into a Trace.

A process touches its memory for the first time: for 300 MB of trace that is 230 MB of columns, which the kernel has to
allocate. Run in turn in one process, the second contender would find memory that the first has given back.
"""

from __future__ import annotations

import gzip
import os
import resource
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson

import kvtrace
from kvtrace.formats.reading import read_columns

from .inputs import BLOCK, SESSIONS, synthetic_file
from .measuring import Line, apart


def lines(folder: str, share: float) -> Iterator[Line]:
    """The speed of one thread, what a second one adds, and of writing; sessions, and their memory."""
    megabytes = 300 * share
    path, small = apart(synthetic_file, folder, megabytes), apart(synthetic_file, folder, 0.1)
    one, two = ((read, path, small, threads) for threads in (1, 2))
    yield Line(f"read {megabytes:.0f} MB, 1 thread / loop of orjson.loads", "s", one, (orjson_read, path), 1 / 4)
    yield Line(f"read {megabytes:.0f} MB, 2 threads / 1 thread", "s", two, one, 0.8)
    yield Line(f"write {megabytes:.0f} MB / loop of orjson.dumps", "s", (write, path), (orjson_write, path))

    missing, plain = "" if SESSIONS.is_dir() else "the shared sessions of agents", os.path.join(folder, "sessions")
    if not missing:
        decompressed(plain, share)
    name, ours, memory = (
        "read recorded sessions, processor time / orjson.loads",
        (read_sessions, plain),
        (beyond, plain),
    )
    yield Line(name, "s", None if missing else ours, (orjson_sessions, plain), 1.5, missing)
    name, allowed = "sessions: memory beyond the Trace / 8 bytes a reference", (a_word_each, plain)
    yield Line(name, "MB", None if missing else memory, allowed, 1, missing)


def read(path: str, small: str, threads: int) -> float:
    """Seconds to read a trace in a process that has read a small one: imports are not counted, memory is."""
    read_columns(small, threads=threads)
    return seconds(lambda: read_columns(path, threads=threads))


def orjson_read(path: str) -> float:
    """Seconds to fill the same arrays row by row."""

    def run():
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

    return seconds(run)


def write(path: str) -> float:
    """Seconds to write the columns of a trace."""
    columns = read_columns(path).columns
    return seconds(lambda: kvtrace.write(columns, os.devnull, block_size=BLOCK))


def orjson_write(path: str) -> float:
    """Seconds to write the same rows one by one."""
    columns = read_columns(path).columns

    def run():
        with open(os.devnull, "wb") as file:
            for row in range(len(columns)):
                values = {
                    "timestamp": int(columns.timestamp[row]),
                    "input_length": int(columns.input_length[row]),
                    "output_length": int(columns.output_length[row]),
                    "hash_ids": columns.hash_ids[columns.offsets[row] : columns.offsets[row + 1]].tolist(),
                }
                file.write(orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE))

    return seconds(run)


def decompressed(folder: str, share: float) -> None:
    """Write the sessions, or a share of them, as plain files."""
    os.mkdir(folder)
    files = sorted(SESSIONS.iterdir())
    for file in files[: max(2, round(len(files) * share))]:
        Path(folder, file.stem).write_bytes(gzip.decompress(file.read_bytes()))


def read_sessions(folder: str) -> float:
    """Processor seconds to read all sessions into a Trace."""
    kvtrace.read(os.path.join(folder, sorted(os.listdir(folder))[0]))  # imports are not counted, memory is
    return seconds(lambda: kvtrace.read(folder), time.process_time)


def orjson_sessions(folder: str) -> float:
    """Processor seconds to decode them and keep nothing."""
    texts = [file.read_bytes() for file in sorted(Path(folder).iterdir())]

    def run():
        for text in texts:
            orjson.loads(text)

    return seconds(run, time.process_time)


def beyond(folder: str) -> float:
    """Peak bytes without those of the program and of the trace's own columns."""
    kvtrace.read(os.path.join(folder, sorted(os.listdir(folder))[0]))  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    trace = kvtrace.read(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak - before - 8 * len(trace.hash_ids)


def a_word_each(folder: str) -> float:
    """8 bytes for each block reference, and 4 MB for a file in work."""
    return 8 * len(kvtrace.read(folder).hash_ids) + 4e6


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one run; what it returns is freed later."""
    start = clock()
    kept = run()
    taken = clock() - start
    del kept
    return taken
