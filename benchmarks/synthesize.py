"""Synthesis beside what it takes to print the same rows with the standard library; memory, growth, and fitting."""

from __future__ import annotations

import json
import os
import resource
import time

import kvtrace

from .apart import apart, medians
from .curve import BLOCK, _once, repeated
from .table import Claim

ROWS, COPIES = 500_000, 100


def claims(folder: str, rows: int, rounds: int) -> list[Claim]:
    """Seconds to sample and write so many rows, peak memory, the cost a row as they grow, and seconds to fit."""
    model = os.path.join(folder, "model.json")
    apart(fitted, model)
    copies = max(1, round(COPIES * rows / ROWS))
    many = apart(repeated, folder, copies)
    taken = medians(
        {
            "few": (written, model, folder, rows // 50), "most": (written, model, folder, 2 * rows),
            "ours": (written, model, folder, rows),
            "rival": (dumped, folder, model, rows), "fit": (fit, many),
        },
        rounds,
    )  # fmt: skip
    few, most = taken["few"] / (rows // 50), taken["most"] / (2 * rows)
    peak = apart(memory, model, folder, rows)
    return [
        Claim(f"sample and write {rows:,} rows / json.dumps of the same", taken["ours"], taken["rival"], "s", 0.4),
        Claim(f"peak memory of {rows:,} rows / 600 MB", peak / 1e6, 600, "MB", 1),
        Claim(f"us a row, {2 * rows:,} rows / {rows // 50:,}, without start-up", 1e6 * most, 1e6 * few, "us", 2),
        Claim(f"fit {copies} copies of the conversation trace / 10 s", taken["fit"], 10, "s", 1),
    ]


def fitted(path: str) -> None:
    """Save the model of the conversation trace, or of one that is made up."""
    from kvtrace.synthesis.fitting import fit

    once = _once()
    trace = once if isinstance(once, kvtrace.Trace) else kvtrace.Trace.from_columns(once, block_size=BLOCK)
    fit(trace).save(path)


def written(model: str, folder: str, rows: int) -> float:
    """Seconds to sample and write so many rows, in a process that is up."""
    from kvtrace.synthesis.model import Model
    from kvtrace.synthesis.sampling import write_sample

    loaded, path = Model.load(model), os.path.join(folder, "sample.jsonl")
    write_sample(loaded, 1, path, seed=7, scale="rate")  # what a first call imports
    start = time.perf_counter()
    write_sample(loaded, rows, path, seed=7, scale="rate")
    return time.perf_counter() - start


def dumped(folder: str, model: str, rows: int) -> float:
    """Seconds of a loop of json.dumps that writes the same rows."""
    from kvtrace.synthesis.model import Model
    from kvtrace.synthesis.sampling import sample

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
    return time.perf_counter() - start


def fit(path: str) -> float:
    """Seconds to fit a trace in memory."""
    from kvtrace.synthesis.fitting import fit as fit_model

    trace = kvtrace.read(path, block_size=BLOCK)
    start = time.perf_counter()
    fit_model(trace)
    return time.perf_counter() - start


def memory(model: str, folder: str, rows: int) -> int:
    """Peak bytes of a process that samples and writes."""
    written(model, folder, rows)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
