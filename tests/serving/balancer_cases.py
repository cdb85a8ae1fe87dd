"""Cases for the engines' own balancers: ranks that serve requests, what they report, and where each request goes."""

from __future__ import annotations

import math

import numpy as np

from kvtrace.cache.simulation import Setting
from kvtrace.serving.core.serving import Serving
from kvtrace.serving.simulation import StepCost, _instances
from tests.serving.scheduler_cases import options_of, sglang_case, trace_of, vllm_case
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of

ROUTERS = {"vllm": ["vllm-dp"], "sglang": ["sglang-total-requests", "sglang-total-tokens"]}


def balanced_case(rng, engine):
    """A case of a scheduler, with ranks, a router, and for vLLM the API server of each request."""
    case = vllm_case(rng) if engine == "vllm" else sglang_case(rng)
    begin = case["requests"][0]["arrival"]
    case["requests"] = [row | {"arrival": row["arrival"] - begin} for row in case["requests"]]
    if engine == "sglang":  # whole blocks, one more than the largest request needs
        unit = math.lcm(case["block_size"], case["settings"]["page_size"])
        case["capacity"] = (case["capacity"] // unit + 2) * unit
    more = {"engine": engine, "ranks": rng.randrange(2, 5), "router": rng.choice(ROUTERS[engine])}
    if engine == "vllm":
        more |= {"servers": rng.choice([1, 1, 2, 3]), "seed": rng.randrange(100)}
    return case | more | {"max_plans": 1 << 30}  # the kernel refuses cases without an end


def served(case):
    """The instance of each request, its end, its API server, and the reports of each rank."""
    engine = case["engine"]
    trace = trace_of(case) if engine == "vllm" else limited_trace(case)
    scheduler = options_of(case)[1] if engine == "vllm" else scheduler_of(case)
    blocks = case["capacity"] if engine == "vllm" else case["capacity"] // case["block_size"]
    options = {
        "instances": case["ranks"], "router": case["router"], "scheduler": scheduler,
        "api_server_count": case.get("servers"), "router_seed": case.get("seed", 0),
        "lockstep": case.get("lockstep", False),
    }  # fmt: skip
    fleet = _instances(trace, StepCost(**case["cost"]), Setting(max(blocks, 1), engine=engine), options)
    deployed = fleet.deploy(trace)
    run = Serving(deployed.instances, deployed.router, deployed.requests, fleet.setting.capacity)
    run.advance(len(trace))
    run.close()
    return {
        "arrival": (trace.timestamp / 1000).tolist(), "tokens": trace.input_length.tolist(),
        "ended": np.nan_to_num(deployed.requests.outcomes["ended"], nan=1e9).tolist(),
        "instance": deployed.requests.outcomes["instance"].tolist(),
        "client": np.asarray(deployed.router.client).tolist() if engine == "vllm" else [],
        "reports": [[list(row) for row in instance.reports] for instance in deployed.instances],
    }  # fmt: skip
