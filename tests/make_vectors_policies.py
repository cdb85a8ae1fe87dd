"""Write tests/vectors/policies.json from the plain twins (`make vectors`); a diff is a change of behaviour."""

import json
from pathlib import Path

import numpy as np

from kvtrace.cache.core.pool import Pool, PythonPolicy
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies import POLICIES, make
from kvtrace.cache.policies.base import Context
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference.policies import twin_of

CAPACITIES = (12, 20, 40)
SPECS = {"ttl": "ttl:400ms", "priority": "priority:1s"}  # those whose parameter matters


def drawn(seed, rows=120):
    """A trace of our own: some system prompts, conversations that go on, and prompts that never come again."""
    rng = np.random.default_rng(seed)
    talks, ids, count, session = [], [], 0, []
    for _ in range(rows):
        if talks and rng.random() < 0.6:
            place = int(rng.integers(len(talks)) if rng.random() < 0.3 else len(talks) - 1)
            path, number = talks.pop(place)
        else:
            number = max(session, default=-1) + 1
            system = int(rng.integers(3))
            path = [("system", system, depth) for depth in range(system + 1)]
        new = int(rng.integers(1, 4))
        path = (path + [("own", count + i) for i in range(new)])[:12]
        count += new
        talks.append((path, number))
        ids.append(path)
        session.append(number)
    numbers: dict = {}
    flat = [numbers.setdefault(block, len(numbers)) for path in ids for block in path]
    lengths = np.array([len(path) for path in ids])
    columns = Columns(
        np.cumsum(rng.integers(0, 100, rows)).astype(float), lengths * 16, rng.integers(1, 9, rows),
        np.array(flat), np.concatenate([[0], np.cumsum(lengths)]), session=np.array(session),
        extra={"priority": rng.integers(0, 100, rows), "stop": np.where(np.arange(rows) % 3, "tool_use", "end_turn")},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=16)


def written(trace):
    return {
        "timestamp": trace.timestamp.tolist(),
        "priority": trace.extra["priority"].tolist(),
        "session": trace.session.tolist(),
        "stop": trace.extra["stop"].tolist(),
        "prompts": [" ".join(map(str, trace.prompt(row))) for row in range(len(trace))],
    }


def twin(name, context):
    """The plain twin of a policy: the class of the same name in tests/reference/policies/<module>.py."""
    name, _, text = name.partition(":")
    row = POLICIES[name]
    cls = twin_of(name, row.cls)
    return cls(context, row.parameter(text)) if text else cls(context)


def cases(trace):
    for name, row in POLICIES.items():
        if name == "unlimited":
            continue
        for capacity in CAPACITIES:
            for pool in ["flat"] if row.bound else ["flat", "leaf-first"]:
                spec = SPECS.get(name, name)
                demand = block_demand(trace)
                context = Context(demand.blocks, capacity, trace, demand)
                order = PythonPolicy(context, twin(spec, context))
                # an order that puts parents after children by itself runs in a flat pool
                flat = pool == "flat" or make(spec, context).keeps_parents
                engine = Pool(context, demand, order, total=not row.bound, leaf_first=not flat)
                engine.advance(len(demand))
                engine.close()
                yield {"policy": spec, "capacity": capacity, "pool": pool, "hit_blocks": engine.hits.tolist()}


if __name__ == "__main__":
    trace = drawn(1)
    found = {"trace": written(trace), "cases": list(cases(trace))}
    path = Path(__file__).parent / "vectors/policies.json"
    lines = ",\n".join(json.dumps(case) for case in found["cases"])  # one case a line, for `git diff`
    path.write_text(f'{{"trace": {json.dumps(found["trace"])}, "cases": [\n{lines}\n]}}\n')
