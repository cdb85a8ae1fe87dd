"""`Recorder.put`: microseconds of CPU that it takes from who receives requests, by the size of the payload.

python -m benchmarks.recorder

Requests come one after the other at a fixed rate, as in a gateway, while the recorder hands them to its digester.

    put      CPU time of the thread that calls
    process  CPU time of the whole process, with the thread that sends to the digester, which is another process
    full     CPU time of a call that finds no room
    copy     the rival: one copy of the payload
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

from kvtrace.capture.recorder import Recorder

from .apart import apart, wait_for_quiet

SIZES = (1_000, 10_000, 100_000)  # bytes
RATE, SECONDS = 500, 3  # requests a second
ROUNDS = 3
OPTIONS = {"tokenizer": None, "profile": "exact"}
NAMES = ("put", "process", "full", "copy")


def payload_of(number: int, size: int) -> bytes:
    """A row of so many bytes, of which readers need little, so that the digester keeps up."""
    row = b'{"timestamp": %d, "prompt_token_ids": [1, 2, %d], "output_length": 3, "note": "'
    row %= 1_900_000_000 + number, number
    return row + b"x" * (size - len(row) - 2) + b'"}'


def cost(size: int) -> list[float]:
    """Microseconds a payload: those of NAMES."""
    payloads = [payload_of(number, size) for number in range(RATE * SECONDS)]
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, **OPTIONS) as recorder:
        process_s, calling_s = paced(lambda payload: recorder.put("follow", payload), payloads)
    if recorder.counts().digested != len(payloads):
        raise SystemExit("requests were dropped or lost")
    idle_s, timing_s = paced(lambda payload: None, payloads)
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, queue_bytes=0, **OPTIONS) as recorder:
        _, full_s = paced(lambda payload: recorder.put("follow", payload), payloads)
    _, copy_s = paced(bytearray, payloads)
    seconds = (calling_s - timing_s, process_s - idle_s, full_s - timing_s, copy_s - timing_s)
    return [1e6 * one / len(payloads) for one in seconds]


def paced(call: Callable[[bytes], object], payloads: Sequence[bytes]) -> tuple[float, float]:
    """CPU seconds of the process, and of the calls, with the calls at RATE."""
    calling_s, process_s, start = 0.0, time.process_time(), time.monotonic()
    for number, payload in enumerate(payloads):
        time.sleep(max(0.0, start + number / RATE - time.monotonic()))
        before = time.thread_time()
        call(payload)
        calling_s += time.thread_time() - before
    return time.process_time() - process_s, calling_s


def main() -> None:
    load = wait_for_quiet()
    print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before; {RATE} requests/s; us, medians of {ROUNDS}")
    print(f"{'bytes':>9}" + "".join(f"{name:>9}" for name in NAMES))
    for size in SIZES:
        rounds = [apart(cost, size) for _ in range(ROUNDS)]
        figures = [statistics.median(values) for values in zip(*rounds, strict=True)]
        print(f"{size:9,}" + "".join(f"{figure:9.1f}" for figure in figures))


if __name__ == "__main__":
    main()
