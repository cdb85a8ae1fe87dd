"""Every row of POLICIES equals its plain twin: the class of the same name in tests/reference/policies/."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.cache.core.pool import Pool, PythonPolicy
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies import POLICIES, make
from kvtrace.cache.policies.base import Context
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.cache.test_policies_classic import singles
from tests.cache.test_policies_more import agents, how_to_run, labelled, with_columns
from tests.conftest import drawn
from tests.reference.policies import twin_of

SPECS = [
    spec
    for name, row in POLICIES.items()
    if name != "unlimited"
    for spec in dict.fromkeys([row.example or name] + ([] if row.required else [name]))
]


def twin(spec, context):
    """The plain class of a policy, with the parameter that its row makes of the text after the colon."""
    name, _, text = spec.partition(":")
    row = POLICIES[name]
    cls = twin_of(name, row.cls)
    return PythonPolicy(context, cls(context, row.parameter(text)) if text else cls(context))


def both(spec, trace, mode="block", *, schedule=("serial",), total=True, leaf_first=False, capacity):
    """Hits of each request, residents and evictions: compiled, and by the plain twin."""
    demand = block_demand(trace, mode)
    for order in (make, twin):
        context = Context(demand.blocks, capacity, trace, demand)
        policy = order(spec, context)
        flat = make(spec, context).keeps_parents  # its order alone lets no block outlive its parent
        pool = Pool(context, demand, policy, total=total, leaf_first=leaf_first and not flat)
        pool.schedule(*schedule)
        pool.advance(len(trace))
        pool.close()
        yield pool.hits.tolist(), pool.residents().tolist(), pool.evictions, pool.early_frees


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=drawn(40))
@given(st.sampled_from(["block", "token", "grow"]), st.data())
def test_a_compiled_policy_equals_its_twin(spec, mode, data):
    trace = data.draw(agents() if POLICIES[spec.partition(":")[0]].sessions else labelled())
    fast, plain = both(spec, trace, mode, **how_to_run(data.draw, trace, mode))
    assert fast == plain


@pytest.mark.parametrize("spec", SPECS)
def test_it_does_so_over_thousands_of_evictions(spec):
    trace = singles((np.random.default_rng(7).zipf(1.2, 6_000) % 1_000).tolist())
    trace = with_columns(trace, priority=np.random.default_rng(1).integers(0, 100, len(trace)))
    columns = replace_columns(trace, session=np.random.default_rng(2).integers(0, 40, len(trace)))
    trace = Trace.from_columns(columns, block_size=trace.block_size)
    fast, plain = both(spec, trace, capacity=90)
    assert fast == plain


def test_lhd_equals_its_twin_where_ages_become_coarser():
    # 55 blocks come round every 550 uses, and 256 ages are kept apart at first
    trace = singles([1 + at // 10 % 55 if at % 10 == 0 else 0 for at in range(6_000)])
    for capacity in (60, 50):
        fast, plain = both("lhd", trace, capacity=capacity)
        assert fast == plain


@pytest.mark.parametrize("spec", SPECS)
def test_it_does_so_for_conversations(spec):
    from tests.make_vectors_policies import drawn

    trace = drawn(5, rows=300)
    for leaf_first in (False, True):
        fast, plain = both(spec, trace, capacity=70, leaf_first=leaf_first, schedule=("concurrency", 3))
        assert fast == plain
