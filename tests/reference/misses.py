"""The cause of each prompt token, block by block, with sets and dictionaries."""

import numpy as np

NAMES = (
    "hit", "in_flight", "other_tier", "evicted", "expired", "other_instance", "rounding", "other_domain", "first_use",
    "not_served",
)  # fmt: skip


def causes(trace, run, limit, *, full, ttl_ms=None, chunk=1, in_tiers=None):
    """Cause -> request -> tokens. `trace` has the domains; `limit` and `full` are those of the block demand.

    `in_tiers` is request -> leading blocks that a tier of any instance had, with tiers that instances share.
    """
    own, size = run.trace, run.trace.block_size
    looked_up = getattr(run, "started_s", None)
    timed = looked_up is not None
    at = looked_up * 1000 if timed else own.timestamp
    order = [row for row in range(len(own)) if not np.isnan(at[row])]
    order.sort(key=lambda row: (at[row] if timed else row, row))
    instances = getattr(run, "instance", np.zeros(len(own), dtype=int))
    tokens = {name: [0] * len(own) for name in NAMES}
    anywhere, in_domain, on_instance, last = set(), set(), {}, {}
    for row in range(len(own)):
        if row not in order:
            tokens["not_served"][row] = int(own.input_length[row])
    for row in order:
        length, here = int(own.input_length[row]), int(instances[row])
        merged, path = blocks_of(trace, row), blocks_of(own, row)
        cached = on_instance.setdefault(here, set())
        hits = int(run.hit_blocks[row])
        without_eviction = max(hits, min(leading(path, cached), limit[row]) // chunk * chunk)
        on_one = max(without_eviction, min(leading(path, in_domain), limit[row]) // chunk * chunk)
        domain = max(on_one, leading(path, in_domain))
        tiers = hits if in_tiers is None else max(hits, min(in_tiers[row], limit[row], on_one))
        every = max(domain, leading(merged, anywhere))
        for block in range(len(path)):
            end = min((block + 1) * size, length) - min(block * size, length)
            if block < hits:
                cause = "hit"
            elif block < tiers:
                cause = "other_tier"
            elif block < without_eviction:
                user = last[here, path[block]]
                if timed and not run.first_s[user] < at[row] / 1000:
                    cause = "in_flight"
                elif ttl_ms is not None and at[row] - at[user] > ttl_ms:
                    cause = "expired"
                else:
                    cause = "evicted"
            elif block < on_one:
                cause = "other_instance"
            elif block < domain:
                cause = "rounding"
            elif block < every:
                cause = "other_domain"
            else:
                cause = "first_use"
            tokens[cause][row] += end
        tokens["rounding" if every == len(path) else "first_use"][row] += max(0, length - len(path) * size)
        cached.update(path[: full[row]])
        last |= {(here, block): row for block in path[: full[row]]}
        in_domain.update(path)
        anywhere.update(merged)
    return tokens


def blocks_of(trace, row):
    return trace.hash_ids[trace.offsets[row] : trace.offsets[row + 1]].tolist()


def leading(path, known):
    for depth, block in enumerate(path):
        if block not in known:
            return depth
    return len(path)
