"""Cases for SGLang's gateway: prompts made of blocks that share prefixes, and requests that overlap."""

from __future__ import annotations

from tests.reference.sglang_gateway import Gateway

FIRST = 0x4E00  # the character of block 0


def gateway_case(rng, evicts=False):
    """Events on a gateway; a block is a run of characters, the last one of a prompt can be shorter.

    Blocks that follow the same block differ in their first characters, as those of a trace are taken to.
    """
    size, workers = rng.choice([1, 3, 8]), 2 if evicts else rng.choice([1, 2, 3, 5])
    options = {
        "cache_threshold": rng.choice([0.0, 0.2, 0.3, 0.5, 0.8]), "balance_abs_threshold": rng.choice([0, 1, 3, 64]),
        "balance_rel_threshold": rng.choice([1.0, 1.2, 1.5, 3.0]), "eviction_interval_secs": 3 if evicts else 600,
        "max_tree_size": rng.choice([4, 20, 60]) * size if evicts else 2**26,
    }  # fmt: skip
    events, number, said, running = [], {}, [()], []
    for request in range(rng.randrange(5, 60)):
        before = rng.choice(said)
        words = before[: rng.randrange(len(before) + 1)]
        words += tuple(rng.randrange(3) for _ in range(rng.randrange(1, 6)))
        said.append(words)
        last = rng.randrange(1, size + 1)
        names = [words[: place + 1] for place in range(len(words) - 1)] + [
            (*words, "end", last) if last < size else words
        ]
        ids = [number.setdefault(name, len(number)) for name in names]
        tokens = (len(ids) - 1) * size + last
        text = "".join(chr(FIRST + one) * size for one in ids)[:tokens]
        events.append(["send", f"r{request}", text, ids])
        running.append(f"r{request}")
        while running and rng.random() < 0.45:
            events.append(["end", running.pop(rng.randrange(len(running)))])
        if evicts and rng.random() < 0.1:
            events.append(["evict"])
    return {"workers": workers, "ranks": 0, "block_size": size, "options": options, "events": events}


def served(case):
    """The workers of the plain twin, and whether it took one that the gateway would draw."""
    gateway, where, sent = Gateway(range(case["workers"] * max(1, case["ranks"])), **case["options"]), {}, []
    for worker in [gateway.send(chr(0xE000 + worker)) for worker in gateway.workers]:  # that show their order
        gateway.end(worker)
    for kind, *values in case["events"]:
        if kind == "send":
            where[values[0]] = gateway.send(values[1])
            sent.append(where[values[0]])
        elif kind == "end":
            gateway.end(where[values[0]])
        else:
            gateway.evict()
    return sent, gateway.drawn
