"""Our prefill and decode workers take the workers, hits and times of Dynamo's offline replay.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_disaggregated` writes the vectors anew;
`python -m tests.clients.test_dynamo_disaggregated TRACE ROWS` prints the cells of docs/serving/dynamo.md.
"""

import json
import random
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, replay_lines
from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.formats import targets as clients
from tests.clients.dynamo_cases import needs_dynamo, write_vectors
from tests.serving.scheduler_cases import apart_case
from tests.serving.test_dynamo_disaggregated import VECTORS, compared, served, trace_in_ms

STUCK = "effect-free zero-duration pass"  # what the replay says of workers that wait for each other
LOADS, SPLITS, ROUTERS = (0.5, 1, 4), ((1, 1), (2, 2), (3, 1)), ("round-robin", "dynamo")


def replayed(trace, case, folder):
    """Its version, and the columns of tests/clients/dynamo_workers.py in both orders; None if its workers are stuck."""
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    clients.write(trace, path, "dynamo")  # it makes each output a token long at least
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lengths = zip(rows, trace.output_length.tolist(), strict=True)
    path.write_text("".join(json.dumps(row | {"output_length": length}) + "\n" for row, length in lengths))
    link = {}
    if "bandwidth" in case:
        link = {
            "kv_transfer_bandwidth": case["bandwidth"] / 1e9, "kv_transfer_bytes_per_token": case["bytes_per_token"],
            "kv_transfer_timing_mode": "destination_missing" if case["missing_only"] else "full_prompt",
        }  # fmt: skip
    sides = {name: {"num_gpu_blocks": case[name]["capacity"], **case[name]["settings"], **link}
             for name in ("prefill", "decode")}  # fmt: skip
    settings = {f"num_{name}_workers": case[name]["workers"] for name in sides}
    settings |= {"router_mode": "kv_router" if case["router"] == "dynamo" else "round_robin"}
    settings |= {"arrival_speedup_ratio": case.get("load", 1.0)}
    done = replay_lines([{"path": str(path), "block_size": trace.block_size, **sides, "settings": settings}])
    if done.returncode:
        assert STUCK in done.stderr, done.stderr[-2000:]
        return None
    (line,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"version"')]
    faster = at_load(trace, case.get("load", 1.0))
    return line["version"], [in_order(faster, line["requests"], last_first=last) for last in (False, True)]


def in_order(trace, requests, *, last_first=False):
    """The columns of each request, in the order of the trace. Of requests alike in arrival and lengths, as they end."""
    alike = defaultdict(list)
    for request in sorted(requests, key=lambda request: request[14], reverse=not last_first):
        alike[round(request[1], 6), *request[2:4]].append(without_rejection(request[4:]))
    columns = trace.timestamp.round(6).tolist(), trace.input_length.tolist(), trace.output_length.tolist()
    return [(alike[key] or alike[*key[:2], 0]).pop() for key in zip(*columns, strict=True)]  # 0: it was rejected


def without_rejection(columns):
    """The columns of a request; of one that was rejected, the worker that it had, and no end and no release."""
    if columns[7] is not None:
        return columns
    prefill = columns[0] if columns[3] is not None else None
    return [prefill, None, columns[2], *columns[3:8], None, None, None, *columns[11:]]


def differences(trace, case, folder):
    """Requests that differ from the replay, and the largest difference in ms; None if both are stuck."""
    found = replayed(trace, case, folder)
    if found is None:
        if case["router"] != "dynamo" and not outgrow(
            case
        ):  # ties were drawn in the replay; or it stops for another cause
            with pytest.raises(UsageError, match="stuck"):
                served(case)
        return None
    outcomes = []
    for order in found[1]:  # nothing names requests that are alike: one order or the other
        expected = np.array(order, dtype=float)
        if case["router"] == "dynamo":
            case = case | {"winners": expected[:, -2:].T.astype(int).tolist()}
        counts, late = compared(served(case), expected)
        differ = counts | (late > 1e-3)
        outcomes.append((int(differ.sum()), float(late.max()), expected))
        if not differ.any():
            break
    return min(outcomes, key=lambda outcome: outcome[0])


def outgrow(case):
    """Whether the output of a request does not fit into a decode worker, though its prompt does."""
    room = case["block_size"] * case["decode"]["capacity"]
    return any(row["tokens"] <= room < row["tokens"] + row["output"] - 1 for row in case["requests"])


def random_case(seed):
    """A case whose requests the replay can name, and its trace."""
    case = apart_case(random.Random(seed))
    trace = trace_in_ms(case)
    for row, at in zip(case["requests"], trace.timestamp.tolist(), strict=True):
        row["arrival"] = at
    return trace, case


@needs_dynamo
def test_random_cases_take_the_workers_hits_and_times_of_the_replay(tmp_path):
    seed, stuck = random.SystemRandom().randrange(1 << 30), 0
    for number in range(seed, seed + 40):
        trace, case = random_case(number)
        found = differences(trace, case, tmp_path)
        stuck += found is None
        assert found is None or found[0] == 0, f"seed {number}"
    assert stuck < 40


@needs_dynamo
def test_the_vectors_are_what_the_replay_says(tmp_path):
    for vector in VECTORS["vectors"]:
        case = vector["case"]
        if case["router"] == "round-robin":  # its router draws ties
            version, (requests, _) = replayed(trace_in_ms(case), case, tmp_path)
            assert (version, [request[:-2] for request in requests]) == (VECTORS["version"], vector["requests"])


def cell(trace, split, router, load, capacities):
    """A trace, and the case that it makes at a load on prefill and decode workers."""
    columns = at_load(trace, load).timestamp.tolist(), trace.input_length.tolist(), trace.output_length.tolist()
    requests = [
        {"arrival": arrival, "ids": trace.prompt(row).tolist(), "tokens": tokens, "output": output}
        for row, (arrival, tokens, output) in enumerate(zip(*columns, strict=True))
    ]
    sides = {name: {"workers": workers, "capacity": capacity, "settings": {}}
             for name, workers, capacity in zip(("prefill", "decode"), split, capacities, strict=True)}  # fmt: skip
    case = {"block_size": trace.block_size, "requests": requests, "router": router, "load": float(load)}
    return trace, case | sides


@needs_dynamo
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_conversation_trace_takes_the_times_of_the_replay(shared, tmp_path, split, router):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[:300]
    for load, capacities in product(LOADS, ((2000, 2000), (300, 400), (100, 2000))):
        assert differences(*cell(trace, split, router, load, capacities), tmp_path)[0] == 0, (load, capacities)


@needs_dynamo
def test_a_prompt_that_no_decode_worker_holds_is_computed_and_then_rejected(shared, tmp_path):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[3000:3300]
    differ, _, expected = differences(*cell(trace, (1, 1), "round-robin", 1, (2000, 150)), tmp_path)
    assert differ == 0 and np.isnan(expected[:, 9]).sum() == 8


def make_vectors(folder, count=14):
    """Short cases that differ: both routers, with transfers and without, most of them with preemptions."""
    chosen = []
    for seed in range(20_000, 40_000):
        if len(chosen) == count:
            break
        trace, case = random_case(seed)
        if len(case["requests"]) > 12 or (len(chosen) % 2 == 0) != (case["router"] == "dynamo"):
            continue
        if case["router"] == "dynamo" and max(case[name]["workers"] for name in ("prefill", "decode")) == 1:
            continue
        if case.get("missing_only") != (None, False, True)[len(chosen) % 3]:
            continue
        found = replayed(trace, case, folder)
        if found is None or not (sum(request[12] for request in found[1][0]) or len(chosen) % 4 == 0):
            continue
        if case["router"] == "dynamo":
            case["winners"] = [[request[side] for request in found[1][0]] for side in (-2, -1)]
        chosen.append({"case": case, "requests": [request[:-2] for request in found[1][0]]})
    return {"engine": "dynamo", "version": found[0], "vectors": chosen}


def print_cells(path, rows):
    """The cells of a trace: requests that are equal, and the figures."""
    trace = read(path)
    first, last = (int(part) if part else None for part in rows.split(":"))
    trace = trace[first:last]
    equal = cells = 0
    for split, router, load in product(SPLITS, ROUTERS, LOADS):
        for capacities in ((2000, 2000), (300, 400)):
            with tempfile.TemporaryDirectory() as folder:
                found = differences(*cell(trace, split, router, load, capacities), Path(folder))
            cells += 1
            if found is None:
                equal += 1
                print(f"{split} {router:12}{load:5}{capacities!s:>14}  both stuck")
                continue
            differ, late_ms, expected = found
            equal += differ == 0
            ttft = (expected[:, 9] - at_load(trace, load).timestamp).mean()
            print(f"{split} {router:12}{load:5}{capacities!s:>14}{len(trace) - differ:8,} of {len(trace):,} equal, "
                  f"{1e6 * late_ms:6.1f} ns, mean TTFT {ttft:14,.3f} ms, {int(expected[:, 2].sum()) // 512:7,} hit "
                  f"blocks, {int(expected[:, 12].sum()):5,} preempted", flush=True)  # fmt: skip
    print(f"{equal} of {cells} cells")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print_cells(*sys.argv[1:])
    else:
        write_vectors("dynamo_disaggregated", make_vectors)
