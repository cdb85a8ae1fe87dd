"""Cases of prefill and decode on different workers, and what kvtrace says of them."""

from __future__ import annotations

import numpy as np

from kvtrace.cache.simulation import Setting
from kvtrace.serving.apart import Link, serve_apart
from kvtrace.serving.workers import Workers
from tests.serving.scheduler_cases import options_of, sglang_case, trace_of, vllm_case


def vllm_apart_case(rng):
    """A case of tests/clients/vllm_apart.py; blocks are scarce only where steps are not planned ahead."""
    case = vllm_case(rng)
    while case["block_size"] == 1 or case["settings"].get("policy"):
        case = vllm_case(rng)
    for number, row in enumerate(case["requests"]):  # events of one moment have no order
        row["arrival"] += 1e-6 * number
    decode = {"settings": case["settings"] | {"async": rng.random() < 0.5}}
    if decode["settings"]["async"]:
        decode["capacity"] = 10_000
    if case["settings"].get("async"):
        case["capacity"] = 10_000
    return case | {
        "workers": [rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2])], "decode": decode,
        "byte_s": rng.choice([0.0, 1.13e-5, 1.07e-3]), "latency": rng.choice([0.0, 0.00313]), "bytes_per_token": 1.0,
    }  # fmt: skip


def sglang_apart_case(rng):
    """A case of tests/clients/sglang_apart.py; decode workers often have little more room than the largest request."""
    case = sglang_case(rng, max_requests=24, max_output=60)
    while case["settings"].get("enable_priority_scheduling") or case["ignore_eos"]:
        case = sglang_case(rng, max_requests=24, max_output=60)
    del case["max_plans"]
    page, settings = case["settings"]["page_size"], case["settings"]
    settings["scheduler_recv_interval"] = 1
    settings["schedule_policy"] = "fcfs" if rng.random() < 0.7 else "lpm"
    for number, row in enumerate(case["requests"]):  # events of one moment have no order
        row["arrival"] += 1e-6 * number
    reserve = rng.choice([0, 1, 4, 20, 100])
    most = max(row["tokens"] + max(row["output"], row.get("limit", 0)) for row in case["requests"])
    decode = {
        "capacity": (-(-(most + reserve) // page) + 2 + rng.choice([0, 0, 2, 5, 20, 100])) * page,
        "settings": settings | {
            "num_reserved_decode_tokens": reserve, "max_running_requests": rng.choice([1, 2, 4, 8, 40]),
            "disable_overlap_schedule": rng.random() < 0.5, "enable_mixed_chunk": False,
            "disaggregation_decode_enable_radix_cache": rng.random() < 0.4, "schedule_policy": "fcfs",
        },
    }  # fmt: skip
    return case | {
        "workers": [rng.choice([1, 1, 2]), rng.choice([1, 1, 2])], "decode": decode,
        "byte_s": rng.choice([0.0, 1.13e-5, 1.07e-3]), "latency": rng.choice([0.0, 0.00313]), "bytes_per_token": 1.0,
    }  # fmt: skip


def workers_of(case, place):
    """The workers of a kind: 0 is prefill, 1 decode."""
    mine = case | (case.get("decode", {}) if place else {})
    cost, scheduler = options_of(mine)
    return Workers(cost, Setting(mine["capacity"], engine="vllm"), scheduler, case["workers"][place])


def served(case):
    """The times and hits of each request, in the form of the driver."""
    link = Link(1 / case["byte_s"] if case["byte_s"] else None, case["latency"])
    start = case["requests"][0]["arrival"]
    run = serve_apart(
        trace_of(case), workers_of(case, 0), workers_of(case, 1), link=link, bytes_per_token=case["bytes_per_token"]
    )
    times = [run.started_s, run.prefilled_s, run.transfer_end_s, run.first_s, run.ended_s]
    held = run.decode_hit_blocks * case["block_size"]
    columns = [run.cached_tokens, held, *(time + start for time in times), run.preemptions]
    return [list(row) for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True)]


def require_equal(case, real, message=""):
    """kvtrace has the hits of a driver, and its times to a nanosecond; None is NaN."""
    there = [[np.nan if value is None else value for value in row] for row in real["requests"]]
    np.testing.assert_allclose(served(case), there, rtol=0, atol=1e-9, equal_nan=True, err_msg=message)
