"""Cures that change an option: the router, the time to live, the isolation domains, or the eviction policy."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from ...cache.policies import name_of
from ...trace.domains import MERGE, count_domains
from ..routers import FULL_ATTENTION
from .baseline import Baseline
from .causes import lifetime_ms
from .cure import Amount, Cure, duration
from .more_blocks import SHARES

ROUTERS = {
    "sticky": ("sticky_routing", "Route the requests of a session to one instance (--router sticky)"),
    "kv-aware": ("aware_routing", "Route requests to an instance that has their prefix (--router kv-aware)"),
}


def other_routers(baseline: Baseline) -> Iterator[Cure]:
    """Routing by session, and by what instances have cached."""
    if not baseline.setup.is_routed:
        return
    for router, (name, advice) in ROUTERS.items():
        if router == baseline.setup.router or (baseline.setup.layout is not None and router in FULL_ATTENTION):
            continue
        elsewhere = f"{baseline.cost_of('other_instance'):,} tokens were cached by another instance only"
        yield baseline.simulated(name, baseline.simulate(router=router), f"{advice}: {elsewhere}.")


def longer_ttl(baseline: Baseline) -> Iterator[Cure]:
    """No time to live, and those that reach shares of the expired tokens."""
    now_ms, expired = lifetime_ms(name_of(baseline.setup.policy)), baseline.cost_of("expired")
    if not np.isfinite(now_ms) or not expired:
        return
    gap_ms, tokens = baseline.explanation.causes.expired_gap_ms, baseline.explanation.causes.expired_tokens
    order = np.argsort(gap_ms, kind="stable")
    reached = np.cumsum(tokens[order])
    amounts: dict[int, Amount] = {}
    for share in SHARES:
        ttl_ms = ceil(gap_ms[order][np.searchsorted(reached, share * expired)])
        gain = baseline.gain_of(baseline.simulate(policy=f"ttl:{ttl_ms}ms"))
        amounts[ttl_ms] = Amount(share, gain, ttl_ms=ttl_ms)
    *_, last = each = tuple(amounts.values())
    shares = "; ".join(f"{_time(one)} {max(one.tokens, 0) / expired:.0%}".replace("%", " %") for one in each[-2::-1])
    advice = (
        f"Keep unused blocks for longer than {duration(now_ms / 1000)}: {_time(last)} makes "
        f"{max(last.tokens, 0) / expired:.0%} of the expired tokens hits{'; ' if shares else ''}{shares}. "
        "The figures are those without a time to live."
    ).replace("% of", " % of")
    yield baseline.simulated("longer_ttl", baseline.simulate(policy="lru"), advice, each)


def _time(amount: Amount) -> str:
    return duration((amount.ttl_ms or 0) / 1000)


def merged_domains(baseline: Baseline) -> Iterator[Cure]:
    """Equal blocks of all domains shared."""
    trace, setup = baseline.explanation.trace, baseline.setup
    if trace.domain is None or setup.domains == MERGE or count_domains(trace) < 2:
        return
    advice = (
        f"Share equal blocks among the {count_domains(trace):,} isolation domains (--domains merge). Check first why "
        "they are kept apart: a hit tells one tenant what another one sent."
    )
    yield baseline.simulated("merged_domains", baseline.simulate(domains=MERGE), advice)


def other_policies(baseline: Baseline) -> Iterator[Cure]:
    """LRU in place of another policy, and the best possible order of evictions."""
    setup, evicted = baseline.setup, baseline.cost_of("evicted")
    setting = baseline.explanation.simulation.setting
    if not evicted or setting.bound:
        return
    if setting.policy != "lru" and np.isinf(lifetime_ms(setting.policy)):
        advice = f"Evict the block that was used longest ago (--policy lru) in place of {setting.policy}."
        yield baseline.simulated("lru", baseline.simulate(policy="lru"), advice)
    if setup.is_routed or setup.cost is not None or setup.has_tiers or setup.layout is not None:
        return
    best = baseline.simulate(
        policy="belady", engine="reference", engine_options={}, schedule=None, instances=None, router=None
    )
    gain = min(max(baseline.gain_of(best), 0), evicted)
    advice = "Another eviction policy at this capacity: the best possible one, belady, knows the future."
    share = gain / evicted
    cached = baseline.explanation.causes.tokens["hit"]
    seconds = baseline.seconds(baseline.explanation.causes.tokens["evicted"], cached)
    yield baseline.cure("best_policy", gain, "bound", advice, None if seconds is None else share * seconds)
