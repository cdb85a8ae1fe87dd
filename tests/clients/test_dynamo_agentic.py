"""Dynamo's replay takes our agentic Mooncake, and starts each request when those that it waits for allow it.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_agentic` writes the vectors of prefill and decode workers.
"""

import json
import os
import subprocess
import random
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
from tests.clients.dynamo_cases import write_vectors
from tests.conftest import ROOT
from tests.serving.test_closed_loop_dynamo import require_equal, trace_of_sessions

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
    workers: np.ndarray  # of both kinds
    version: str


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
    workers = np.array([one[9:] for one in said["requests"]], dtype=float)
    return Played(arrival, first, end, reused, said["summary"], workers, said["version"])


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


def apart_case(rng):
    """Sessions on lanes of prefill and decode workers, as the vectors have them."""
    trace = sessions(rng.randrange(1 << 30), rng.randrange(2, 9))
    named, waits = trace.dependencies, [[] for _ in range(len(trace))]
    columns = (named.row, named.request, named.trigger, named.delay_ms)
    for row, request, trigger, delay in zip(*(column.tolist() for column in columns), strict=True):
        waits[request].append([row, "completion" if trigger == COMPLETION else "dispatch", "sequence", delay])
    return {
        "lanes": rng.randrange(1, int(trace.session.max()) + 2),
        "workers": [rng.choice([1, 2, 3]), rng.choice([1, 2, 3])], "num_gpu_blocks": rng.choice([60, 100, 4000]),
        "decode_blocks": rng.choice([60, 100, 4000]), "max_num_seqs": rng.choice([1, 2, 4, 256]),
        "max_num_batched_tokens": rng.choice([16, 40, 8192]),
        "timestamp": trace.timestamp.tolist(), "session": trace.session.tolist(),
        "input_length": trace.input_length.tolist(), "output_length": trace.output_length.tolist(),
        "prompts": [trace.prompt(row).tolist() for row in range(len(trace))], "waits": waits,
    }  # fmt: skip


def played_apart(case, folder, number):
    """Its version, and the columns of each request in the replay of a case."""
    path = folder / f"{number}.parquet"
    kvtrace.write(trace_of_sessions(case), path)
    convert_file(path, path.with_suffix(".jsonl"), to="dynamo-agentic")
    engine = {name: case[name] for name in ("workers", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")}
    decode = {"num_gpu_blocks": case["decode_blocks"]}
    done = play(path.with_suffix(".jsonl"), lanes=case["lanes"], block_size=4, decode=decode, **engine)
    columns = [done.arrival, done.first, done.end, done.reused, *done.workers.T]
    return done.version, [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@needs_dynamo
def test_prefill_and_decode_workers_on_lanes_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 20):
        case = apart_case(random.Random(number))
        require_equal(case, played_apart(case, tmp_path, number)[1], f"seed {number}")


def make_vectors(folder, count=8):
    """Short cases that differ in their lanes and workers."""
    chosen, lanes = [], set()
    for seed in range(10_000, 20_000):
        case = apart_case(random.Random(seed))
        kind = (min(case["lanes"], 3), *case["workers"])
        if len(case["timestamp"]) > 20 or case["lanes"] == 1 or kind in lanes:
            continue
        lanes.add(kind)
        version, requests = played_apart(case, folder, seed)
        chosen.append({"case": case, "requests": requests})
        if len(chosen) == count:
            return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_lanes_apart", make_vectors)
