"""Cases of hybrid caches: a trace, a layout, a schedule and a capacity; random ones, and how each side runs one.

A case is a dict that JSON can hold. `engine_run` serves it with kvtrace's engine, `twin_run` with the plain definition;
`client_case` is what tests/clients/vllm_hybrid.py reads.
"""

import math
from dataclasses import asdict

import numpy as np

from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import vllm
from kvtrace.cache.layout import CacheGroup, CacheLayout, Drafting
from kvtrace.cache.policies.base import Context
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference import grouped_cache


def conversations(rng, rows, base):
    """The tokens of prompts that go on from an earlier one, or part of it, and end anywhere in a block."""
    earlier, prompts = [()], []
    for _ in range(rows):
        before = earlier[rng.integers(len(earlier))]
        more = rng.integers(3, size=rng.integers(1, 7)).tolist()
        words = before[: rng.integers(len(before) + 1)] + tuple(more)
        earlier.append(words)
        tokens = [word for word in words for _ in range(base)]
        prompts.append(tokens[: len(tokens) - int(rng.integers(base))])
    return prompts


def random_groups(rng, base):
    """One to four groups of one to three forms that vLLM serves together."""
    has_state = rng.random() < 0.4
    sizes = [base] if has_state or rng.random() < 0.5 else [base * k for k in (1, 2, 3)]
    kinds = ["full", "window", "chunk", "state"] if has_state else ["full", "window", "window", "chunk"]
    chosen = [kinds[rng.integers(4)] for _ in range(rng.integers(1, 4))]
    if has_state and "state" not in chosen:
        chosen[-1] = "state"
    if "chunk" in chosen or has_state:
        sizes = [base * int(rng.integers(1, 4))]
    groups = []
    for kind in chosen:
        size = int(sizes[rng.integers(len(sizes))])
        window = {"window": int(rng.integers(2, 6 * size + 2)), "chunk": size * int(rng.integers(1, 5))}.get(kind, 0)
        groups.append(CacheGroup(kind, 1, size, window))
    if rng.random() < 0.4:
        groups.append(groups[rng.integers(len(groups))])
    return tuple(groups)


def random_case(rng):
    """A random case; its capacity holds each request alone, with a few blocks to spare."""
    groups = random_groups(rng, int(rng.choice([1, 2, 4])))
    sizes = [group.block_size for group in groups]
    base, align = math.gcd(*sizes), math.lcm(*sizes)
    sparse = any(group.kind in ("window", "state") for group in groups)
    retention = [0, 0, None, align * int(rng.integers(1, 6))][rng.integers(4)] if sparse else 0
    steps = [8192, align * int(rng.integers(1, 5)), int(rng.integers(1, 4 * align + 1))]
    layout = CacheLayout(
        groups, retention_interval=retention, step_tokens=steps[rng.integers(3)], junctions=bool(rng.random() < 0.8),
        internal_checkpoint_alignment=align * int(rng.random() < 0.5) * any(group.kind == "state" for group in groups),
    )  # fmt: skip
    prompts = conversations(rng, int(rng.integers(2, 40)), base)
    more = rng.integers(0, 5 * align + 1, size=len(prompts)).tolist()
    longest = max(len(prompt) + added for prompt, added in zip(prompts, more, strict=True))
    arrival = (np.cumsum(rng.integers(0, 6, size=len(prompts)))).astype(float)
    kind = ["serial", "serial", "concurrency", "open-loop"][rng.integers(4)]
    schedule = {"kind": kind, "arrival": (arrival - arrival[0]).tolist()}
    if kind == "concurrency":
        schedule["concurrency"] = int(rng.integers(2, 5))
    elif kind == "open-loop":
        schedule["end"] = (arrival - arrival[0] + rng.integers(0, 13, size=len(prompts))).tolist()
    return {
        "layout": asdict(layout), "base": base, "prompts": prompts, "more": more, "grow": bool(rng.random() < 0.5),
        "schedule": schedule, "capacity": sum(-(-longest // size) + 2 for size in sizes) + int(rng.integers(0, 41)),
    }  # fmt: skip


def drafted_case(rng, rules):
    """A random case with a drafter, whose slots the capacity holds too.

    Blocks of several names have several first tokens, as a demand with a drafter takes them to have: a partial block
    too, which conversations() begins as the full one.
    """
    case = random_case(rng)
    tokens, base = int(rng.integers(0, 6)), case["base"]
    for prompt in case["prompts"]:
        rest = len(prompt) % base
        prompt[len(prompt) - rest :] = [100 + base * prompt[-1] + rest] * rest
    more = sum(
        tokens if group["kind"] == "state" else -(-tokens // group["block_size"]) for group in case["layout"]["groups"]
    )
    return case | {"drafting": {"rule": str(rng.choice(rules)), "tokens": tokens}, "capacity": case["capacity"] + more}


def layout_of(case):
    return CacheLayout(**case["layout"] | {"groups": tuple(CacheGroup(**group) for group in case["layout"]["groups"])})


def drafting_of(case):
    return Drafting(**case["drafting"]) if case.get("drafting") else None


def trace_of(case):
    """The case's prompts as a trace with blocks of `base` tokens."""
    number, ids = {}, []
    for prompt in case["prompts"]:
        ends = range(case["base"], len(prompt) + case["base"], case["base"])
        ids.append([number.setdefault((*prompt[:end], -min(end, len(prompt))), len(number)) for end in ends])
    columns = Columns(
        np.array(case["schedule"]["arrival"], dtype=float), np.array([len(prompt) for prompt in case["prompts"]]),
        np.array(case["more"]) + 1, np.array([block for path in ids for block in path], dtype=np.int64),
        np.cumsum([0, *map(len, ids)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=case["base"])


def engine_run(case):
    """(hit tokens of each request, early frees) of kvtrace's engine."""
    trace, schedule = trace_of(case), case["schedule"]
    demand = block_demand(trace, "grow" if case["grow"] else "token", True, drafting_of(case))
    engine = vllm.build(demand, Context(demand.blocks, case["capacity"], trace, demand), layout=layout_of(case))
    engine.schedule(schedule["kind"], schedule.get("concurrency", 1), schedule.get("end"))
    engine.advance(len(trace))
    engine.close()
    return (engine.hits * case["base"]).tolist(), engine.early_frees


def twin_run(case):
    """(hit tokens of each request, early frees) of the plain definition."""
    layout, base, number, requests, drafting = layout_of(case), case["base"], {}, [], drafting_of(case)
    for row, (prompt, added) in enumerate(zip(case["prompts"], case["more"], strict=True)):
        more = added if case["grow"] else 0
        tokens = (*prompt, *(("output", row, place) for place in range(more)))
        ends = range(base, len(tokens) + 1, base)
        if drafting and drafting.needs_next:  # a block is named by the token after it too
            known = *tokens, ("output", row, more)
            path = [number.setdefault(known[: end + 1], len(number)) for end in ends]
        else:
            path = [number.setdefault(tokens[:end], len(number)) for end in ends]
        requests.append(grouped_cache.Request(path, len(prompt), more))
    groups = [grouped_cache.Group(group.kind, group.block_size, group.window) for group in layout.groups]
    options = {
        "groups": groups, "base": base, "retention": layout.retention_interval, "step_tokens": layout.step_tokens,
        "checkpoint": layout.internal_checkpoint_alignment > 0, "junctions": layout.junctions,
        "drafts": drafting.tokens if drafting else 0,
    }  # fmt: skip
    schedule = case["schedule"]
    return grouped_cache.serve(
        requests, options, case["capacity"], schedule["kind"], schedule["arrival"], schedule.get("concurrency", 1),
        schedule.get("end"), case["grow"],
    )  # fmt: skip


def client_case(case):
    """The case in the words of tests/clients/vllm_hybrid.py."""
    layout = case["layout"]
    return {
        "block_size": case["base"], "hash_block_size": math.gcd(*(group["block_size"] for group in layout["groups"])),
        "groups": layout["groups"], "retention_interval": layout["retention_interval"],
        "step_tokens": layout["step_tokens"], "junctions": layout["junctions"],
        "internal_checkpoint": layout["internal_checkpoint_alignment"], "schedule": case["schedule"],
        "capacity": case["capacity"], "grow": case["grow"], "drafting": case.get("drafting"),
        "requests": [
            {"tokens": prompt, "more": more if case["grow"] else 0}
            for prompt, more in zip(case["prompts"], case["more"], strict=True)
        ],
    }  # fmt: skip
