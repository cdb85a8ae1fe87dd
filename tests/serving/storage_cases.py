"""Random cases of SGLang's scheduler over HiCache with a storage backend that instances share."""

from tests.serving.test_sglang_hicache_kernel import hosted_case


def storage_case(rng):
    """A case of hosted_case with a storage backend below instances; None if one instance would not serve it."""
    case = hosted_case(rng)
    if case is None:
        return None
    page, pages = case["settings"]["page_size"], case["capacity"] // case["settings"]["page_size"]
    step_s = max(case["cost"]["step_s"], 10 * case["cost"]["token_s"])
    instances = min(rng.choice([1, 2, 3]), len(case["requests"]))
    for number, row in enumerate(case["requests"]):
        row["instance"] = number if number < instances else rng.randrange(instances)
    case["storage"] = {
        "capacity": rng.choice([rng.randint(1, 2 * pages), 10 * pages]),
        "prefetch_threshold": rng.choice([1, page, 2 * page, 4 * page]),
        "policy": rng.choice(["best_effort", "wait_complete", "timeout"]),
        "timeout_base": rng.choice([0, 0.5, 3]) * step_s, "timeout_per_ki_token": rng.choice([0, 1, 50]) * step_s,
        "retry_interval": rng.choice([0, 1, 3, 8]), "retry_attempts": rng.choice([0, 1, 3, 8]),
        "batch": rng.choice([1, 2, 4, 128]), "latency_s": rng.choice([0, 0.1, 1, 3]) * step_s * rng.random(),
        "fetch_s": rng.choice([0, 0.1, 1, 3]) * step_s / 20, "store_s": rng.choice([0, 0.1, 1, 3]) * step_s / 20,
    }  # fmt: skip
    if instances > 1 and rng.random() < 0.7:  # what one instance has computed is there when another one asks
        case["storage"] |= {"capacity": 10 * pages, "prefetch_threshold": 1, "policy": "wait_complete"}
    return case


def fits_blocks(case):
    """Whether the host and the storage of a case have whole blocks, as a Tier has."""
    page, block = case["settings"]["page_size"], case["block_size"]
    return case["host"] % block == 0 and case["storage"]["capacity"] * page % block == 0


def is_served(served):
    """Whether all requests have ended: `max_plans` can end a case before."""
    return all(row[3] is not None for one in served["instances"] for row in one["requests"])
