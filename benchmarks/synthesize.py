"""Synthesis beside what it takes to print the same rows with the standard library; memory, growth, and fitting."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator

import kvtrace
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.attach_model import Model
from kvtrace.synthesis.sampling import sample, write_sample

from .inputs import BLOCK, conversations, repeated
from .measuring import Line, apart

ROWS, COPIES = 500_000, 100


def lines(folder: str, share: float) -> Iterator[Line]:
    """Seconds to sample and write rows, the cost a row as they grow, peak memory, and seconds to fit."""
    model, many = (os.path.join(folder, name) for name in ("model.json", "many.jsonl"))
    rows, few = round(ROWS * share), round(ROWS * share / 50)
    apart(fitted, model)
    ours, rival = (written, model, folder, rows), (dumped, folder, model, rows)
    yield Line(f"sample and write {rows:,} rows, a row / json.dumps", "us", ours, rival, 0.4)
    ours, rival = ((written, model, folder, count) for count in (2 * rows, few))
    yield Line(f"sample, a row of {2 * rows:,} / of {few:,}", "us", ours, rival, 2)
    ours, rival = (peak, model, folder, rows), (allowed, model, folder, few, rows)
    yield Line(f"sample {rows:,} rows: peak memory / 1 kB each", "MB", ours, rival, 1)
    held = apart(repeated, many, max(1, round(COPIES * share)))
    yield Line(f"fit {held:,} block references / json.loads of them", "s", (fit_seconds, many), (loaded, many), 1)


def fitted(path: str) -> None:
    """Save the model of the conversation trace."""
    fit(conversations()).save(path)


def written(model: str, folder: str, rows: int) -> float:
    """Seconds a row to sample and write so many, in a process that is up."""
    loaded, path = Model.load(model), os.path.join(folder, "sample.jsonl")
    write_sample(loaded, 1, path, seed=7, scale="rate")  # what a first call imports
    start = time.perf_counter()
    write_sample(loaded, rows, path, seed=7, scale="rate")
    return (time.perf_counter() - start) / rows


def dumped(folder: str, model: str, rows: int) -> float:
    """Seconds a row of a loop of json.dumps that writes the same rows."""
    trace = sample(Model.load(model), rows, seed=7, scale="rate")
    columns = [column.tolist() for column in (trace.timestamp, trace.input_length, trace.output_length, trace.offsets)]
    ids = trace.hash_ids.tolist()
    times, inputs, outputs, offsets = columns
    start = time.perf_counter()
    with open(os.path.join(folder, "dumped.jsonl"), "w") as stream:
        for row in range(rows):
            values = {
                "timestamp": times[row], "input_length": inputs[row], "output_length": outputs[row],
                "hash_ids": ids[offsets[row] : offsets[row + 1]],
            }  # fmt: skip
            stream.write(json.dumps(values) + "\n")
    return (time.perf_counter() - start) / rows


def fit_seconds(path: str) -> float:
    """Seconds to fit a trace in memory."""
    trace = kvtrace.read(path, block_size=BLOCK)
    start = time.perf_counter()
    fit(trace)
    return time.perf_counter() - start


def loaded(path: str) -> float:
    """Seconds of a loop of json.loads over its rows."""
    start = time.perf_counter()
    with open(path, "rb") as file:
        for line in file:
            json.loads(line)
    return time.perf_counter() - start


def peak(model: str, folder: str, rows: int) -> float:
    """The peak of a process that samples and writes."""
    written(model, folder, rows)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def allowed(model: str, folder: str, few: int, rows: int) -> float:
    """The peak for few rows, 25 MB for windows, and 1 kB for each row."""
    return apart(peak, model, folder, few) + 25e6 + 1000 * rows
