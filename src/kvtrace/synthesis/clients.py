"""The clients of a mixture: one for each model, or tenants with heavy-tailed rates (as in ServeGen).

ServeGen found that a few clients send most requests, and that each has its own rate, bursts and lengths. Here the rates
follow Zipf's law, and each tenant has one model, drawn so that the models keep their shares of the requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .mixture import Mixture


@dataclass(frozen=True)
class Client:
    """A client: who it behaves like, and how often it sends requests."""

    model: int  # index of its model
    share: float  # of all requests
    tenant: int = -1  # -1 = requests have no tenant


def clients_of(mixture: Mixture, rng: np.random.Generator) -> list[Client]:
    """The clients of a mixture; their shares sum to 1, and those of a model to its share.

    >>> from kvtrace.synthesis.fitting import fit
    >>> from kvtrace.synthesis.mixture import mix
    >>> from kvtrace.trace.building import toy
    >>> models = [fit(toy("0 1", "0 1 2")), fit(toy("0", "1"))]
    >>> clients = clients_of(mix(models, [0.7, 0.3], tenants=3), np.random.default_rng(1))
    >>> [(client.model, round(client.share, 3)) for client in clients]
    [(0, 0.525), (1, 0.3), (0, 0.175)]
    """
    if mixture.tenants is None:
        return [Client(place, share) for place, share in enumerate(mixture.shares)]
    shares = np.array(mixture.shares)
    rate = np.arange(1, mixture.tenants + 1) ** -mixture.tenant_skew
    rate /= rate.sum()
    model = _deal(rate, shares, rng)
    rate *= (shares / np.bincount(model, weights=rate, minlength=len(shares)))[model]
    return [Client(int(of), float(share), tenant) for tenant, (of, share) in enumerate(zip(model, rate, strict=True))]


def _deal(rates, shares, rng) -> np.ndarray:
    """Tenant -> model: drawn, from the largest tenant on, among the models that still have room for its rate."""
    room, model = shares.copy(), np.empty(len(rates), dtype=np.int64)
    empty = np.ones(len(shares), dtype=bool)
    for tenant, rate in enumerate(rates):
        waiting = len(rates) - tenant <= empty.sum()  # the last tenants go to the models that have none
        weight = np.where(empty | (not waiting), np.maximum(room, 0.0), 0.0)
        fits = weight * (room >= rate)
        if fits.any():
            model[tenant] = rng.choice(len(shares), p=fits / fits.sum())
        else:
            model[tenant] = int(np.argmax(np.where(empty | (not waiting), room, -np.inf)))
        room[model[tenant]] -= rate
        empty[model[tenant]] = False
    return model
