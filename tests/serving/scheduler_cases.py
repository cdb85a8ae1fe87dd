"""Cases for schedulers: random requests that share prefixes, settings, and the trace and the options of a case."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np

from kvtrace.cache.demand import block_demand
from kvtrace.cache.layout import CacheGroup, CacheLayout, Drafting
from kvtrace.cache.simulation import Setting
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
from kvtrace.serving.schedulers.dynamo import DynamoScheduler, hash_ranks
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.cache.hybrid_cases import random_groups
from tests.reference.sglang_scheduler import CONSTANTS

WORDS = 3


def requests_of(rng, block_size):
    """Requests that go on from an earlier one, or part of it; the last block of a prompt may be partial."""
    rows, arrival, said, number = [], 0.0, [()], {}
    for _ in range(rng.randrange(2, 40)):
        arrival += rng.choice([0, 0.001, 0.01, 0.05, 0.3]) * rng.random()
        before = rng.choice(said)
        words = before[: rng.randrange(len(before) + 1)]
        words += tuple(rng.randrange(WORDS) for _ in range(rng.randrange(1, 8)))
        said.append(words)
        tokens = len(words) * block_size - rng.randrange(block_size)
        paths = [words[: i + 1] for i in range(tokens // block_size)]
        paths += [(words, tokens)] * (tokens % block_size > 0)  # a partial block is not the full one
        rows.append(
            {
                "arrival": arrival,
                "ids": [number.setdefault(path, len(number)) for path in paths],
                "tokens": tokens,
                "output": rng.randrange(1, rng.choice([3, 12, 60])),
                "priority": rng.randrange(3),
            }
        )
    return rows


def vllm_case(rng):
    """A case of tests/clients/vllm_scheduler.py, often with too few blocks for the requests that want to run."""
    block_size = rng.choice([1, 2, 4, 16])
    rows = requests_of(rng, block_size)
    need = max(-(-(row["tokens"] + row["output"]) // block_size) for row in rows)
    tokens = rng.choice([1, 3, 8, 16, 64, 256])
    settings = {"max_num_batched_tokens": tokens, "max_num_seqs": min(tokens, rng.choice([1, 2, 4, 8, 64]))}
    for share, name, values in (
        (0.4, "long_prefill_token_threshold", [1, 2, 5, 20]),
        (0.2, "long_prefill_token_threshold_adaptive", [True]),
        (0.3, "watermark", [0.01, 0.1, 0.3]),
        (0.3, "scheduler_reserve_full_isl", [False]),
        (0.3, "policy", ["priority"]),
        (0.4, "async", [True]),
    ):
        if rng.random() < share:
            settings[name] = rng.choice(values)
    cost = {
        "token_s": rng.random() * 1e-3, "pair_s": rng.random() * 1e-6, "step_s": rng.random() * 0.01,
        "read_s": rng.random() * 1e-5, "overhead_s": rng.choice([0, 0.002]),
    }  # fmt: skip
    return {
        "block_size": block_size, "capacity": need + rng.choice([0, 0, 1, 3, 10, 100]), "settings": settings,
        "cost": cost, "requests": rows,
    }  # fmt: skip


def hybrid_case(rng):
    """A vllm_case of a model with cache groups, with little more blocks than the largest request holds."""
    drawn = np.random.default_rng(rng.randrange(1 << 32))
    groups = random_groups(drawn, base := rng.choice([1, 2, 4]))
    align = math.lcm(*(group.block_size for group in groups))
    kinds = {group.kind for group in groups}
    case = vllm_case(rng) | {"block_size": base, "requests": requests_of(rng, base)}
    if rng.random() < 0.3:
        case["settings"]["max_num_batched_tokens"] = max(case["settings"]["max_num_seqs"], align + rng.randrange(9))
    interval = rng.choice([0, 0, None, align * rng.randrange(1, 6)])
    case |= {
        "groups": [asdict(group) for group in groups], "internal_checkpoint": "state" in kinds and rng.random() < 0.5,
        "retention_interval": interval if kinds & {"window", "state"} else 0,
    }  # fmt: skip
    for number, row in enumerate(case["requests"]):  # requests of one priority and time can preempt each other for ever
        row["arrival"] += 1e-6 * number
    need = int(needs_of(case).max())
    return case | {"capacity": need + rng.choice([0, 0, 1, 3, 10, 30, 100])}


def with_drafter(rng, case, rules=("lookahead", "drop")):
    """A case with a drafter, whose slots the capacity holds too."""
    before = int(needs_of(case).max())
    for number, row in enumerate(case["requests"]):  # as in hybrid_case
        row["arrival"] += 1e-6 * number
    case = case | {"drafting": {"rule": rng.choice(rules), "tokens": rng.choice([0, 1, 2, 3, 7])}}
    return case | {"capacity": case["capacity"] + int(needs_of(case).max()) - before}


def drafting_of(case):
    """What a drafter changes in a case; None without one."""
    return Drafting(**case["drafting"]) if case.get("drafting") else None


def setting_of(case):
    """The setting of a case's cache."""
    return Setting(case["capacity"], engine="vllm", layout=layout_of(case), drafting=drafting_of(case))


def layout_of(case):
    """The cache groups of a case; None is full attention."""
    if "groups" not in case:
        return None
    groups = tuple(CacheGroup(**group) for group in case["groups"])
    return CacheLayout(
        groups,
        retention_interval=case["retention_interval"],
        internal_checkpoint_alignment=int(case["internal_checkpoint"]),
    )


def needs_of(case):
    """The blocks that each request of a case needs alone."""
    setting = options_of(case)[1].setting_of(setting_of(case))
    return options_of(case)[1].needs(block_demand(trace_of(case), *setting.demand_options), setting)


def more_terms(rng):
    """Terms of a step's time that the drivers of tests/clients do not have, only the twins and the kernels."""
    launch = {"launch_s": rng.choice([0.0, 0.005, 0.05]), "graph_tokens": rng.choice([0, 4, 32, 512])}
    bulk = {"bulk_exchange_s": rng.choice([0.0, 1e-4]), "bulk_exchange_step_s": rng.random() * 0.01,
            "bulk_exchange_tokens": rng.choice([0, 3, 40])}  # fmt: skip
    window = {"window_tokens": rng.choice([0, 2, 8, 64])} | {
        name: rng.random() * 1e-6 for name in ("window_read_s", "window_pair_s", "attention_pair_s", "attention_read_s")
    }
    return launch | bulk | window | {
        "exchange_s": rng.random() * 1e-3, "expert_token_s": rng.random() * 1e-3, "expert_step_s": rng.random() * 0.01,
        "expert_share": rng.choice([0.0625, 0.25, 1.0]), "request_s": rng.random() * 1e-3,
    }  # fmt: skip


def tier_case(rng):
    """A case of tests/clients/vllm_offloading.py: a vllm_case with a lower tier, fast or slow, large or small."""
    case = vllm_case(rng)
    while case["block_size"] == 1:  # vLLM loads a prompt of one token for ever
        case = vllm_case(rng)
    return case | {
        "tier": {
            "capacity": rng.choice([3, 8, 20, 60, 1000]), "fetch_s": rng.choice([0, 1e-4, 2e-3]),
            "store_s": rng.choice([1e-5, 1e-3, 2e-2]), "policy": rng.choice(["lru", "arc"]),
        }
    }  # fmt: skip


def pool_case(rng):
    """A case of tests/clients/vllm_tiers.py: a tier_case of one to three instances that share a tier."""
    case, instances = tier_case(rng), rng.choice([1, 2, 2, 3])
    for row in case["requests"]:
        row["instance"] = rng.randrange(instances)
    case["requests"][0]["instance"] = instances - 1
    return case | {
        "pool": {
            "capacity": rng.choice([3, 10, 40, 1000]), "fetch_s": rng.choice([0, 1e-4, 2e-3]),
            "store_s": rng.choice([0, 1e-4, 5e-3]), "latency_s": rng.choice([0, 1e-3]),
        }
    }  # fmt: skip


def dynamo_case(rng):
    """A case of Dynamo's replay: workers with few blocks. Arrivals are exact in ms, so that requests can be named."""
    block_size = rng.choice([2, 4, 8, 16])
    stretch, drawn, rows = rng.choice([0.3, 1, 3, 10]), requests_of(rng, block_size), {}
    begin = drawn[0]["arrival"]
    for row in drawn:
        row |= {"arrival": round((row["arrival"] - begin) * stretch * 8) / 8, "priority": 0}
        rows.setdefault((row["arrival"], row["tokens"], row["output"]), row)
    kept, number = list(rows.values()), {}
    for row in kept:
        row["ids"] = [number.setdefault(one, len(number)) for one in row["ids"]]
    tokens = rng.choice([1, 3, 8, 16, 64, 256])
    need = max(-(-(row["tokens"] + row["output"]) // block_size) for row in kept)
    return {
        "block_size": block_size, "capacity": need + rng.choice([0, 1, 3, 10]), "workers": rng.choice([1, 1, 2, 3]),
        "router": rng.choice(["round-robin", "dynamo"]), "requests": kept,
        "settings": {"max_num_batched_tokens": tokens, "max_num_seqs": min(tokens, rng.choice([1, 2, 4, 8, 64]))},
    }  # fmt: skip


def apart_case(rng):
    """A dynamo_case on prefill and decode workers: arrivals are in ms, and perhaps transfers are slow."""
    case = dynamo_case(rng)
    size, rows = case["block_size"], case["requests"]
    silent = rng.choice([0, 0, 0.2])  # share of the requests without an output
    for row in rows:
        row["arrival"] *= 1000
        row["output"] *= rng.random() >= silent
    needs = {
        "prefill": max(-(-row["tokens"] // size) for row in rows),
        "decode": max(-(-(row["tokens"] + row["output"]) // size) for row in rows),
    }
    kinds = {
        name: {
            "workers": rng.choice([1, 1, 2, 3]), "capacity": max(1, need + rng.choice([-4, 0, 0, 1, 1, 3, 3, 10])),
            "settings": case["settings"] if name == "prefill" else dynamo_case(rng)["settings"],
        }
        for name, need in needs.items()
    }  # fmt: skip
    if rng.random() < 0.5:
        kinds |= {"bytes_per_token": 1000, "bandwidth": rng.choice([1e4, 1e5, 1e6]), "missing_only": rng.random() < 0.5}
    return {"block_size": size, "requests": rows, "router": case["router"], **kinds}


def dynamo_tier_case(rng):
    """A dynamo_case with a tier of each worker, or one that all share; `order` has the rank of each block's hash."""
    case, unit = dynamo_case(rng), rng.choice([1e-4, 1e-3, 1e-2])
    host = {
        "scope": rng.choice(["rank", "cluster"]), "capacity": rng.choice([3, 6, 20, 60, 1000]),
        "fetch_s": rng.choice([0.25, 1, 4]) * unit, "store_s": rng.choice([0.25, 1, 4]) * unit,
        "latency_s": rng.choice([0, 0, 0.5 * unit]),
    }  # fmt: skip
    if host["scope"] == "cluster":
        host |= {name: rng.choice([0.0625, 0.5]) * unit for name in ("shared_fetch_s", "shared_store_s")}
    ranks = hash_ranks(block_demand(trace_of(case), "grow"))
    return case | {"host": host, "order": ranks.tolist()}


def dynamo_mtp_case(rng):
    """A dynamo_case with multi-token prediction: the acceptance rates of its drafted tokens, and its seed."""
    case = dynamo_case(rng)
    rates = [rng.choice([0.0, 0.3, 0.6, 0.85, 0.95, 1.0]) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
    capacity = case["capacity"] + rng.choice([1, 1, 2, 5])  # room for drafted tokens
    return case | {"capacity": capacity, "mtp": {"rates": rates, "seed": rng.choice([42, 0, 7])}}


def dynamo_tiers_of(case):
    """The scheduler and the tiers of a case; the links of a shared tier are those of each worker and a common one."""
    host, scheduler = case.get("host"), DynamoScheduler(**case["settings"])
    if "mtp" in case:
        rates, seed = case["mtp"]["rates"], case["mtp"]["seed"]
        text = ":".join(map(str, rates))
        scheduler = replace(scheduler, aic_nextn=len(rates), aic_nextn_accept_rates=text, aic_mtp_seed=seed)
    if host is None:
        return scheduler, ()
    fetch_s, store_s = host["fetch_s"], host["store_s"]
    if host["scope"] == "cluster":
        scheduler = replace(scheduler, worker_fetch_seconds=fetch_s, worker_store_seconds=store_s)
        fetch_s, store_s = host["shared_fetch_s"], host["shared_store_s"]
    tier = Tier("dram", host["capacity"], fetch_s, store_s, scope=host["scope"], latency_s=host["latency_s"])
    return scheduler, (tier,)


def fleet_case(rng):
    """A case of Dynamo's replay whose number of workers changes."""
    case = dynamo_case(rng)
    last = case["requests"][-1]["arrival"]
    times = [round(rng.random() * 1000 * (last + 1)) for _ in range(rng.choice([1, 2, 3, 5]))]
    times += [1000 * row["arrival"] for row in rng.sample(case["requests"], 1)]  # at the same time as an arrival
    startup_s = rng.choice([0.0, 0.125, 0.25, last / 8, last / 3])
    return case | {
        "workers": rng.choice([1, 2, 3]), "startup_s": startup_s,
        "targets": [[at, rng.choice([1, 1, 2, 3, 4])] for at in sorted(set(times)) if at],
    }  # fmt: skip


def fleet_of(case):
    """The schedule of a case: the newest workers drain, those that still start before the others.

    The replay changes its workers after the arrivals of the same time, except for a worker whose start-up ends then.
    """
    workers, startup, changes = list(range(case["workers"])), case["startup_s"], []
    starting, started = {}, case["workers"]  # worker -> when it is ready
    for ms, target in case["targets"]:
        at = ms / 1000
        for worker in [one for one, ready in starting.items() if ready <= at]:
            workers.append(worker)
            del starting[worker]
        spare = len(workers) + len(starting) - target
        leaving = [*sorted(starting, reverse=True), *sorted(workers, reverse=True)][: max(0, spare)]
        for worker in leaving:
            starting.pop(worker, None)
        workers = [worker for worker in workers if worker not in leaving]
        new = max(0, -spare)
        starting |= {started + number: at + startup for number in range(new)}
        started += new
        after = math.nextafter(at, math.inf)
        changes.append(FleetChange(at if startup else after, new, startup_s=startup))
        changes.append(FleetChange(after, drain=tuple(leaving)))
    return FleetSchedule(tuple(changes))


def rows_of(trace, count, speed):
    """The requests of a case: the first ones of a trace, `speed` times as fast."""
    return [
        {
            "arrival": float(trace.timestamp[row]) / 1000 / speed, "ids": trace.prompt(row).tolist(),
            "tokens": int(trace.input_length[row]), "output": int(trace.output_length[row]), "priority": 0,
        }
        for row in range(count)
    ]  # fmt: skip


def sglang_requests(rng, count, block_size, max_output):
    """Requests whose prompts go on from an earlier one, or part of it, and end anywhere in a block."""
    rows, said, number, now = [], [[]], {}, 0.0
    gap = rng.choice([0.0, 0.001, 0.01, 0.1])
    for _ in range(count):
        before = rng.choice(said)
        words = (before[: rng.randrange(len(before) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(1, 8))])[:9]
        said.append(words)
        tokens, output = len(words) * block_size - rng.randrange(block_size), rng.randrange(1, max_output)
        last = ("tail", tokens) if tokens % block_size else None  # a partial block is not the full one
        names = [tuple(words[: i + 1]) for i in range(len(words) - 1)] + [(*words, last)]
        now += gap * rng.random()
        row = {"arrival": now, "ids": [number.setdefault(name, len(number)) for name in names], "tokens": tokens}
        row |= {"output": output, "priority": rng.randrange(30)}
        if rng.random() < 0.3:
            row["limit"] = output + rng.choice([0, 1, 2, 20, 100])
        rows.append(row)
    return rows


def sglang_settings(rng, page):
    """SGLang's server arguments, at random."""
    settings = {
        "page_size": page, "chunked_prefill_size": rng.choice([-1, page, 4 * page, 16 * page, 256 // page * page]),
        "max_prefill_tokens": rng.choice([16, 64, 256, 16384]), "max_running_requests": rng.choice([1, 2, 3, 4, 8, 64]),
        "schedule_policy": rng.choice(["fcfs", "lpm"]), "disable_overlap_schedule": rng.random() < 0.4,
        "schedule_conservativeness": rng.choice([0.05, 0.1, 0.3, 1.0, 2.0]),
        "scheduler_recv_interval": rng.choice([1, 1, 2, 5, 10, 30, 1002, 2000]),
    }  # fmt: skip
    if rng.random() < 0.5 and settings["chunked_prefill_size"] > 1:
        settings["enable_mixed_chunk"] = True
        # SGLang 0.5.23 ends where more requests run than a chunk has tokens
        settings["max_running_requests"] = min(settings["max_running_requests"], settings["chunked_prefill_size"] - 1)
    if rng.random() < 0.4:
        settings["enable_priority_scheduling"] = True
        settings["priority_scheduling_preemption_threshold"] = rng.choice([0, 2, 10])
        settings["schedule_low_priority_values_first"] = rng.random() < 0.5
        settings["disable_priority_preemption"] = rng.random() < 0.3
        settings["retraction_policy"] = rng.choice(["length", "priority"])
    return settings


def sglang_case(rng, max_requests=40, max_output=100):
    """A case of random requests and settings; the KV pool holds the largest request, and often little more."""
    page = rng.choice([1, 1, 2, 4, 16])
    block = rng.choice([1, 4, 16, 40] if page == 1 else [page, page, 4])
    rows = sglang_requests(rng, rng.randrange(2, max_requests), block, rng.choice([3, 12, max_output]))
    need = max(-(-row["tokens"] // page) + -(-row["output"] // page) + 2 for row in rows)
    env = CONSTANTS | {"SGLANG_RETRACT_DECODE_STEPS": rng.choice([1, 5, 20])}
    if rng.random() < 0.4:
        env |= {
            "SGLANG_INIT_NEW_TOKEN_RATIO": rng.choice([0.05, 0.3]),
            "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": rng.choice([5, 60]),
            "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": rng.choice([4, 50]),
        }
    cost = {"token_s": 1e-3, "pair_s": 1e-6, "step_s": 0.01, "read_s": 1e-5}
    return {
        "block_size": block, "capacity": (need + rng.choice([0, 0, 1, 3, 10, 30, 100])) * page, "env": env,
        "settings": sglang_settings(rng, page),
        "ignore_eos": rng.random() < 0.1 and all("limit" not in row for row in rows),
        "cost": {name: value * rng.random() for name, value in cost.items()} | {"overhead_s": rng.choice([0, 0.002])},
        "requests": rows,
        "max_plans": 4000,  # with lpm and priorities, SGLang can preempt and admit the same request for ever
    }  # fmt: skip


def trace_of(case):
    """The trace of a case's requests; it begins with the first of them."""
    rows = case["requests"]
    offsets = np.cumsum([0, *(len(row["ids"]) for row in rows)])
    arrival = np.array([row["arrival"] for row in rows])
    columns = Columns(
        (arrival - arrival[0]) * 1000, np.array([row["tokens"] for row in rows]),
        np.array([row["output"] for row in rows]), np.array([one for row in rows for one in row["ids"]]), offsets,
        extra={"priority": np.array([row.get("priority", 0) for row in rows])},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=case["block_size"], tail="kept")


def tiers_of(case):
    """The lower tiers of a case, if it has any."""
    if "tier" not in case:
        return []
    tier = case["tier"]
    tiers = [Tier("dram", tier["capacity"], tier["fetch_s"], tier["store_s"], tier["policy"])]
    if "pool" in case:
        pool = case["pool"]
        times = {"fetch_seconds": pool["fetch_s"], "store_seconds": pool["store_s"], "latency_s": pool["latency_s"]}
        tiers.append(Tier("pool", pool["capacity"], scope="cluster", **times))
    return tiers


def options_of(case):
    """The cost and the scheduler of a case."""
    settings = {"async_scheduling" if name == "async" else name: value for name, value in case["settings"].items()}
    return StepCost(**case["cost"]), VllmScheduler(**{"async_scheduling": False} | settings)
