"""Cases of prefill and decode on different workers, and what kvtrace says of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from kvtrace.cache.simulation import Setting, advance_all
from kvtrace.serving.apart import Link, engine_workers, serve_apart
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import StepCost
from kvtrace.serving.workers import Workers
from tests.serving.scheduler_cases import options_of, sglang_case, trace_of, vllm_case
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of


def vllm_apart_case(rng, by_priority=False):
    """A case of tests/clients/vllm_apart.py."""
    case = vllm_case(rng)
    while case["block_size"] == 1 or bool(case["settings"].get("policy")) != by_priority:
        case = vllm_case(rng)
    for number, row in enumerate(case["requests"]):  # events of one moment have no order
        row["arrival"] += 1e-6 * number
    decode = {"settings": case["settings"] | {"async": rng.random() < 0.5}}
    return case | {
        "workers": [rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2])], "decode": decode,
        "byte_s": rng.choice([0.0, 1.13e-5, 1.07e-3]), "latency": rng.choice([0.0, 0.00313]), "bytes_per_token": 1.0,
    }  # fmt: skip


def decider_case(rng):
    """A case of vLLM's workers with a decider."""
    case, tokens = vllm_apart_case(rng), [1, 4, 16, 40]
    if rng.random() < 0.5:
        rules = {"max_local_prefill_length": rng.choice(tokens), "max_prefill_queue_size": rng.choice([0, 1, 2, 4])}
        rules.pop(rng.choice([*rules, ""]), None)
    else:
        rules = {
            "policy": rng.choice(["isl_bounding", "prefill_load", "isl_or_load"]),
            "eff_isl_threshold": rng.choice(tokens), "eff_isl_ratio_threshold": rng.choice([0.3, 0.7, 1.0]),
            "prefill_busy_threshold": rng.choice([0.0, 0.5, 1.0, 3.0]),
            "decode_busy_threshold": rng.choice([0.3, 0.8, 1e9]),
        }  # fmt: skip
    return case | {"decider": rules}


def sglang_apart_case(rng, max_requests=24, max_output=60):
    """A case of tests/clients/sglang_apart.py; decode workers often have little more room than the largest request."""
    case = sglang_case(rng, max_requests, max_output)
    del case["max_plans"]
    page, settings = case["settings"]["page_size"], case["settings"]
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
    rules = case.get("decider", {})
    if "policy" in rules:
        text = ",".join(f"{name}={value}" for name, value in rules.items())
        rules = {"router_conditional_disagg_config": text}
    run = serve_apart(
        trace_of(case), workers_of(case, 0), workers_of(case, 1), link=link, bytes_per_token=case["bytes_per_token"],
        **rules,
    )  # fmt: skip
    times = [run.started_s, run.prefilled_s, run.transfer_end_s, run.first_s, run.ended_s]
    held = run.decode_hit_blocks * case["block_size"]
    columns = [run.cached_tokens, held, *(time + start for time in times), run.preemptions]
    return [list(row) for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True)]


@dataclass(frozen=True)
class Logged(SglangScheduler):
    """SGLang's scheduler with a cache of so many tokens, whose workers record their steps."""

    tokens: int = 0

    def engine(self, setting, demand, tiers):
        return self.cache(demand, self.tokens)

    def worker(self, engine, requests, cost, *, log=False):
        return super().worker(engine, requests, cost, log=True)


def sglang_served(case):
    """The steps of each worker, and the times and hits of each request, in the form of the driver."""
    sides = []
    for place in (0, 1):
        mine = case | (case["decode"] if place else {})
        scheduler = Logged(**asdict(scheduler_of(mine)), tokens=mine["capacity"])
        setting = Setting(1 << 20, engine="sglang")
        sides.append(Workers(StepCost(**mine["cost"]), setting, scheduler, case["workers"][place]))
    trace, start = limited_trace(case), case["requests"][0]["arrival"]
    kinds = Disaggregation(
        *case["workers"], kv_transfer_bandwidth=1 / case["byte_s"] if case["byte_s"] else None,
        kv_transfer_latency_s=case["latency"], kv_transfer_bytes_per_token=int(case["bytes_per_token"]),
        prefill=sides[0], decode=sides[1],
    )  # fmt: skip
    built = engine_workers(trace, sides[0].cost, sides[0].scheduler, sides[0].setting, kinds, "round-robin")
    advance_all(built.serving, len(trace), None, 4096)
    built.serving.close()
    prefill, decode = (side.requests.outcomes for side in built.sides)
    times = [
        prefill["started"], built.serving.computed, built.serving.begun, built.serving.arrived, decode["first"],
        decode["ended"],
    ]  # fmt: skip
    columns = [prefill["cached"], decode["cached"], *(np.asarray(time) + start for time in times), decode["preempted"]]
    rows = np.array(columns, dtype=float).T
    for one in built.instances:
        assert one.engine.free + one.engine.evictable == one.engine.pages
    kinds = zip(("prefill", "decode"), built.sides, strict=True)
    return {kind: [steps_of(one, start) for one in side.instances] for kind, side in kinds} | {"requests": rows}


def steps_of(instance, start):
    """The steps that a worker has recorded; those taken together have the begin of the first."""
    return [
        [None if i else begin + start, kind, [[row, before + i, count] for row, before, count in parts], sorted(gone)]
        for begin, times, kind, parts, gone in instance.log
        for i in range(times)
    ]  # fmt: skip


def require_steps(case, expected, message=""):
    """kvtrace has the steps, the hits and the times of a driver or of the twin, to a nanosecond."""
    mine = sglang_served(case)
    for side in ("prefill", "decode"):
        for worker, (steps, there) in enumerate(zip(mine[side], expected[side], strict=True)):
            for number, (step, one) in enumerate(zip(steps, there, strict=False)):
                where = (message, side, worker, number)
                assert step[1:] == one[1:], where
                assert step[0] is None or abs(step[0] - one[0]) < 1e-9, where
            assert len(steps) == len(there), (message, side, worker)
    there = np.array(expected["requests"], dtype=float)
    np.testing.assert_allclose(mine["requests"], there, rtol=0, atol=1e-9, equal_nan=True, err_msg=message)


def require_equal(case, real, message=""):
    """kvtrace has the hits of a driver, and its times to a nanosecond; None is NaN."""
    there = [[np.nan if value is None else value for value in row] for row in real["requests"]]
    np.testing.assert_allclose(served(case), there, rtol=0, atol=1e-9, equal_nan=True, err_msg=message)
