"""Dynamo's replay takes our agentic Mooncake, and starts each request when those that it waits for allow it.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace import Trace
from kvtrace.formats.converting import convert_file
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import COMPLETION, Dependencies
from tests.conftest import ROOT

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "dynamo/bin/python"
needs_dynamo = pytest.mark.skipif(not PYTHON.exists(), reason="no environment dynamo in KVTRACE_CLIENTS")


@dataclass
class Played:
    """The outcome of each request of a trace: times in ms, and reused tokens."""

    arrival: np.ndarray
    first: np.ndarray
    end: np.ndarray
    reused: np.ndarray
    summary: dict


def play(path, form="agentic_mooncake", lanes="all", **engine):
    """What Dynamo's replay does with a file; requests in the order of their names."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, ROOT / "tests/clients/dynamo_agentic.py", path, form, str(lanes), json.dumps(engine)]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    said = json.loads(line)
    assert {one[8] for one in said["requests"]} == {"completed"}
    columns = [np.array(values) for values in zip(*(one[3:8] for one in said["requests"]), strict=True)]
    arrival, _, first, end, reused = columns
    return Played(arrival, first, end, reused, said["summary"])


def sessions(seed, count=5):
    """Sessions of an agent that spawns subagents and waits for them, in blocks of 4 tokens."""
    rng, prompts, waits, session, times = np.random.default_rng(seed), [], [], [], []
    for number in range(count):
        start, first = number * 40.0, len(prompts)
        for turn in range(int(rng.integers(2, 8))):
            row = len(prompts)
            prompts.append(" ".join(str(1000 * number + block) for block in range(3 * turn + 2)))
            before = [(row - 1, "completion", "sequence", float(rng.integers(0, 90)))] if turn else []
            if turn > 1 and rng.random() < 0.4:
                before = [(int(rng.integers(first, row)), rng.choice(["dispatch", "completion"]), "spawn", 12.5)]
            if turn > 2 and rng.random() < 0.4:
                before.append((first + 1, "completion", "join", before[0][3]))
            waits.append(before)
            session.append(number)
            times.append(start + 100.0 * turn)
    order = np.argsort(times, kind="stable")
    columns = replace_columns(
        toy(*prompts, block_size=4), timestamp=times, session=session, dependencies=Dependencies.of(waits),
        output_length=rng.integers(1, 30, len(times)),
    ).take(order)  # fmt: skip
    return Trace.from_columns(columns, block_size=4)


def allowed(trace, played):
    """request -> when those that it waits for allow it to start; NaN without dependencies."""
    waits, starts = trace.dependencies, np.full(len(trace), np.nan)
    trigger = np.where(waits.trigger == COMPLETION, played.end[waits.row], played.arrival[waits.row])
    np.fmax.at(starts, waits.request, trigger + waits.delay_ms)
    return starts


@needs_dynamo
@pytest.mark.parametrize("lanes", ["all", 1, 2])
def test_a_request_starts_when_those_that_it_waits_for_allow_it(tmp_path, lanes):
    for seed in range(3):
        trace = sessions(seed)
        kvtrace.write(trace, tmp_path / "t.parquet")
        convert_file(tmp_path / "t.parquet", tmp_path / "t.jsonl", to="dynamo-agentic")
        played = play(tmp_path / "t.jsonl", lanes=lanes, block_size=4, num_gpu_blocks=4000)
        starts = allowed(trace, played)
        waits = ~np.isnan(starts)
        assert np.allclose(played.arrival[waits], starts[waits], rtol=0, atol=1e-6) and waits.any()
        assert played.summary["total_input_tokens"] == trace.input_length.sum()
        if lanes == "all":
            assert played.arrival[~waits].tolist() == trace.timestamp[~waits].tolist()
        else:
            assert lanes_are_kept(trace, played, lanes)


def lanes_are_kept(trace, played, lanes):
    """The next session starts when any lane has ended its own: sessions are taken in order, from one queue."""
    free = [0.0] * lanes
    for number in range(int(trace.session.max()) + 1):
        start = free.pop(int(np.argmin(free)))
        if abs(played.arrival[trace.session == number].min() - start) > 1e-6:
            return False
        free.append(played.end[trace.session == number].max())
    return True


@needs_dynamo
def test_recorded_times_hold_requests_back(tmp_path):
    trace = sessions(1)
    kvtrace.write(trace, tmp_path / "t.jsonl", format="agentic-mooncake")
    played = play(tmp_path / "t.jsonl", block_size=4, num_gpu_blocks=4000)
    floors = np.fmax(allowed(trace, played), trace.timestamp)
    assert np.allclose(played.arrival, floors, rtol=0, atol=1e-6) and (played.arrival == trace.timestamp).any()
    assert kvtrace.read(tmp_path / "t.jsonl") == trace


@needs_dynamo
def test_equal_ids_are_equal_blocks_in_every_session(tmp_path):
    trace = Trace.from_columns(
        replace_columns(toy("0 1", "0 1", block_size=4, gap_ms=900.0), session=[0, 1]), block_size=4
    )
    kvtrace.write(trace, tmp_path / "t.jsonl", format="agentic-mooncake")
    assert play(tmp_path / "t.jsonl", block_size=4, num_gpu_blocks=100).reused.tolist() == [0, 4]
