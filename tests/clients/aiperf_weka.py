"""AIPerf's own loader of Weka sessions; run in AIPerf's environment as FOLDER.

Prints, for each session: its requests and tokens as the loader has them, the blocks of its "theoretical prefix cache
hit" metric, and the delay of each request after the one before it in the agent's chain that the loader finds.
"""

import json
import sys
from itertools import pairwise
from types import SimpleNamespace

from aiperf.dataset.loader import weka_trace
from aiperf.dataset.loader.weka_trace import WekaTraceLoader

config = SimpleNamespace(
    get_default_dataset=SimpleNamespace, get_model_names=list, phases=[],
    tokenizer=SimpleNamespace(name=None, trust_remote_code=False, revision=None),
)  # fmt: skip
assert WekaTraceLoader.can_load(filename=sys.argv[1])
loader = WekaTraceLoader(filename=sys.argv[1], run=SimpleNamespace(cfg=config, random_seed=1))
data = loader.load_dataset()
plans = loader._build_reconstruction_plans(data)
metrics = loader._build_shared_metric_values(plans.parent_plans, plans.child_plans, plans.flat_plans)


def chains(plan):
    """The requests of each chain of a session, as (entry, place in the entry or -1, request)."""
    yield [(outer, -1, request) for outer, request in plan.normals]
    for one in plans.flat_plans:
        if one.parent_trace_id == plan.trace_id:
            yield [(outer, -1, request) for outer, request in one.requests]
    mine = [one for one in plans.child_plans if one.parent_trace_id == plan.trace_id]
    for one in weka_trace._child_plans_for_active_subagents(plan, mine):
        places = one.request_inner_indices
        yield [(one.source_outer_idx, place, r) for place, r in zip(places, one.requests, strict=True)]


def delays(chain):
    """[entry, place, entry and place of the request before, delay in ms] of all but the first."""
    for before, after in pairwise(chain):
        gap_ms = (after[2].t - before[2].t) * 1000.0
        yield [*after[:2], *before[:2], weka_trace._end_to_start_delay_ms(gap_ms, before[2].api_time)]


found = {}
for plan in plans.parent_plans:
    all_chains = list(chains(plan))
    requests = [request for chain in all_chains for _, _, request in chain]
    blocks = metrics[plan.trace_id].values()
    found[plan.trace_id] = {
        "chains": len(all_chains),
        "requests": len(requests),
        "input_tokens": sum(request.input_length for request in requests),
        "output_tokens": sum(request.output_length for request in requests),
        "hit_blocks": sum(hits for hits, _ in blocks),
        "blocks": sum(total for _, total in blocks),
        "delays": [delay for chain in all_chains for delay in delays(chain)],
    }
print(json.dumps(found))
