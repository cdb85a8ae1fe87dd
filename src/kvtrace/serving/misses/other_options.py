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
from .cure import Amount, Cure, duration, percent
from .more_blocks import SHARES


def sticky_routing(baseline: Baseline) -> Iterator[Cure]:
    """The requests of a session on one instance."""
    return _with_router(baseline, "sticky_routing", "sticky", "Route the requests of a session to one instance")


def aware_routing(baseline: Baseline) -> Iterator[Cure]:
    """Requests on an instance that has their prefix."""
    return _with_router(baseline, "aware_routing", "kv-aware", "Route requests to an instance that has their prefix")


def _with_router(baseline: Baseline, name: str, router: str, advice: str) -> Iterator[Cure]:
    setup = baseline.setup
    if not setup.is_routed or router == setup.router or (setup.layout is not None and router in FULL_ATTENTION):
        return
    done = baseline.simulate(router=router)
    options = f"(--router {router} in place of {setup.router or 'round-robin'})"
    yield baseline.simulated(name, done, f"{advice} {options}: {baseline.rise(done)}.")


def longer_ttl(baseline: Baseline) -> Iterator[Cure]:
    """No time to live, and those that reach shares of the expired tokens."""
    now_ms, expired = lifetime_ms(name_of(baseline.setup.policy)), baseline.cost_of("expired")
    if not expired:
        return
    gap_ms, tokens = baseline.explanation.causes.expired_gap_ms, baseline.explanation.causes.expired_tokens
    order = np.argsort(gap_ms, kind="stable")
    reached = np.cumsum(tokens[order])
    amounts: list[Amount] = []
    for share in SHARES:
        ttl_ms = ceil(gap_ms[order][np.searchsorted(reached, share * expired)])
        gain = baseline.gain_of(baseline.simulate(policy=f"ttl:{ttl_ms}ms"))
        if not amounts or gain > amounts[-1].tokens:
            amounts.append(Amount(share, gain, ttl_ms=float(ttl_ms)))
    done, every = baseline.simulate(policy="lru"), tuple(amounts)
    first, *others = reversed(every)
    less = ", ".join(f"{percent(one.tokens, expired)} with {_time(one)}" for one in others)
    advice = (
        f"Keep unused blocks until they are evicted, not only for {duration(now_ms / 1000)}: {baseline.rise(done)}. "
        f"A time to live of {_time(first)} makes {percent(first.tokens, expired)} of the expired tokens hits"
        f"{less and '; '}{less}."
    )
    yield baseline.simulated("longer_ttl", done, advice, every)


def _time(amount: Amount) -> str:
    return duration((amount.ttl_ms or 0) / 1000)


def merged_domains(baseline: Baseline) -> Iterator[Cure]:
    """Equal blocks of all domains shared."""
    trace, setup = baseline.explanation.trace, baseline.setup
    if trace.domain is None or setup.domains == MERGE or count_domains(trace) < 2:
        return
    done = baseline.simulate(domains=MERGE)
    advice = (
        f"Share equal blocks among the {count_domains(trace):,} isolation domains (--domains merge): "
        f"{baseline.rise(done)}. Merging tenants lets one of them learn what another one sent; models cannot be merged."
    )
    yield baseline.simulated("merged_domains", done, advice)


def other_policies(baseline: Baseline) -> Iterator[Cure]:
    """LRU in place of another policy, and the best possible order of evictions."""
    setup, evicted = baseline.setup, baseline.cost_of("evicted")
    setting = baseline.explanation.simulation.setting
    if not evicted or setting.bound:
        return
    if setting.policy != "lru" and np.isinf(lifetime_ms(setting.policy)):
        done = baseline.simulate(policy="lru")
        advice = f"Evict by last use (--policy lru in place of {setting.policy}): {baseline.rise(done)}."
        yield baseline.simulated("lru", done, advice)
    if setup.is_routed or setup.cost is not None or setup.has_tiers or setup.layout is not None:
        return
    best = baseline.simulate(
        policy="belady", engine="reference", engine_options={}, schedule=None, instances=None, router=None
    )
    gain = min(max(baseline.gain_of(best), 0), evicted)
    advice = (
        "Try other eviction policies at this capacity with kvtrace simulate: this is the gain of belady, the best "
        "possible one, which knows the future."
    )
    share = gain / evicted
    cached = baseline.explanation.causes.tokens["hit"]
    seconds = baseline.seconds(baseline.explanation.causes.tokens["evicted"], cached)
    yield baseline.cure("best_policy", gain, "bound", advice, None if seconds is None else share * seconds)
